"""Each check fails for servers with the fault that it detects, and for no others."""

import io
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from PIL import Image

from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.plugins.reward_server.known_images import draw_image
from plumbline.plugins.reward_server.reward_checks import CHECKS, UNKNOWN
from plumbline.plugins.reward_server.wires.score import ScoreWire
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, Need, Reply, ScoreRequest, Served, as_json
from tests.commands import Ended, refusal, run

Score = Callable[[ScoreRequest, int], float | None]
"""Function that returns the score of an image at an index in its batch, or None for a broken image."""
SERVED = Served(
    {"fit": "recipe", UNKNOWN: "recipe"},
    "fit",
    needs=dict.fromkeys(("questions", "sources"), frozenset({"fit", UNKNOWN})),
)
UNREADABLE = MetricAnswer(None, RowError("corrupt_image", "expected an image; generate it again"))


@cache
def pixels_of(prompt: str) -> bytes:
    return pixels(draw_image(prompt))


def pixels(image: bytes) -> bytes:
    return Image.open(io.BytesIO(image)).convert("RGB").tobytes()


def fit(request: ScoreRequest, place: int) -> float | None:
    """Return the fraction of frames that match the prompt."""
    try:
        return sum(pixels(image) == pixels_of(request.prompt) for image in request.images) / len(request.images)
    except OSError:
        return None


def score_by_questions(request: ScoreRequest, place: int) -> float | None:
    """Return 1 if the question is about the object in the image, 0 if not, and None without a question."""
    if not request.questions:
        return None
    (question,) = request.questions
    prompt = question[0].removeprefix("Is there ").removesuffix("?")
    return fit(request._replace(prompt=prompt), place)


def reversed_fit(request: ScoreRequest, place: int) -> float | None:
    score = fit(request, place)
    return None if score is None else -score


def score_first_frame(request: ScoreRequest, place: int) -> float | None:
    return fit(request._replace(images=request.images[:1]), place)


def zero_where_broken(request: ScoreRequest, place: int) -> float:
    return fit(request, place) or 0.0


def score_with_noise(request: ScoreRequest, place: int) -> float | None:
    score = fit(request, place)
    return None if score is None else score + random.random() / 2


def score_by_index(request: ScoreRequest, place: int) -> float | None:
    score = fit(request, place)
    return None if score is None else score + place / 100


@contextmanager
def serving(score: Score, refused: str = UNKNOWN, order: int = 1, needs: Sequence[Need] = ()) -> Iterator[str]:
    """Serve our own wire with this score function, rejecting requests for the reward `refused`."""
    wire = ScoreWire()

    def answer(body: bytes) -> Reply:
        try:
            requests = wire.read(wire.parse(body, wire.media), SERVED)
        except PlumblineError as error:
            return wire.refuse(400, str(error))
        if refused in requests[0].metrics:
            return wire.refuse(400, f"nothing is called {refused}\x1b[2J")
        scores = [score(request, place) for place, request in enumerate(requests)]
        answers = [UNREADABLE if number is None else MetricAnswer(number) for number in scores]
        answers_of_images = [dict.fromkeys(one.metrics, answer) for one, answer in zip(requests, answers, strict=True)]
        return wire.answer(requests, answers_of_images, SERVED)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.reply(answer(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_GET(self) -> None:
            self.reply(as_json({"rewards": ["fit"], "orders": {"fit": order}, "needs": {"fit": list(needs)}}))

        def reply(self, reply: Reply) -> None:
            self.send_response(reply.status)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def outcomes(ended: Ended) -> dict[str, str]:
    """Return the outcome of each check from the printed table."""
    lines = [[cell.strip() for cell in line.split("│")[1:5]] for line in ended.out.splitlines() if "│" in line]
    return {name: outcome for name, _, outcome, _ in lines if name}


def check(url: str, *words: str) -> Ended:
    return run("check_rewards", url, "repeats=1", "batch=4", *words)


@pytest.mark.parametrize(
    ("score", "failing", "words"),
    [
        (fit, "", ["must_use=[frames]"]),
        (reversed_fit, "order", []),
        (zero_where_broken, "nulls", []),
        (score_by_index, "same in a batch", []),
        (score_first_frame, "", []),
        (score_first_frame, "second frame", ["must_use=[frames]"]),
        (fit, "questions", ["must_use=[questions]"]),
        (score_by_questions, "", ["must_use=[questions]", "needs=[questions]"]),
    ],
)
def test_a_check_fails_for_its_own_fault_alone(score: Score, failing: str, words: list[str]) -> None:
    with serving(score) as url:
        ended = check(url, *words)
    assert {name for name, outcome in outcomes(ended).items() if outcome == "fails"} == {failing} - {""}
    assert ended.code == (1 if failing else 0) and set(outcomes(ended)) == set(CHECKS)


def score_by_source(request: ScoreRequest, place: int) -> float | None:
    """Score whether an edit followed the instruction; return None without a source."""
    if not request.sources:
        return None
    try:
        before, after = pixels(request.sources[0]), pixels(request.images[0])
    except OSError:
        return None
    wanted = request.prompt.removeprefix("Change the picture to ").removesuffix(".")
    return float(after == pixels_of(wanted)) - float(after == before) / 4


def score_by_words(request: ScoreRequest, place: int) -> float | None:
    """Score whether the image shows the quoted words; return None if the prompt quotes none."""
    return fit(request, place) if '"' in request.prompt else None


@pytest.mark.parametrize(
    ("score", "need", "words"), [(score_by_source, "sources", ["must_use=[sources]"]), (score_by_words, "words", [])]
)
def test_what_a_reward_needs_is_said_by_the_server_or_the_caller(score: Score, need: Need, words: list[str]) -> None:
    with serving(score, needs=(need,)) as url:
        assert set(outcomes(check(url, *words)).values()) <= {"ok", "unknown"}
    with serving(score) as url:
        assert outcomes(check(url, *words))["order"] == "fails"
        ended = check(url, f"needs=[{need}]", *words)
    assert ended.code == 0 and outcomes(ended)["order"] == "ok"


def test_a_source_that_is_ignored_or_broken_and_still_scored_fails() -> None:
    def ignore_source(request: ScoreRequest, place: int) -> float | None:
        return score_by_source(request._replace(sources=(draw_image("a green triangle"),)), place)

    with serving(ignore_source, needs=("sources",)) as url:
        found = outcomes(check(url, "must_use=[sources]"))
    assert {name for name, outcome in found.items() if outcome == "fails"} == {"nulls", "source"}


def test_numbers_by_chance_are_neither_the_same_again_nor_in_a_batch() -> None:
    with serving(score_with_noise) as url:
        found = outcomes(check(url))
    assert found["same again"] == found["same in a batch"] == "fails" and found["order"] == "ok"


def test_a_reward_that_nobody_has_must_get_no_number() -> None:
    with serving(fit, refused="") as url:
        assert outcomes(check(url))["unknown reward"] == "fails"


def test_a_servers_words_reach_no_terminal_as_they_are() -> None:
    with serving(fit, refused="fit") as url:
        ended = check(url)
    assert "nothing is called fit" in ended.words and "\x1b" not in ended.out


def test_what_is_better_is_said_by_the_server_or_the_caller() -> None:
    with serving(reversed_fit, order=-1) as url:
        assert outcomes(check(url))["order"] == "ok"
        assert outcomes(check(url, "+orders.fit=0"))["order"] == "unknown"
        assert outcomes(check(url, "+orders.fit=1"))["order"] == "fails"


def test_a_server_of_another_wire_passes_nothing_and_one_that_is_not_there_is_one_line() -> None:
    with serving(fit) as url:
        found = outcomes(check(url, "wire=flow_factory"))
    assert found["order"] == found["same again"] == "fails" and found["nulls"] == found["latency"] == "unknown"
    assert "no reply" in refusal("check_rewards", url, code=1)
    assert "url: expected http://" in refusal("check_rewards", "127.0.0.1:8000")
    assert "did you mean unirl" in refusal("check_rewards", url, "wire=unirll")

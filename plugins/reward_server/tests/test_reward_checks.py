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
from plumbline.plugins.reward_server.reward_checks import CHECK_FUNCTIONS, UNKNOWN_REWARD
from plumbline.plugins.reward_server.wires.score import ScoreWire
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, Need, Reply, ScoreRequest, Served, make_json_reply
from tests.commands import FinishedJob, run, run_refused

ScoreFunction = Callable[[ScoreRequest, int], float | None]
"""Function that returns the score of an image at an index in its batch, or None for a broken image."""
SERVED = Served(
    {"fit": "recipe", UNKNOWN_REWARD: "recipe"},
    "fit",
    needs=dict.fromkeys(("questions", "sources"), frozenset({"fit", UNKNOWN_REWARD})),
)
UNREADABLE_ANSWER = MetricAnswer(None, RowError("corrupt_image", "expected an image; generate it again"))


@cache
def draw_pixels(prompt: str) -> bytes:
    return decode_pixels(draw_image(prompt))


def decode_pixels(image: bytes) -> bytes:
    return Image.open(io.BytesIO(image)).convert("RGB").tobytes()


def score_fit(request: ScoreRequest, index: int) -> float | None:
    try:
        return sum(decode_pixels(image) == draw_pixels(request.prompt) for image in request.images) / len(
            request.images
        )
    except OSError:
        return None


def score_by_questions(request: ScoreRequest, index: int) -> float | None:
    """Return 1 if the question is about the object in the image, 0 if it is not, and None if there is no question."""
    if not request.questions:
        return None
    (question,) = request.questions
    prompt = question[0].removeprefix("Is there ").removesuffix("?")
    return score_fit(request._replace(prompt=prompt), index)


def score_reversed(request: ScoreRequest, index: int) -> float | None:
    score = score_fit(request, index)
    return None if score is None else -score


def score_first_frame(request: ScoreRequest, index: int) -> float | None:
    return score_fit(request._replace(images=request.images[:1]), index)


def score_broken_images_as_zero(request: ScoreRequest, index: int) -> float:
    return score_fit(request, index) or 0.0


def score_with_noise(request: ScoreRequest, index: int) -> float | None:
    score = score_fit(request, index)
    return None if score is None else score + random.random() / 2


def score_by_index(request: ScoreRequest, index: int) -> float | None:
    score = score_fit(request, index)
    return None if score is None else score + index / 100


@contextmanager
def serve_scores(
    score: ScoreFunction, refused: str = UNKNOWN_REWARD, order: int = 1, needs: Sequence[Need] = ()
) -> Iterator[str]:
    """Serve a function's scores on our own wire, and yield the address. The server rejects the reward `refused`."""
    wire = ScoreWire()

    def answer(body: bytes) -> Reply:
        try:
            requests = wire.read(wire.parse(body, wire.media), SERVED)
        except PlumblineError as error:
            return wire.refuse(400, str(error))
        if refused in requests[0].metrics:
            return wire.refuse(400, f"nothing is called {refused}\x1b[2J")
        scores = [score(request, index) for index, request in enumerate(requests)]
        answers = [UNREADABLE_ANSWER if number is None else MetricAnswer(number) for number in scores]
        answers_of_images = [dict.fromkeys(one.metrics, answer) for one, answer in zip(requests, answers, strict=True)]
        return wire.answer(requests, answers_of_images, SERVED)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.reply(answer(self.rfile.read(int(self.headers["Content-Length"]))))

        def do_GET(self) -> None:
            self.reply(make_json_reply({"rewards": ["fit"], "orders": {"fit": order}, "needs": {"fit": list(needs)}}))

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


def parse_outcomes(ended: FinishedJob) -> dict[str, str]:
    lines = [[cell.strip() for cell in line.split("│")[1:5]] for line in ended.out.splitlines() if "│" in line]
    return {name: outcome for name, _, outcome, _ in lines if name}


def check(url: str, *words: str) -> FinishedJob:
    return run("check_rewards", url, "repeats=1", "batch=4", *words)


@pytest.mark.parametrize(
    ("score", "failing", "words"),
    [
        (score_fit, "", ["must_use=[frames]"]),
        (score_reversed, "order", []),
        (score_broken_images_as_zero, "nulls", []),
        (score_by_index, "same in a batch", []),
        (score_first_frame, "", []),
        (score_first_frame, "second frame", ["must_use=[frames]"]),
        (score_fit, "questions", ["must_use=[questions]"]),
        (score_by_questions, "", ["must_use=[questions]", "needs=[questions]"]),
    ],
)
def test_a_fault_fails_exactly_the_check_that_detects_it(score: ScoreFunction, failing: str, words: list[str]) -> None:
    with serve_scores(score) as url:
        ended = check(url, *words)
    assert {name for name, outcome in parse_outcomes(ended).items() if outcome == "fails"} == {failing} - {""}
    assert ended.code == (1 if failing else 0) and set(parse_outcomes(ended)) == set(CHECK_FUNCTIONS)


def score_by_source(request: ScoreRequest, index: int) -> float | None:
    if not request.sources:
        return None
    try:
        before, after = decode_pixels(request.sources[0]), decode_pixels(request.images[0])
    except OSError:
        return None
    wanted = request.prompt.removeprefix("Change the picture to ").removesuffix(".")
    return float(after == draw_pixels(wanted)) - float(after == before) / 4


def score_by_words(request: ScoreRequest, index: int) -> float | None:
    return score_fit(request, index) if '"' in request.prompt else None


@pytest.mark.parametrize(
    ("score", "need", "words"), [(score_by_source, "sources", ["must_use=[sources]"]), (score_by_words, "words", [])]
)
def test_needed_inputs_come_from_the_server_or_from_the_needs_option(
    score: ScoreFunction, need: Need, words: list[str]
) -> None:
    with serve_scores(score, needs=(need,)) as url:
        assert set(parse_outcomes(check(url, *words)).values()) <= {"ok", "unknown"}
    with serve_scores(score) as url:
        assert parse_outcomes(check(url, *words))["order"] == "fails"
        ended = check(url, f"needs=[{need}]", *words)
    assert ended.code == 0 and parse_outcomes(ended)["order"] == "ok"


def test_checks_fail_if_sources_are_ignored_or_broken_ones_are_scored() -> None:
    def ignore_source(request: ScoreRequest, index: int) -> float | None:
        return score_by_source(request._replace(sources=(draw_image("a green triangle"),)), index)

    with serve_scores(ignore_source, needs=("sources",)) as url:
        found = parse_outcomes(check(url, "must_use=[sources]"))
    assert {name for name, outcome in found.items() if outcome == "fails"} == {"nulls", "source"}


def test_random_scores_fail_both_repeatability_checks() -> None:
    with serve_scores(score_with_noise) as url:
        found = parse_outcomes(check(url))
    assert found["same again"] == found["same in a batch"] == "fails" and found["order"] == "ok"


def test_the_check_fails_if_an_unknown_reward_gets_a_number() -> None:
    with serve_scores(score_fit, refused="") as url:
        assert parse_outcomes(check(url))["unknown reward"] == "fails"


def test_control_characters_in_a_servers_text_are_not_printed() -> None:
    with serve_scores(score_fit, refused="fit") as url:
        ended = check(url)
    assert "nothing is called fit" in ended.words and "\x1b" not in ended.out


def test_the_order_comes_from_the_server_or_from_the_orders_option() -> None:
    with serve_scores(score_reversed, order=-1) as url:
        assert parse_outcomes(check(url))["order"] == "ok"
        assert parse_outcomes(check(url, "+orders.fit=0"))["order"] == "unknown"
        assert parse_outcomes(check(url, "+orders.fit=1"))["order"] == "fails"


def test_a_wrong_wire_fails_the_checks_and_a_missing_server_is_reported_in_one_line() -> None:
    with serve_scores(score_fit) as url:
        found = parse_outcomes(check(url, "wire=flow_factory"))
    assert found["order"] == found["same again"] == "fails" and found["nulls"] == found["latency"] == "unknown"
    assert "no reply" in run_refused("check_rewards", url, code=1)
    assert "url: expected an address with http://" in run_refused("check_rewards", "127.0.0.1:8000")
    assert "did you mean unirl" in run_refused("check_rewards", url, "wire=unirll")

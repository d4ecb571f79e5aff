"""Images reach a chat endpoint as configured, and a likelihood that it does not report is never treated as 0."""

import io
import json
import math
import threading
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import ModelError, RowError, UnprocessableRowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.questions.vqascore import YES_SPELLINGS, VqaScoreConfig, compute_yes_share
from plumbline.operators.models.calls import Generation, ImageRequest, Message, Question, Request
from plumbline.operators.models.families import make_model_config, openai
from plumbline.operators.models.resolution import find_vqa_profile, resolve_model
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import make_sweep_config, write_benchmark
from tests.operators import tiny
from tests.operators.models.endpoint import (
    KEY,
    KEY_VARIABLE,
    Answer,
    Server,
    connect,
    make_completion,
    make_error,
    make_token_completion,
)

IMAGES = (tiny.draw_image(0), tiny.draw_image(1, width=24, height=64))


def encode_grey(model: openai.OpenAiModel) -> list[tuple[str, ...]]:
    return model.encode([model.preprocess(image) for image in IMAGES])


def compute_likelihood(server: Server, *choices: str, **options: Any) -> list[list[float]] | RowError:
    model = connect(server, **options)
    (answer,) = model.likelihood(encode_grey(model), [Question(0, "Is it red?", choices)])
    return answer


def decode_image(body: dict[str, Any]) -> Image.Image:
    (image, _) = body["messages"][0]["content"]
    header, _, content = image["image_url"]["url"].partition(",")
    assert header.startswith("data:image/") and header.endswith(";base64")
    return Image.open(io.BytesIO(b64decode(content)))


# Images


def test_an_image_comes_before_the_text_and_keeps_every_pixel(server: Server) -> None:
    model = connect(server)
    turns = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    schema = {"type": "object"}
    requests = [
        ImageRequest(1, Request(turns, 7, 0.5, 3, ("END",), json.dumps(schema))),
        ImageRequest(0, Request(turns[:1], 9)),
    ]
    replies = model.generate_from_images(encode_grey(model), requests)
    assert [reply.text for reply in replies if isinstance(reply, Generation)] == ["yes", "yes"]
    first, second = sorted(server.bodies, key=lambda body: int(body["max_tokens"]))
    assert first["messages"][0]["content"][1] == {"type": "text", "text": "a"}
    assert first["messages"][1:] == [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert first["response_format"]["json_schema"]["schema"] == schema
    assert (first["stop"], first["seed"], first["temperature"]) == (["END"], 3, 0.5)
    for body, image in ((first, IMAGES[1]), (second, IMAGES[0])):
        assert decode_image(body).format == "PNG"
        assert np.array_equal(np.asarray(decode_image(body)), np.asarray(image))


@pytest.mark.parametrize(("place", "parts"), [(0, ["image", "ab"]), (1, ["a", "image", "b"]), (2, ["ab", "image"])])
def test_a_request_may_have_a_system_message_and_the_image_anywhere_in_the_text(
    place: int, parts: list[str], server: Server
) -> None:
    model = connect(server)
    request = Request((Message("user", "ab"),), 7, system="Judge.", image_at=place)
    model.generate_from_images(encode_grey(model), [ImageRequest(0, request)])
    system, user = server.bodies[0]["messages"]
    assert system == {"role": "system", "content": "Judge."} and user["role"] == "user"
    assert [part.get("text", "image") for part in user["content"]] == parts


def test_each_image_of_a_request_may_have_a_place_of_its_own(server: Server) -> None:
    model = connect(server)
    (images,) = model.encode([model.preprocess_several(IMAGES[:2])])
    for places, parts in [((1, 2), ["a", "image", "b", "image", "c"]), ((0, 3), ["image", "abc", "image"])]:
        request = Request((Message("user", "abc"),), 7, image_at=places)
        model.generate_from_images([images], [ImageRequest(0, request)])
        content = server.bodies[-1]["messages"][0]["content"]
        assert [part.get("text", "image") for part in content] == parts
        shown = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
        assert shown == list(images)


def test_a_jpeg_is_smaller_and_nearly_the_same(server: Server) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(100, 156, (64, 64, 3), dtype=np.uint8))
    png, jpeg = connect(server), connect(server, image_format="jpeg")
    assert len(*jpeg.preprocess(noise)) < len(*png.preprocess(noise))
    jpeg.reply(jpeg.encode([jpeg.preprocess(noise)]), [Question(0, "a", ())])
    seen = decode_image(server.bodies[0])
    assert seen.format == "JPEG"
    assert np.abs(np.asarray(seen, dtype=int) - np.asarray(noise, dtype=int)).mean() < 4


def test_an_image_that_is_too_large_to_send_only_fails_its_own_row(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = connect(server)
    encoded = [model.preprocess(image) for image in IMAGES]
    monkeypatch.setattr(openai, "MAX_IMAGE_BYTES", max(len(*images) for images in encoded) - 1)
    results = isolate(model.encode, encoded)
    (refused,) = [result for result in results if isinstance(result, RowError)]
    assert (refused.kind, refused.retryable) == ("image_too_large", False)
    assert "set the model's image_format=jpeg" in refused.message
    with pytest.raises(UnprocessableRowError):
        model.encode(encoded)


def test_the_format_of_images_is_in_the_keys_if_it_is_not_the_default(server: Server) -> None:
    def list_key_options(**options: Any) -> dict[str, Any]:
        config = make_model_config(family="openai", checkpoint="judge", endpoint=server.url, **options)
        return resolve_model(config, on_gpu=False).list_key_properties()

    assert list_key_options(image_format="jpeg") == list_key_options() | {"image_format": "jpeg"}


# Likelihoods


def test_an_answers_likelihood_is_read_from_the_likeliest_first_tokens(server: Server) -> None:
    server.script = lambda number, body: make_token_completion(
        ("No", -0.3), ("Yes", -1.5), (" yes", -2.5), ("Maybe", -4.0)
    )
    assert compute_likelihood(server, "Yes", "No") == [[-1.5, 0.0], [-0.3, 0.0]]
    (body,) = server.bodies
    assert (body["max_tokens"], body["logprobs"], body["top_logprobs"], body["temperature"]) == (1, True, 20, 0.0)
    assert body["messages"][0]["content"][1] == {"type": "text", "text": "Is it red?"}


@pytest.mark.parametrize(
    ("tokens", "logprob"),
    [
        ([("no", -0.1), (" YES", -3.0)], -3.0),
        ([("yes", -2.0), ("Yes", -0.5)], -0.5),
        ([("Yes", 1e-7)], 0.0),
    ],
)
def test_the_likeliest_spelling_counts_regardless_of_case_and_space(
    server: Server, tokens: list[tuple[str, float]], logprob: float
) -> None:
    server.script = lambda number, body: make_token_completion(*tokens)
    assert compute_likelihood(server, "Yes") == [[logprob, 0.0]]


def test_a_choice_of_several_words_is_never_asked_for(server: Server) -> None:
    server.script = lambda number, body: make_token_completion(("red", -0.1))
    model = connect(server)
    asked = [Question(0, "a", ("red",)), Question(0, "b", ("red", "dark blue")), Question(1, "c", ("red",))]
    first, second, third = model.likelihood(encode_grey(model), asked)
    assert (first, third) == ([[-0.1, 0.0]], [[-0.1, 0.0]])
    assert isinstance(second, RowError)
    assert (second.kind, second.retryable) == ("no_likelihood", False)
    assert "'dark blue' is several tokens" in second.message
    assert len(server.bodies) == 2


def make_malformed_answer(logprobs: Any) -> Answer:
    answer = make_completion("Yes")
    assert isinstance(answer.body, dict)
    answer.body["choices"][0]["logprobs"] = logprobs
    return answer


STRANGE_MESSAGES: tuple[Any, ...] = (
    None,
    {},
    {"content": None},
    {"content": []},
    {"content": [{"token": "Yes", "logprob": -0.1}]},
    {"content": [{"top_logprobs": []}]},
    {"content": [{"top_logprobs": [{"token": "Yes", "logprob": None}]}]},
    {"content": [{"top_logprobs": [{"token": None, "logprob": -0.1}]}]},
    {"content": "Yes"},
)
ABSENT_CHOICE_MESSAGE = (
    "'Yes' is not among the 20 likeliest first tokens of judge's answer (the likeliest are 'i', 'sorry', 'ye')"
)


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (make_token_completion(("I", -0.1), ("Sorry", -2.0), ("Ye", -3.0)), "no_likelihood", ABSENT_CHOICE_MESSAGE),
        (make_token_completion(("Yes", -0.1), ("yes", -2.0)), "no_likelihood", "'No' is not among the 20 likeliest"),
        *(
            (make_malformed_answer(logprobs), "no_likelihood", "judge returned no top_logprobs")
            for logprobs in STRANGE_MESSAGES
        ),
        (make_token_completion(("I", -0.1), refusal="I will not"), "reply_refused", "I will not"),
        (make_completion("x", reason="content_filter"), "reply_refused", "content filter"),
    ],
)
def test_a_likelihood_that_is_not_reported_is_an_error_and_not_0(
    server: Server, answer: Answer, kind: str, message: str
) -> None:
    server.script = lambda number, body: answer
    result = compute_likelihood(server, "Yes", "No")
    assert isinstance(result, RowError)
    assert (result.kind, result.retryable) == (kind, False) and message in result.message


@pytest.mark.parametrize(("status", "kind"), [(500, "model_unavailable"), (400, "request_refused")])
def test_a_failed_request_only_fails_its_own_question(server: Server, status: int, kind: str) -> None:
    def answer_request(number: int, body: dict[str, Any]) -> Answer:
        text = body["messages"][0]["content"][1]["text"]
        return (
            make_error(status, f"logprobs are not there; {KEY}")
            if text == "1"
            else make_token_completion(("Yes", -0.1 * int(text)))
        )

    server.script = answer_request
    model = connect(server, max_retries=0)
    answers = model.likelihood(encode_grey(model), [Question(0, str(number), ("Yes",)) for number in range(4)])
    assert [answer for answer in answers if not isinstance(answer, RowError)] == [
        [[pytest.approx(-0.1 * number), 0.0]] for number in (0, 2, 3)
    ]
    (error,) = [answer for answer in answers if isinstance(answer, RowError)]
    assert error.kind == kind and KEY not in error.message


def test_the_normalised_share_of_yes_also_works_with_a_service(server: Server) -> None:
    """A service returns the same likelihood for every spelling of an answer, which must not change the share."""
    server.script = lambda number, body: make_token_completion(("No", -0.3), ("Yes", -1.5), (" yes", -2.5))
    metric = VqaScoreConfig(normalise="yes_no").complete_options(lambda role: openai.OPENAI_PROFILE)
    answer = compute_likelihood(server, *metric.choices)
    assert isinstance(answer, list)
    assert compute_yes_share(answer[: len(YES_SPELLINGS)], answer[len(YES_SPELLINGS) :]) == pytest.approx(
        math.exp(-1.5) / (math.exp(-1.5) + math.exp(-0.3))
    )


def test_a_refused_key_ends_the_shard_without_trying_each_row(server: Server) -> None:
    server.script = lambda number, body: make_error(401, f"Incorrect API key provided: {KEY}")
    model = connect(server, concurrency=1)
    decode_image, asked = encode_grey(model), [Question(0, str(number), ("Yes",)) for number in range(20)]
    with pytest.raises(ModelError, match="answered 401 for the key") as error:
        isolate(lambda batch: model.likelihood(decode_image, batch), asked)
    assert KEY not in str(error.value) and len(server.bodies) < 20


# Replies


def test_a_reply_is_stripped_of_white_space(server: Server) -> None:
    server.script = lambda number, body: make_completion(" a red star\n")
    model = connect(server)
    assert model.reply(encode_grey(model), [Question(1, "What is it?", ())]) == ["a red star"]
    assert server.bodies[0]["max_tokens"] == 32 and "logprobs" not in server.bodies[0]


def test_cut_replies_that_are_used_are_counted(server: Server) -> None:
    server.script = lambda number, body: make_completion("a red star", reason="length" if number < 2 else "stop")
    model = connect(server, concurrency=1)
    model.reply(encode_grey(model), [Question(index % 2, "What is it?", ()) for index in range(3)])
    assert model.usage == Usage(3, cut=2)


def test_usage_is_counted_for_the_calling_thread(server: Server) -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 1}
    answer = make_token_completion(("Yes", -0.1))
    assert isinstance(answer.body, dict)
    server.script = lambda number, body: Answer(body={**answer.body, "usage": usage})  # type: ignore[dict-item]
    model = connect(server)
    asked = [Question(0, "a", ("Yes",)), Question(1, "b", ("Yes",))]
    model.likelihood(encode_grey(model), asked)
    assert model.usage == Usage(2, 60, 0, 2)
    others: list[Usage] = []
    thread = threading.Thread(target=lambda: others.append(model.usage))
    thread.start()
    thread.join()
    assert others == [Usage()]


# In a sweep


def make_sweep_arguments(server: Server) -> tuple[str, ...]:
    service = (f"models.vqa.endpoint={server.url}", f"models.vqa.key_variable={KEY_VARIABLE}")
    return ("metric=[vqascore]", "model@models.vqa=api", "models.vqa.checkpoint=judge", *service)


def test_a_service_can_be_the_vqa_model_of_a_sweep(server: Server, tmp_path: Path) -> None:
    def answer_request(number: int, body: dict[str, Any]) -> Answer:
        red = np.asarray(decode_image(body).convert("RGB"), dtype=float)[..., 0].mean()
        return make_token_completion(("No", -0.2), ("Yes", -red / 255))

    server.script, server.trial = answer_request, make_token_completion(("Yes", -0.1))
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=4)
    planned = plan_sweep(make_sweep_config(folder, tmp_path / "store", *make_sweep_arguments(server)))
    finished = run_sweep(planned, lambda progress: None)
    scores = pq.read_table(Path(finished.folder) / "scores.parquet").to_pylist()
    expected = {
        round(math.exp(-np.asarray(decode_image(body), dtype=float)[..., 0].mean() / 255), 6) for body in server.bodies
    }
    assert {round(row["score"], 6) for row in scores} == expected
    assert len(server.bodies) == 4
    texts = {body["messages"][0]["content"][1]["text"] for body in server.bodies}
    assert all(text.startswith("Does this figure show") and text.endswith("Please answer Yes or No.") for text in texts)
    assert find_vqa_profile(planned.config.models["vqa"]) == openai.OPENAI_PROFILE


def test_a_likelihood_that_a_service_does_not_report_is_a_row_without_a_score(server: Server, tmp_path: Path) -> None:
    server.script = lambda number, body: (
        make_token_completion(("I", -0.2)) if number else make_token_completion(("Yes", -0.5))
    )
    server.trial = make_token_completion(("Yes", -0.1))
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=4)
    finished = run_sweep(
        plan_sweep(make_sweep_config(folder, tmp_path / "store", *make_sweep_arguments(server))), lambda progress: None
    )
    scores = [row["score"] for row in pq.read_table(Path(finished.folder) / "scores.parquet").to_pylist()]
    assert sorted(score for score in scores if score is not None) == [pytest.approx(math.exp(-0.5))]
    kinds = {error["kind"] for error in finished.results.read_errors().to_pylist()}
    assert (scores.count(None), kinds) == (3, {"no_likelihood"})


def test_a_spent_quota_costs_a_sweep_a_few_requests_and_the_next_sweep_continues(
    server: Server, tmp_path: Path
) -> None:
    spent = Answer(429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}})
    server.script = lambda number, body: make_token_completion(("Yes", -0.5)) if number < 4 else spent
    server.trial = make_token_completion(("Yes", -0.1))
    folder = write_benchmark(tmp_path / "bench", ["atlas", "flint"], count=11)
    few = ("shard_rows=4", "max_failed=1", "models.vqa.concurrency=2", "models.vqa.max_retries=0")
    config = make_sweep_config(folder, tmp_path / "store", *make_sweep_arguments(server), *few)
    errors = run_sweep(plan_sweep(config), lambda progress: None).results.read_errors().to_pylist()
    assert {(error["kind"], error["retryable"]) for error in errors} == {("quota_spent", True)}
    assert len(errors) == 22 - 4 and len(server.bodies) < 4 + 6, "one request per process, and those already sent"
    server.script = lambda number, body: make_token_completion(("Yes", -0.5))
    asked_before = len(server.bodies)
    finished = run_sweep(plan_sweep(config), lambda progress: None)
    assert not finished.results.n_null and len(server.bodies) == asked_before + 22 - 4

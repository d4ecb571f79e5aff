"""A chat endpoint that is slow, busy, broken or strange only affects its own rows, and the API key is never shown."""

import gzip
import json
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from plumbline.operators.base.errors import ConfigError, ModelError, RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import Call, Generation, Message, Request
from plumbline.operators.models.families import make_model_config, openai
from plumbline.operators.models.families.openai import RequestPacer
from plumbline.operators.models.loading import load, preflight
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.models.service_config import Prices
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


def make_request(text: str = "Is it?", **options: Any) -> Request:
    return Request((Message("user", text),), **{"max_tokens": 20} | options)


def take_single(replies: list[Generation | RowError]) -> Generation | RowError:
    (reply,) = replies
    return reply


# Requests and replies


def test_a_request_contains_all_of_its_options(server: Server) -> None:
    turns = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    connect(server).generate([Request(turns, 7, 0.5, 3, ("\n\n", "END"), json.dumps(schema))])
    assert server.bodies == [
        {
            "model": "judge",
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ],
            "max_tokens": 7,
            "temperature": 0.5,
            "seed": 3,
            "stop": ["\n\n", "END"],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "reply", "strict": True, "schema": schema},
            },
        }
    ]
    assert server.keys == [f"Bearer {KEY}"]


def test_a_plain_request_contains_only_the_basic_arguments(server: Server) -> None:
    connect(server).generate([make_request()])
    assert set(server.bodies[0]) == {"model", "messages", "max_tokens", "temperature", "seed"}


def test_token_counts_come_from_the_endpoint(server: Server) -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 16}}
    server.script = lambda number, body: make_completion("yes", usage=usage)
    assert take_single(connect(server).generate([make_request()])) == Generation("yes", True, Usage(1, 30, 16, 4))


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None}, {"prompt_tokens_details": None}])
def test_an_endpoint_without_counts_of_tokens_is_accepted(server: Server, usage: dict[str, Any] | None) -> None:
    server.script = lambda number, body: make_completion("yes", usage=usage)
    assert take_single(connect(server).generate([make_request()])) == Generation("yes", True, Usage(1, 0, 0, 0))


def test_a_reply_truncated_at_its_limit_is_not_complete(server: Server) -> None:
    server.script = lambda number, body: make_completion("ye", reason="length")
    reply = take_single(connect(server).generate([make_request()]))
    assert isinstance(reply, Generation)
    assert (reply.text, reply.complete) == ("ye", False)


def test_a_model_that_needs_the_newer_name_of_the_limit_gets_it(server: Server) -> None:
    def answer_request(number: int, body: dict[str, Any]) -> Answer:
        if "max_tokens" in body:
            return make_error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return make_completion(str(body["max_completion_tokens"]))

    server.script = answer_request
    model = connect(server)
    replies = model.generate([make_request()]) + model.generate([make_request()])
    assert [reply.text for reply in replies if isinstance(reply, Generation)] == ["20", "20"]
    assert len(server.bodies) == 3


def test_pending_requests_get_the_newer_name_too(server: Server) -> None:
    """Eight requests with the old parameter name are sent before the first of them is refused."""
    sent = threading.Barrier(8, timeout=20)

    def answer_request(number: int, body: dict[str, Any]) -> Answer:
        if "max_tokens" in body:
            sent.wait()
            return make_error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return make_completion(str(body["max_completion_tokens"]))

    server.script = answer_request
    replies = connect(server, concurrency=8).generate([make_request(str(number)) for number in range(32)])
    assert [reply.text for reply in replies if isinstance(reply, Generation)] == ["20"] * 32
    assert len(server.bodies) == 40


# Concurrent requests


def test_replies_keep_the_order_of_the_requests_and_concurrency_is_limited(server: Server) -> None:
    def answer_request(number: int, body: dict[str, Any]) -> Answer:
        text = body["messages"][0]["content"]
        return make_completion(text)._replace(delay=0.02 * (3 - int(text) % 3))

    server.script = answer_request
    model = connect(server, concurrency=3)
    with ThreadPoolExecutor(3) as callers:
        results = list(
            callers.map(lambda first: model.generate([make_request(str(first + n)) for n in range(4)]), (0, 4, 8))
        )
    texts = [reply.text for replies in results for reply in replies if isinstance(reply, Generation)]
    assert texts == [str(number) for number in range(12)]
    assert server.most_at_once == 3


def test_a_failing_request_fails_alone(server: Server) -> None:
    def answer_request(number: int, body: dict[str, Any]) -> Answer:
        return make_error(400, "too long") if body["messages"][0]["content"] == "1" else make_completion("yes")

    server.script = answer_request
    replies = connect(server).generate([make_request(str(number)) for number in range(3)])
    assert [isinstance(reply, RowError) for reply in replies] == [False, True, False]


def test_no_requests_have_no_replies(server: Server) -> None:
    assert connect(server).generate([]) == []


# Waiting


def test_a_busy_endpoint_is_asked_again_after_the_delay_it_names(server: Server) -> None:
    busy = make_error(429, "slow down", **{"Retry-After": "1"})
    server.script = lambda number, body: busy if number == 0 else make_completion("yes")
    assert isinstance(take_single(connect(server).generate([make_request()])), Generation)
    assert server.times[1] - server.times[0] >= 0.9


def test_a_broken_endpoint_is_asked_up_to_the_limit_of_retries(server: Server) -> None:
    server.script = lambda number, body: make_error(500)
    connect(server, max_retries=1).generate([make_request()])
    assert len(server.bodies) == 2


def test_a_missing_endpoint_is_reported_as_unreachable(server: Server) -> None:
    model = connect(server, max_retries=0)
    server.close()
    reply = take_single(model.generate([make_request()]))
    assert isinstance(reply, RowError)
    assert (reply.kind, reply.retryable) == ("model_unavailable", True)


# Answers that are not replies


MALFORMED_ANSWERS = {
    "half of JSON": Answer(body=b'{"choices": [{"mess'),
    "binary": Answer(body=b"\xff\xfe\x00"),
    "a page": Answer(body=b"<html>sign in</html>", headers=(("Content-Type", "text/html"),)),
    "nothing": Answer(body=b""),
    "null": Answer(body=b"null"),
    "a list": Answer(body=b"[1]"),
    "no choices": Answer(body=b'{"choices": []}'),
    "null choices": Answer(body=b'{"choices": null}'),
    "other fields": Answer(body=b'{"error": "overloaded"}'),
    "a choice of text": Answer(body=b'{"choices": ["yes"]}'),
    "a choice without message": Answer(body=b'{"choices": [{"index": 0}]}'),
}
LATE_ANSWER = make_completion("late")._replace(delay=0.6)
REPLY_START = b'{"choices": [{"message": {"role": "assistant", "content": "'
NESTED_REPLY = REPLY_START + b'yes", "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}]}"
TRICKLING_ANSWER = Answer(body=REPLY_START, endless=b"y")
UNBOUNDED_ANSWERS: dict[str, tuple[Answer, str]] = {
    "an answer without end": (Answer(body=REPLY_START, endless=b"yes " * 250_000), "of more than 16000000 bytes"),
    "an error without end": (Answer(400, REPLY_START, endless=b"no " * 250_000), "of more than 16000000 bytes"),
    "an event stream without end": (
        Answer(headers=(("Content-Type", "text/event-stream"),), endless=b"data: {}\n\n" * 100_000),
        "of more than 16000000 bytes",
    ),
    "one that ends too late, byte by byte": (TRICKLING_ANSWER, "did not answer within 0.15 s, the model's timeout"),
    "one that unpacks to more": (
        Answer(body=gzip.compress(b" " * 1_000_000), headers=(("Content-Encoding", "gzip"),)),
        "compressed its answer (gzip), though it was asked not to",
    ),
    "one that nests": (Answer(body=NESTED_REPLY), "returned an answer that nests too deeply"),
}
EXPECTED_ERRORS: dict[str, tuple[Answer, str, bool, str]] = {
    **{name: (answer, "model_unavailable", True, "") for name, answer in MALFORMED_ANSWERS.items()},
    **{
        f"status {status}": (make_error(status, f"quota of {KEY} is used up"), "model_unavailable", True,
                             f"{status} (quota of *** is used up)")
        for status in (408, 409, 429, 500, 503, 529)
    },
    **{
        f"status {status}": (make_error(status, f"the prompt is too long; your key was {KEY}"), "request_refused",
                             False, "the prompt is too long")
        for status in (400, 413, 422)
    },
    **{name: (answer, "model_unavailable", True, words) for name, (answer, words) in UNBOUNDED_ANSWERS.items()},
    "late": (LATE_ANSWER, "model_unavailable", True,
             "did not answer within 0.15 s, the model's timeout (APITimeoutError)"),
    "no text": (make_completion(""), "empty_reply", True, "returned no text"),
    "null text": (make_completion(None), "empty_reply", True, "returned no text"),
    "a call of a tool": (make_completion(None, reason="tool_calls"), "empty_reply", True, "finish_reason=tool_calls"),
    "all reasoning": (make_completion("", reason="length"), "empty_reply", True, "finish_reason=length): it was cut"),
    "a refusal": (make_completion(None, refusal="I will not"), "reply_refused", False, "I will not"),
    "a filter": (make_completion("half", reason="content_filter"), "reply_refused", False, "content filter"),
}  # fmt: skip
"""Endpoint answers by name, each with the expected error of the row.

An error is given by its kind, by True if it is retryable, and by a fragment of its message.
"""


@pytest.mark.parametrize("name", EXPECTED_ERRORS)
def test_an_answer_that_is_not_a_reply_is_an_error_that_does_not_show_the_key(server: Server, name: str) -> None:
    answer, kind, retryable, words = EXPECTED_ERRORS[name]
    server.script = lambda number, body: answer
    timeout = {"timeout": 0.15} if answer in (LATE_ANSWER, TRICKLING_ANSWER) else {}
    reply = take_single(connect(server, max_retries=0, **timeout).generate([make_request()]))
    assert isinstance(reply, RowError)
    assert (reply.kind, reply.retryable) == (kind, retryable)
    assert words in reply.message and KEY not in reply.message
    assert len(server.bodies) == 1


def test_no_more_requests_are_sent_after_the_quota_is_spent(server: Server) -> None:
    spent = {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota"}

    def answer_request(number: int, body: dict[str, Any]) -> Answer:
        return make_completion("yes") if number < 5 else Answer(429, {"error": spent})

    server.script = answer_request
    replies = connect(server, concurrency=3, max_retries=0).generate(
        [make_request(str(number)) for number in range(30)]
    )
    errors = [reply for reply in replies if isinstance(reply, RowError)]
    assert len(errors) == 25 and len(server.bodies) <= 5 + 3
    assert len(set(errors)) == 1 and (errors[0].kind, errors[0].retryable) == ("quota_spent", True)
    assert "You exceeded your current quota" in errors[0].message


def test_an_account_without_credit_is_tried_again_after_a_while(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script = lambda number, body: (
        make_error(402, "Insufficient Balance") if number == 0 else make_completion("yes")
    )
    model = connect(server, concurrency=1)
    assert [isinstance(reply, RowError) for reply in model.generate([make_request(), make_request()])] == [True, True]
    assert len(server.bodies) == 1
    monkeypatch.setattr(openai, "NO_QUOTA_SECONDS", 0.0)
    assert take_single(model.generate([make_request()])) == Generation("yes", True, Usage(1))


# The key


def test_a_key_that_is_not_secret_is_not_removed_from_messages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "k")
    server.script = lambda number, body: make_error(400, "the token limit is 4k tokens; key k is known")
    reply = take_single(connect(server).generate([make_request()]))
    assert isinstance(reply, RowError)
    assert reply.message.endswith("the token limit is 4k tokens; key *** is known")


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_the_run_and_is_not_shown(
    server: Server, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.script = lambda number, body: make_error(status, f"Incorrect API key provided: {KEY}")
    with pytest.raises(
        ModelError, match=f"answered {status} for the key in the environment variable {KEY_VARIABLE}"
    ) as error:
        connect(server, concurrency=1).generate([make_request() for _ in range(5)])
    assert KEY not in str(error.value)
    assert error.value.__suppress_context__
    assert KEY not in caplog.text
    assert len(server.bodies) < 5, "requests that can only fail are not sent"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_permanent_failure_ends_the_run_with_the_services_own_message(server: Server, status: int) -> None:
    server.script = lambda number, body: make_error(status, f"not for {KEY}, ask your admin")
    with pytest.raises(ModelError, match=rf"answered {status} .*\(not for \*\*\*, ask your admin\).*'judge'"):
        connect(server).generate([make_request()])


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_key_is_reported_when_the_model_is_loaded(
    server: Server, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv(KEY_VARIABLE) if value is None else monkeypatch.setenv(KEY_VARIABLE, value)
    with pytest.raises(ModelError, match=f"{KEY_VARIABLE} is not set"):
        connect(server)
    assert server.bodies == []


def test_the_key_is_not_part_of_a_models_identity(server: Server) -> None:
    config = make_model_config(family="openai", checkpoint="judge", endpoint=server.url, key_variable=KEY_VARIABLE)
    model = resolve_model(config, on_gpu=False)
    assert KEY not in repr(model)
    own = {"family": "openai", "model": "judge", "endpoint": server.url, "label": None}
    assert model.list_key_properties() == own | {"version": 1, "kind": "openai", "image_format": "png"}
    assert server.bodies == [], "resolving sends no request"


@pytest.mark.parametrize("endpoint", [f"https://user:{KEY}@host/v1", f"https://host/v1?key={KEY}"])
def test_an_endpoint_with_a_secret_in_it_is_refused_without_repeating_it(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="without credentials or query") as error:
        make_model_config(family="openai", checkpoint="judge", endpoint=endpoint)
    assert KEY not in str(error.value)


def test_a_key_given_instead_of_its_variables_name_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigError, match="expected the name of an environment variable") as error:
        make_model_config(family="openai", checkpoint="judge", key_variable=KEY)
    assert KEY not in str(error.value)


def test_the_driver_pins_an_endpoint_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    config = make_model_config(family="openai", checkpoint="judge", key_variable=KEY_VARIABLE, revision="2026-11")
    model = resolve_model(config, on_gpu=False)
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert (model.list_key_properties()["endpoint"], model.list_key_properties()["label"]) == (server.url, "2026-11")
    assert isinstance(take_single(list(load(model, "generate").generate([make_request()]))), Generation)
    assert KEY_VARIABLE in os.environ


@pytest.mark.parametrize(
    "option", [{"timeout": 9.0}, {"requests_per_minute": 9.0}, {"prices": Prices(read=1, written=2)}]
)
def test_options_of_a_service_are_refused_for_local_models_and_are_not_in_the_key(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="this option belongs to openai"):
        make_model_config(family="causal_lm", checkpoint="folder", **option)
    plain, set_otherwise = (
        resolve_model(make_model_config(family="openai", checkpoint="judge", **options), on_gpu=False)
        for options in ({}, option)
    )
    assert plain.list_key_properties() == set_otherwise.list_key_properties()


# The pace


def test_requests_are_evenly_spaced() -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = RequestPacer(120, clock=lambda: now[0], sleep=sleep)
    for _ in range(3):
        pace.wait()
    now[0] += 10
    pace.wait()
    assert slept == [0.5, 0.5]  # the first request does not wait, nor does a late one


def test_every_attempt_waits_for_its_turn(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    class CountingPacer(RequestPacer):
        def __init__(self, per_minute: float) -> None:
            super().__init__(per_minute, sleep=waits.append)
            self.per_minute = per_minute

        def wait(self) -> None:
            waits.append(self.per_minute)

    monkeypatch.setattr(openai, "RequestPacer", CountingPacer)
    server.script = lambda number, body: make_error(503) if number == 0 else make_completion("yes")
    connect(server, requests_per_minute=30.0).generate([make_request()])
    assert waits == [30.0, 30.0] and len(server.bodies) == 2


# Before a run


def test_a_preflight_is_one_request_in_the_form_of_the_call(server: Server) -> None:
    server.script = lambda number, body: (
        make_token_completion(("yes", -0.1)) if "logprobs" in body else make_completion("yes")
    )
    model = connect(server)
    for call in ("generate", "generate_from_images", "likelihood"):
        model.preflight(call)  # type: ignore[arg-type]
    text, image, likelihood = server.bodies
    assert isinstance(text["messages"][0]["content"], str) and "top_logprobs" not in text
    assert image["messages"][0]["content"][0]["type"] == "image_url" and likelihood["top_logprobs"] == 20
    assert {body["max_tokens"] for body in server.bodies} == {1}


@pytest.mark.parametrize(
    ("call", "answer", "problem"),
    [
        (
            "generate",
            make_error(401, "bad key"),
            f"answered 401 for the key in the environment variable {KEY_VARIABLE}",
        ),
        ("generate", make_error(404, "no such model"), r"answered 404 \(no such model\)"),
        ("generate", make_error(503, "down"), r"answered 503 \(down\), with max_retries 0; the sweep has not started"),
        ("generate", Answer(body=b"<html>"), "the sweep has not started"),
        ("likelihood", make_completion("yes"), "returned no top_logprobs; use a model, or a service, that does"),
    ],
)
def test_a_service_that_cannot_answer_is_reported_before_anything_is_computed(
    server: Server, call: Call, answer: Answer, problem: str
) -> None:
    server.script = lambda number, body: answer
    model = make_model_config(
        family="openai", checkpoint="judge", endpoint=server.url, key_variable=KEY_VARIABLE, max_retries=0
    )
    with pytest.raises(ModelError, match=problem):
        preflight(resolve_model(model, on_gpu=False), call)


def test_the_preflight_accepts_a_model_that_does_not_say_yes(server: Server) -> None:
    server.script = lambda number, body: make_completion(None, refusal="no")
    connect(server).preflight("generate")
    assert len(server.bodies) == 1, "the refusal is an answer, so the request is not repeated"


# Prices


def test_tokens_from_the_prefix_cache_have_their_own_price() -> None:
    usage = Usage(2, 3_000_000, 1_000_000, 500_000)
    assert Prices(read=2, written=10).compute_cost(usage) == 11
    assert Prices(read=2, written=10, cached=0.5).compute_cost(usage) == 9.5
    with pytest.raises(ConfigError, match=r"prices\.written: expected 0 or more, got -1"):
        Prices(read=1, written=-1)

"""On each wire, the client and the service agree on requests and replies."""

from typing import Any

import pytest

from plumbline.operators.base.errors import RowError
from plumbline.plugins.reward_server.wires.table import WIRES
from plumbline.plugins.reward_server.wires.wire import (
    BadReply,
    BadRequest,
    MetricAnswer,
    Reply,
    ScoreRequest,
    Served,
    Wire,
    as_json,
)

LOST = RowError("corrupt_image", "expected an image; generate it again")
EVERY_WIRE = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


def served_of(wire: Wire) -> Served:
    names = ("reward",) if wire.rewards_page is None else ("first", "second")
    return Served(dict.fromkeys(names, "recipe"), names[0], frozenset({"first"}))


def requests_of(wire: Wire) -> list[ScoreRequest]:
    metrics = tuple(served_of(wire).metrics)
    count = wire.images_per_request or 3
    return [ScoreRequest((bytes([place]),), f"a prompt, [{place}]: é\u4e2d", metrics) for place in range(count)]


@EVERY_WIRE
def test_what_a_client_asks_is_what_the_service_reads(wire: Wire) -> None:
    requests, served = requests_of(wire), served_of(wire)
    assert wire.read(wire.parse(wire.ask(requests), wire.media), served) == requests
    video = [requests[0]._replace(images=(b"first", b"second"))]
    try:
        body = wire.ask(video)
    except BadRequest:
        return
    assert wire.read(wire.parse(body, wire.media), served) == video


@EVERY_WIRE
def test_questions_reach_the_service_or_are_refused_by_the_client(wire: Wire) -> None:
    served = served_of(wire)._replace(needs={"questions": frozenset(served_of(wire).metrics)})
    requests = [one._replace(questions=[["Is there a cat?", "Yes"]]) for one in requests_of(wire)]
    try:
        body = wire.ask(requests)
    except BadRequest:
        return
    read = wire.read(wire.parse(body, wire.media), served)
    assert [one.questions for one in read] == [one.questions for one in requests]


@EVERY_WIRE
@pytest.mark.parametrize("sources", [(b"before",), (b"first", b"second"), ()])
def test_sources_reach_the_service_or_are_refused_by_the_client(wire: Wire, sources: tuple[bytes, ...]) -> None:
    """An image has no, one or several sources; the client refuses them if its wire cannot carry them."""
    served = served_of(wire)._replace(needs={"sources": frozenset(served_of(wire).metrics)})
    requests = requests_of(wire)
    requests = [requests[0]._replace(sources=sources), *(one._replace(sources=(b"other",)) for one in requests[1:])]
    try:
        body = wire.ask(requests)
    except BadRequest as refusal:
        assert "sources" in str(refusal)
        return
    assert wire.read(wire.parse(body, wire.media), served) == requests


@EVERY_WIRE
def test_what_the_service_answers_is_what_a_client_is_told(wire: Wire) -> None:
    """Replies contain rewards or scores, depending on the wire; a null stays a null and keeps its reason."""
    requests, served = requests_of(wire), served_of(wire)
    answers = [{name: MetricAnswer(0.25 * place) for name in one.metrics} for place, one in enumerate(requests)]
    sign = -1 if wire.gives_rewards else 1
    received = wire.read_reply(wire.answer(requests, answers, served), requests)
    for image_answers, sent in zip(received, answers, strict=True):
        for name, expected in sent.items():
            factor = sign if name in served.lower_is_better else 1
            assert image_answers[name] == MetricAnswer(factor * (expected.score or 0.0))
    answers[-1] = dict.fromkeys(answers[-1], MetricAnswer(None, LOST))
    for answer in wire.read_reply(wire.answer(requests, answers, served), requests)[-1].values():
        assert answer.score is None and answer.error is not None and "corrupt_image" in str(answer.error)


@EVERY_WIRE
@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_a_refusal_is_a_null_for_every_image(wire: Wire, status: int) -> None:
    requests = requests_of(wire)
    for reply in (wire.refuse(status, "not now"), Reply(status, b"<html>a proxy's own page</html>")):
        for answer in (answer for of_image in wire.read_reply(reply, requests) for answer in of_image.values()):
            assert answer.score is None and answer.error is not None
            assert f"HTTP {status}" in answer.error.message and answer.error.retryable == (status in (429, 503))


@EVERY_WIRE
@pytest.mark.parametrize("document", [None, 7, [], {}, {"rewards": [1.0]}, {"scores": ["1.0"] * 3, "errors": [{}] * 3}])
def test_a_reply_of_another_form_is_said_to_be_one(wire: Wire, document: Any) -> None:
    """This includes replies with more or fewer numbers than images, and with text instead of numbers."""
    with pytest.raises(BadReply, match=f"wire {wire.name}"):
        wire.read_reply(as_json(document), requests_of(wire))

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
    make_json_reply,
)

CORRUPT_ERROR = RowError("corrupt_image", "expected an image; generate it again")
parametrize_wires = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


def make_served(wire: Wire) -> Served:
    names = ("reward",) if wire.rewards_page is None else ("first", "second")
    return Served(dict.fromkeys(names, "recipe"), names[0], frozenset({"first"}))


def make_requests(wire: Wire) -> list[ScoreRequest]:
    metrics = tuple(make_served(wire).metrics)
    count = wire.images_per_request or 3
    return [ScoreRequest((bytes([place]),), f"a prompt, [{place}]: é\u4e2d", metrics) for place in range(count)]


@parametrize_wires
def test_the_service_reads_the_same_requests_that_a_client_sends(wire: Wire) -> None:
    requests, served = make_requests(wire), make_served(wire)
    assert wire.read(wire.parse(wire.ask(requests), wire.media), served) == requests
    video = [requests[0]._replace(images=(b"first", b"second"))]
    try:
        body = wire.ask(video)
    except BadRequest:
        return
    assert wire.read(wire.parse(body, wire.media), served) == video


@parametrize_wires
def test_questions_reach_the_service_or_are_refused_by_the_client(wire: Wire) -> None:
    served = make_served(wire)._replace(needs={"questions": frozenset(make_served(wire).metrics)})
    requests = [one._replace(questions=[["Is there a cat?", "Yes"]]) for one in make_requests(wire)]
    try:
        body = wire.ask(requests)
    except BadRequest:
        return
    read = wire.read(wire.parse(body, wire.media), served)
    assert [one.questions for one in read] == [one.questions for one in requests]


@parametrize_wires
@pytest.mark.parametrize("sources", [(b"before",), (b"first", b"second"), ()])
def test_sources_reach_the_service_or_are_refused_by_the_client(wire: Wire, sources: tuple[bytes, ...]) -> None:
    """An image may have no source, one, or several; the client refuses sources that its wire cannot carry."""
    served = make_served(wire)._replace(needs={"sources": frozenset(make_served(wire).metrics)})
    requests = make_requests(wire)
    requests = [requests[0]._replace(sources=sources), *(one._replace(sources=(b"other",)) for one in requests[1:])]
    try:
        body = wire.ask(requests)
    except BadRequest as refusal:
        assert "sources" in str(refusal)
        return
    assert wire.read(wire.parse(body, wire.media), served) == requests


@parametrize_wires
def test_a_client_reads_the_same_answers_that_the_service_sends(wire: Wire) -> None:
    """Replies contain rewards or scores, depending on the wire; a null stays a null and keeps its reason."""
    requests, served = make_requests(wire), make_served(wire)
    answers = [{name: MetricAnswer(0.25 * place) for name in one.metrics} for place, one in enumerate(requests)]
    sign = -1 if wire.gives_rewards else 1
    received = wire.read_reply(wire.answer(requests, answers, served), requests)
    for image_answers, sent in zip(received, answers, strict=True):
        for name, expected in sent.items():
            factor = sign if name in served.lower_is_better else 1
            assert image_answers[name] == MetricAnswer(factor * (expected.score or 0.0))
    answers[-1] = dict.fromkeys(answers[-1], MetricAnswer(None, CORRUPT_ERROR))
    for answer in wire.read_reply(wire.answer(requests, answers, served), requests)[-1].values():
        assert answer.score is None and answer.error is not None and "corrupt_image" in str(answer.error)


@parametrize_wires
@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_a_refused_request_gives_null_for_every_image(wire: Wire, status: int) -> None:
    requests = make_requests(wire)
    for reply in (wire.refuse(status, "not now"), Reply(status, b"<html>a proxy's own page</html>")):
        for answer in (answer for of_image in wire.read_reply(reply, requests) for answer in of_image.values()):
            assert answer.score is None and answer.error is not None
            assert f"HTTP {status}" in answer.error.message and answer.error.retryable == (status in (429, 503))


@parametrize_wires
@pytest.mark.parametrize("document", [None, 7, [], {}, {"rewards": [1.0]}, {"scores": ["1.0"] * 3, "errors": [{}] * 3}])
def test_a_reply_that_does_not_match_the_wire_is_an_error(wire: Wire, document: Any) -> None:
    """This includes replies with more or fewer numbers than images, and with text instead of numbers."""
    with pytest.raises(BadReply, match=f"wire {wire.name}"):
        wire.read_reply(make_json_reply(document), make_requests(wire))

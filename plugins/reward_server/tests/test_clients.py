"""A wire's two halves: what a client of it asks is what a service reads, and what is answered is what it is told."""

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
    names = ("reward",) if wire.roster is None else ("first", "second")
    return Served(dict.fromkeys(names, "recipe"), names[0], frozenset({"first"}))


def asked_of(wire: Wire) -> list[ScoreRequest]:
    metrics = tuple(served_of(wire).metrics)
    count = wire.images_per_request or 3
    return [ScoreRequest((bytes([place]),), f"a prompt, [{place}]: é\u4e2d", metrics) for place in range(count)]


@EVERY_WIRE
def test_what_a_client_asks_is_what_the_service_reads(wire: Wire) -> None:
    asked, served = asked_of(wire), served_of(wire)
    assert wire.read(wire.parse(wire.ask(asked), wire.media), served) == asked
    video = [asked[0]._replace(images=(b"first", b"second"))]
    try:
        body = wire.ask(video)
    except BadRequest:
        return
    assert wire.read(wire.parse(body, wire.media), served) == video


@EVERY_WIRE
def test_questions_reach_the_service_or_are_refused_by_the_client(wire: Wire) -> None:
    served = served_of(wire)._replace(needs={"questions": frozenset(served_of(wire).metrics)})
    asked = [one._replace(questions=[["Is there a cat?", "Yes"]]) for one in asked_of(wire)]
    try:
        body = wire.ask(asked)
    except BadRequest:
        return
    read = wire.read(wire.parse(body, wire.media), served)
    assert [one.questions for one in read] == [one.questions for one in asked]


@EVERY_WIRE
@pytest.mark.parametrize("sources", [(b"before",), (b"first", b"second"), ()])
def test_sources_reach_the_service_or_are_refused_by_the_client(wire: Wire, sources: tuple[bytes, ...]) -> None:
    """Of one image of several; a wire that has no place for them says so."""
    served = served_of(wire)._replace(needs={"sources": frozenset(served_of(wire).metrics)})
    asked = asked_of(wire)
    asked = [asked[0]._replace(sources=sources), *(one._replace(sources=(b"other",)) for one in asked[1:])]
    try:
        body = wire.ask(asked)
    except BadRequest as refusal:
        assert "sources" in str(refusal)
        return
    assert wire.read(wire.parse(body, wire.media), served) == asked


@EVERY_WIRE
def test_what_the_service_answers_is_what_a_client_is_told(wire: Wire) -> None:
    """Rewards where the wire has them; a null is a null with its reason, and never a number."""
    asked, served = asked_of(wire), served_of(wire)
    answers = [{name: MetricAnswer(0.25 * place) for name in one.metrics} for place, one in enumerate(asked)]
    sign = -1 if wire.gives_rewards else 1
    told = wire.understand(wire.answer(asked, answers, served), asked)
    for of_image, answer in zip(told, answers, strict=True):
        for name, expected in answer.items():
            assert of_image[name] == MetricAnswer((sign if name in served.falling else 1) * (expected.score or 0.0))
    answers[-1] = dict.fromkeys(answers[-1], MetricAnswer(None, LOST))
    for answer in wire.understand(wire.answer(asked, answers, served), asked)[-1].values():
        assert answer.score is None and answer.error is not None and "corrupt_image" in str(answer.error)


@EVERY_WIRE
@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_a_refusal_is_a_null_for_every_image(wire: Wire, status: int) -> None:
    asked = asked_of(wire)
    for reply in (wire.refuse(status, "not now"), Reply(status, b"<html>a proxy's own page</html>")):
        for answer in (answer for of_image in wire.understand(reply, asked) for answer in of_image.values()):
            assert answer.score is None and answer.error is not None
            assert f"HTTP {status}" in answer.error.message and answer.error.retryable == (status in (429, 503))


@EVERY_WIRE
@pytest.mark.parametrize("document", [None, 7, [], {}, {"rewards": [1.0]}, {"scores": ["1.0"] * 3, "errors": [{}] * 3}])
def test_a_reply_of_another_form_is_said_to_be_one(wire: Wire, document: Any) -> None:
    """Also where the numbers are not as many as the images, or are text."""
    with pytest.raises(BadReply, match=f"wire {wire.name}"):
        wire.understand(as_json(document), asked_of(wire))

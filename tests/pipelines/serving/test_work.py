"""A client's data costs work in proportion to its length at most, and no more than a limit allows."""

import base64
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from plumbline.operators.errors import PlumblineError
from plumbline.operators.wires.flow_factory import ComputeForm
from plumbline.operators.wires.openai_chat import ChatForm
from plumbline.operators.wires.score import ScoreForm
from plumbline.operators.wires.table import WIRES
from plumbline.operators.wires.unirl import RequestsForm
from plumbline.operators.wires.wire import BadRequest, Served
from plumbline.pipelines.rating.app import parse_answer
from plumbline.pipelines.rating.study import Given, RefusedAnswer
from plumbline.pipelines.viewing.notes import GivenNote, parse_note
from tests.work import count_work

ROOT = Path(__file__).parents[3]

SERVED = Served({"align": "recipe-1", "brightness": "recipe-2"}, "align")
IMAGE = base64.b64encode(b"an image").decode()
FORM = "multipart/form-data; boundary=b"
HEAD = b'Content-Disposition: form-data; name="images"'
LINEAR = frozenset({r"^(?P<name>\w+)\*((?P<num>[0-9]+)\*?)?$", r"^(From |[\041-\071\073-\176]*:|[\t ])"})
"""Regular expressions of the standard library's `email`; each reads a text at most once, from its beginning."""


def chat(text: str) -> bytes:
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}]
    return json.dumps({"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]}).encode()


def join_parts(*parts: bytes) -> bytes:
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + b"--b--"


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def scored(**fields: Any) -> bytes:
    return as_json({"images": [IMAGE], "prompts": ["p"], **fields})


def unirl(*turns: Mapping[str, Any], **fields: Any) -> bytes:
    return as_json({"requests": [{"history": [*turns], "required_rewards": ["align"], **fields}]})


TURN = {"text": "p", "image_b64": IMAGE}
BODIES: Mapping[str, tuple[str, str, Callable[[int], bytes]]] = {
    "score images": ("score", "", lambda n: scored(images=[IMAGE] * n, prompts=["p"] * n)),
    "score image": ("score", "", lambda n: scored(images=[IMAGE * n])),
    "score frames": ("score", "", lambda n: scored(images=[[IMAGE] * n])),
    "score prompt": ("score", "", lambda n: scored(prompts=["p" * n])),
    "score metrics": ("score", "", lambda n: scored(metrics=["align"] * n)),
    "score metric": ("score", "", lambda n: scored(metrics=["align" * n])),
    "score questions": ("score", "", lambda n: scored(questions=[[["Is it?", "Yes"]] * n])),
    "score sources": ("score", "", lambda n: scored(sources=[[IMAGE] * n])),
    "score unknown fields": ("score", "", lambda n: scored(**{f"x{place}": 1 for place in range(n)})),
    "score depth": ("score", "", lambda n: b"[" * n + b"]" * n),
    "parts": ("score", FORM, lambda n: join_parts(*[HEAD + b"\r\n\r\nx"] * n)),
    "part": ("score", FORM, lambda n: join_parts(HEAD + b"\r\n\r\n" + b"\r\n--" * n)),
    "part head": ("score", FORM, lambda n: join_parts(b"content-disposition:" * n + b"\r\n\r\nx")),
    "part head parameters": ("score", FORM, lambda n: join_parts(HEAD + b";" * n + b"\r\n\r\nx")),
    "part names": ("score", FORM, lambda n: join_parts(*(b"%s.%d\r\n\r\nx" % (HEAD[:-1], m) for m in range(n)))),
    "boundary": ("score", FORM + "b" * 200_000, lambda n: join_parts(b"x" * n)),
    "unirl requests": ("unirl", "", lambda n: as_json({"requests": [json.loads(unirl(TURN))["requests"][0]] * n})),
    "unirl history": ("unirl", "", lambda n: unirl(*[TURN] * n)),
    "unirl text": ("unirl", "", lambda n: unirl({**TURN, "text": "p" * n})),
    "unirl rewards": ("unirl", "", lambda n: unirl(TURN, required_rewards=["align"] * n)),
    "unirl reward": ("unirl", "", lambda n: unirl(TURN, required_rewards=["align" * n])),
    "unirl metadata": ("unirl", "", lambda n: unirl(TURN, metadata={"vqa_list": [["Is it?", "Yes"]] * n})),
    "unirl identity": ("unirl", "", lambda n: unirl(TURN, sample_id="s" * n, group_id="g" * n)),
    "compute images": ("flow_factory", "", lambda n: as_json({"prompt": ["p"] * n, "image": [IMAGE] * n})),
    "compute frames": ("flow_factory", "", lambda n: as_json({"prompt": ["p"], "video": [[IMAGE] * n]})),
    "compute columns": (
        "flow_factory",
        "",
        lambda n: as_json({"prompt": ["p"], "image": [IMAGE], "kwargs": {f"x{m}": [1] for m in range(n)}}),
    ),
    "chat caption": ("openai_chat", "", lambda n: chat("Text Caption: [" + "x" * n + "]")),
    "chat captions": ("openai_chat", "", lambda n: chat("Text Caption: [x] " * n + ".")),
    "chat messages": ("openai_chat", "", lambda n: as_json({"messages": [{"role": "user", "content": "x"}] * n})),
    "pickled images": ("pickled", "", lambda n: pickle.dumps({"images": [b"x"] * n, "prompts": ["p"] * n})),
    "pickled prompt": ("pickled", "", lambda n: pickle.dumps({"images": [b"x"], "prompts": ["p" * n]})),
    "pickled depth": ("pickled", "", lambda n: b"\x80\x04" + b"]" * n + b"a" * (n - 1) + b"."),
}


def read(wire: str, media: str, body: bytes) -> None:
    """Read a body as the service does before it asks a replica."""
    chosen = next(one for one in WIRES if one.name == wire)
    with suppress(PlumblineError):
        chosen.read(chosen.parse(body, media or "application/json"), SERVED)


Parts = tuple[str | int, ...]
"""Path of a field in a body: names, and positions in lists."""


def parts_of(form: Any, outer: Parts = ()) -> Iterator[Parts]:
    """Yield the path of each field of a form, and of the forms inside it."""
    for name, meaning in get_type_hints(form).items():
        yield (*outer, name)
        inner = (meaning, *get_args(meaning))
        yield from (
            parts
            for part in inner
            if is_dataclass(part)
            for parts in parts_of(part, (*outer, name, *((0,) if part is not meaning else ())))
        )


def with_field(body: bytes, parts: Parts, value: Any) -> bytes:
    """Return a JSON body after setting one field to another value."""
    document = json.loads(body)
    holder = document
    for part in parts[:-1]:
        holder = holder[part]
    holder[parts[-1]] = value
    return as_json(document)


def nested(n: int) -> Any:
    value: Any = []
    for _ in range(n):
        value = [value]
    return value


LONG: Mapping[str, Callable[[int], Any]] = {
    "text": lambda n: "x" * n,
    "list": lambda n: ["x"] * n,
    "mapping": lambda n: {f"x{place}": "x" for place in range(n)},
    "nesting": nested,
    "number": lambda n: 10**n,
}
NOTE = as_json({"author": "ann", "text": "a star", "tag": "other"})
ANSWER = as_json({"task_id": "0" * 16, "version": 1, "rater": "ann", "answer": 4, "seconds": 2.5})
EXAMPLES: Mapping[Any, bytes] = {
    ScoreForm: scored(),
    RequestsForm: unirl(TURN),
    ComputeForm: as_json({"prompt": ["p"], "image": [IMAGE]}),
    ChatForm: chat("p"),
    GivenNote: NOTE,
    Given: ANSWER,
}
"""A body of each form that a server reads."""
FORMS = {wire.form: wire.name for wire in WIRES if wire.form is not None}
FIELDS = [(form, parts) for form in (*FORMS, GivenNote, Given) for parts in parts_of(form)]


def read_as(form: Any, body: bytes) -> None:
    """Read a body as the server of this form does."""
    if form in FORMS:
        return read(FORMS[form], "", body)
    with suppress(PlumblineError, BadRequest, RefusedAnswer):
        parse_note(body) if form is GivenNote else parse_answer(body)
    return None


@pytest.mark.parametrize("shape", LONG)
@pytest.mark.parametrize(("form", "parts"), FIELDS, ids=[".".join(map(str, parts)) for _, parts in FIELDS])
def test_any_value_of_any_field_is_at_most_twice_the_work_at_twice_its_length(
    form: Any, parts: Parts, shape: str
) -> None:
    """The fields are those of the forms, so a new one is among them."""
    bodies = [with_field(EXAMPLES[form], parts, LONG[shape](n)) for n in (60, 120, 240)]
    works = [count_work(lambda body=body: read_as(form, body)) for body in bodies]  # type: ignore[misc]
    for work, doubled in pairwise(works):
        assert doubled.lines <= 2 * work.lines, works
    assert all(not work.patterns - LINEAR for work in works), works


def test_the_page_on_security_has_every_field_that_can_be_sent() -> None:
    page = (ROOT / "docs/security.md").read_text()
    table = page[page.index("## What a client can send") : page.index("## What is not promised")]
    named = {part for _, parts in FIELDS for part in parts if isinstance(part, str)}
    assert len(named) > 30 and [name for name in sorted(named) if f"`{name}`" not in table] == []


def test_a_name_of_any_length_is_looked_up_in_the_same_steps() -> None:
    """Similar names are looked for only if the name is short."""
    works = [count_work(lambda n=n: read("score", "", scored(metrics=["align" * n]))) for n in (400, 40_000)]  # type: ignore[misc]
    assert works[0].lines == works[1].lines
    with pytest.raises(BadRequest, match="did you mean align"):
        SERVED.wanted(["aling"])


@pytest.mark.parametrize("field", BODIES)
def test_twice_the_length_of_a_field_is_at_most_twice_the_work(field: str) -> None:
    wire, media, make = BODIES[field]
    bodies = [make(n) for n in (60, 120, 240)]
    works = [count_work(lambda body=body: read(wire, media, body)) for body in bodies]  # type: ignore[misc]
    for work, doubled in pairwise(works):
        assert doubled.lines <= 2 * work.lines, works
    assert all(not work.patterns - LINEAR for work in works), works

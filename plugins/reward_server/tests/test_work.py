"""The work that a request causes is limited, and at most proportional to the length of its data."""

import base64
import json
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

from plumbline.operators.base.errors import PlumblineError
from plumbline.plugins.reward_server.wires.flow_factory import ComputeForm
from plumbline.plugins.reward_server.wires.openai_chat import ChatForm
from plumbline.plugins.reward_server.wires.score import ScoreForm
from plumbline.plugins.reward_server.wires.table import WIRES
from plumbline.plugins.reward_server.wires.unirl import RequestsForm
from plumbline.plugins.reward_server.wires.wire import BadRequest, Served
from tests.work import (
    LONG_VALUES,
    FieldPath,
    assert_linear,
    count_work,
    find_fields_without_limit,
    list_field_paths,
    set_field,
)

SERVED = Served({"align": "recipe-1", "brightness": "recipe-2"}, "align")
ENCODED_IMAGE = base64.b64encode(b"an image").decode()
FORM_MEDIA_TYPE = "multipart/form-data; boundary=b"
PART_HEAD = b'Content-Disposition: form-data; name="images"'
LINEAR_PATTERNS = frozenset({r"^(?P<name>\w+)\*((?P<num>[0-9]+)\*?)?$", r"^(From |[\041-\071\073-\176]*:|[\t ])"})
"""Regular expressions in the standard library's `email` package that take linear time (they read a text once)."""


def make_chat(text: str) -> bytes:
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED_IMAGE}"}}]
    return json.dumps({"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]}).encode()


def join_parts(*parts: bytes) -> bytes:
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + b"--b--"


def encode_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def make_form(**fields: Any) -> bytes:
    return encode_json({"images": [ENCODED_IMAGE], "prompts": ["p"], **fields})


def make_unirl(*turns: Mapping[str, Any], **fields: Any) -> bytes:
    return encode_json({"requests": [{"history": [*turns], "required_rewards": ["align"], **fields}]})


TURN = {"text": "p", "image_b64": ENCODED_IMAGE}
BODIES: Mapping[str, tuple[str, str, Callable[[int], bytes]]] = {
    "score images": ("score", "", lambda n: make_form(images=[ENCODED_IMAGE] * n, prompts=["p"] * n)),
    "score image": ("score", "", lambda n: make_form(images=[ENCODED_IMAGE * n])),
    "score frames": ("score", "", lambda n: make_form(images=[[ENCODED_IMAGE] * n])),
    "score prompt": ("score", "", lambda n: make_form(prompts=["p" * n])),
    "score metrics": ("score", "", lambda n: make_form(metrics=["align"] * n)),
    "score metric": ("score", "", lambda n: make_form(metrics=["align" * n])),
    "score questions": ("score", "", lambda n: make_form(questions=[[["Is it?", "Yes"]] * n])),
    "score sources": ("score", "", lambda n: make_form(sources=[[ENCODED_IMAGE] * n])),
    "score unknown fields": ("score", "", lambda n: make_form(**{f"x{place}": 1 for place in range(n)})),
    "score depth": ("score", "", lambda n: b"[" * n + b"]" * n),
    "parts": ("score", FORM_MEDIA_TYPE, lambda n: join_parts(*[PART_HEAD + b"\r\n\r\nx"] * n)),
    "part": ("score", FORM_MEDIA_TYPE, lambda n: join_parts(PART_HEAD + b"\r\n\r\n" + b"\r\n--" * n)),
    "part head": ("score", FORM_MEDIA_TYPE, lambda n: join_parts(b"content-disposition:" * n + b"\r\n\r\nx")),
    "part head parameters": ("score", FORM_MEDIA_TYPE, lambda n: join_parts(PART_HEAD + b";" * n + b"\r\n\r\nx")),
    "part names": (
        "score",
        FORM_MEDIA_TYPE,
        lambda n: join_parts(*(b"%s.%d\r\n\r\nx" % (PART_HEAD[:-1], m) for m in range(n))),
    ),
    "boundary": ("score", FORM_MEDIA_TYPE + "b" * 200_000, lambda n: join_parts(b"x" * n)),
    "unirl requests": (
        "unirl",
        "",
        lambda n: encode_json({"requests": [json.loads(make_unirl(TURN))["requests"][0]] * n}),
    ),
    "unirl history": ("unirl", "", lambda n: make_unirl(*[TURN] * n)),
    "unirl text": ("unirl", "", lambda n: make_unirl({**TURN, "text": "p" * n})),
    "unirl rewards": ("unirl", "", lambda n: make_unirl(TURN, required_rewards=["align"] * n)),
    "unirl reward": ("unirl", "", lambda n: make_unirl(TURN, required_rewards=["align" * n])),
    "unirl metadata": ("unirl", "", lambda n: make_unirl(TURN, metadata={"vqa_list": [["Is it?", "Yes"]] * n})),
    "unirl identity": ("unirl", "", lambda n: make_unirl(TURN, sample_id="s" * n, group_id="g" * n)),
    "compute images": ("flow_factory", "", lambda n: encode_json({"prompt": ["p"] * n, "image": [ENCODED_IMAGE] * n})),
    "compute frames": ("flow_factory", "", lambda n: encode_json({"prompt": ["p"], "video": [[ENCODED_IMAGE] * n]})),
    "compute columns": (
        "flow_factory",
        "",
        lambda n: encode_json({"prompt": ["p"], "image": [ENCODED_IMAGE], "kwargs": {f"x{m}": [1] for m in range(n)}}),
    ),
    "chat caption": ("openai_chat", "", lambda n: make_chat("Text Caption: [" + "x" * n + "]")),
    "chat captions": ("openai_chat", "", lambda n: make_chat("Text Caption: [x] " * n + ".")),
    "chat messages": ("openai_chat", "", lambda n: encode_json({"messages": [{"role": "user", "content": "x"}] * n})),
    "pickled images": ("pickled", "", lambda n: pickle.dumps({"images": [b"x"] * n, "prompts": ["p"] * n})),
    "pickled prompt": ("pickled", "", lambda n: pickle.dumps({"images": [b"x"], "prompts": ["p" * n]})),
    "pickled depth": ("pickled", "", lambda n: b"\x80\x04" + b"]" * n + b"a" * (n - 1) + b"."),
}


def read(wire: str, media: str, body: bytes) -> None:
    """Read a request body in the same way as the service does before it calls a replica."""
    chosen = next(one for one in WIRES if one.name == wire)
    with suppress(PlumblineError):
        chosen.read(chosen.parse(body, media or "application/json"), SERVED)


EXAMPLE_FORMS: Mapping[Any, bytes] = {
    ScoreForm: make_form(),
    RequestsForm: make_unirl(TURN),
    ComputeForm: encode_json({"prompt": ["p"], "image": [ENCODED_IMAGE]}),
    ChatForm: make_chat("p"),
}
"""Example request body for each form that the service reads."""
WIRE_BY_FORM = {wire.form: wire.name for wire in WIRES if wire.form is not None}
FORM_FIELDS = [(form, parts) for form in WIRE_BY_FORM for parts in list_field_paths(form)]


@pytest.mark.parametrize("shape", LONG_VALUES)
@pytest.mark.parametrize(("form", "parts"), FORM_FIELDS, ids=[".".join(map(str, parts)) for _, parts in FORM_FIELDS])
def test_doubling_any_value_of_any_field_at_most_doubles_the_work(form: Any, parts: FieldPath, shape: str) -> None:
    """The fields are read from the request models, so new fields are included automatically."""
    example, wire = EXAMPLE_FORMS[form], WIRE_BY_FORM[form]
    assert_linear(
        lambda n: set_field(example, parts, LONG_VALUES[shape](n)), lambda body: read(wire, "", body), LINEAR_PATTERNS
    )


def test_the_security_page_states_a_limit_for_every_field() -> None:
    assert len(FORM_FIELDS) > 20 and not find_fields_without_limit([*WIRE_BY_FORM])


def test_looking_up_a_name_takes_the_same_work_whatever_its_length() -> None:
    """The error only suggests similar names if the requested name is short."""
    works = [count_work(lambda n=n: read("score", "", make_form(metrics=["align" * n]))) for n in (400, 40_000)]  # type: ignore[misc]
    assert works[0].lines == works[1].lines
    with pytest.raises(BadRequest, match="did you mean align"):
        SERVED.resolve_metrics(["aling"])


@pytest.mark.parametrize("field", BODIES)
def test_doubling_the_length_of_a_field_at_most_doubles_the_work(field: str) -> None:
    wire, media, make = BODIES[field]
    assert_linear(make, lambda body: read(wire, media, body), LINEAR_PATTERNS)

"""Requests are spread evenly over the values of the controls, and only replies that fit the request are accepted."""

import json
from collections import Counter

import pytest

from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.reply_forms import ReplyFormat
from plumbline.operators.models import calls
from plumbline.operators.stages import programs
from plumbline.plugins.benchmark_builder.generation import (
    PromptGeneration,
    PromptRequest,
    make_requests,
    read_prompt_request,
)
from plumbline.plugins.benchmark_builder.taxonomy import FieldCheck, Tag, Template
from plumbline.plugins.benchmark_builder.writer import WriterOptions

TEMPLATE = Template(
    instructions="Write captions for texts.",
    controls={"Length": ("3-8", "9-20"), "Words": ("4-9",)},
    fields=("Text", "Caption"),
    examples=({"Length": "3-8", "Words": "4-9", "Text": '"hello"', "Caption": 'a sign that says "hello"'},),
    checks=(
        FieldCheck(field="Text", characters="Length"),
        FieldCheck(field="Caption", contains="Text"),
        FieldCheck(field="Caption", words="Words"),
    ),
)
PLAIN_TEXT_TAG = Tag("render/text", "plain")
PROMPT_REQUEST = PromptRequest("render/text:plain", 2, {"Length": "3-8", "Words": "4-9"}, TEMPLATE)


def request_prompt(*replies: str, form: ReplyFormat = "text") -> tuple[str | RowError, list[calls.Request]]:
    said, asked = iter(replies), []

    def generate(requests: "list[programs.ProgramRequest]") -> list[calls.Generation]:
        asked.extend(one.request for one in requests)
        return [calls.Generation(next(said), True, Usage(1)) for _ in requests]

    program = PromptGeneration(options=WriterOptions(replies=form)).write(PROMPT_REQUEST.to_json())
    (result,) = programs.run_programs([program], generate).results  # type: ignore[arg-type]
    return result if isinstance(result, RowError) else result[0].text, asked


def test_combinations_are_equally_frequent_and_a_larger_count_keeps_the_first_requests() -> None:
    ten, four = (list(make_requests({PLAIN_TEXT_TAG: TEMPLATE}, count, {}, seed=0)) for count in (10, 4))
    assert Counter(one.values["Length"] for one in ten) == {"3-8": 5, "9-20": 5} and ten[:4] == four
    assert len({one.to_json() for one in ten}) == 10  # the store needs ten different texts
    assert [read_prompt_request(one.to_json()) for one in ten] == ten


def test_configured_controls_replace_those_of_the_template() -> None:
    asked = make_requests({PLAIN_TEXT_TAG: TEMPLATE}, 3, {"Words": ("20-40",)}, seed=0)
    assert {one.values["Words"] for one in asked} == {"20-40"}
    with pytest.raises(ConfigError, match="no template has a control 'Wrods'; controls are Length, Words"):
        list(make_requests({PLAIN_TEXT_TAG: TEMPLATE}, 3, {"Wrods": (1,)}, seed=0))


def test_a_request_has_the_form_from_the_paper_and_ends_with_the_name_of_the_first_field() -> None:
    text, (request,) = request_prompt('"go home"\nCaption: a wall with "go home" on it')
    assert text == 'a wall with "go home" on it'
    assert request.messages[0].text == (
        "Write captions for texts. This is number 2: make it unlike the examples, and unlike the others.\n\n"
        'Length: 3-8\nWords: 4-9\nText: "hello"\nCaption: a sign that says "hello"\n\n'
        "Length: 3-8\nWords: 4-9\nText:"
    )
    assert request.stop == ("\nLength:",)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (
            'Text: "go home now please"\nCaption: "go home now please" on a wall',
            "expected 3-8 characters in the Text, found 18",
        ),
        (
            'Text: "stop"\nCaption: a wall with a sign',
            "the Caption lacks the words 'stop' of Text",
        ),
        ('Text: "stop"\nCaption: "stop" sign', "expected 4-9 words in the Caption, found 2"),
        ('"stop"', "Caption is missing"),
    ],
)
def test_an_invalid_prompt_is_requested_once_more_before_it_fails(reply: str, problem: str) -> None:
    good = 'Text: "stop"\nCaption: a red sign that says "stop"'
    text, asked = request_prompt(reply, good)
    assert text == 'a red sign that says "stop"' and problem in asked[1].messages[-1].text
    text, _ = request_prompt(reply, reply)
    assert isinstance(text, RowError) and problem in text.message


def test_remarks_around_a_prompt_are_removed() -> None:
    text, _ = request_prompt('Sure!\n**Text:** "stop"\n**Caption:** a red sign that says "stop"\n\nI hope that helps.')
    assert text == 'a red sign that says "stop"'


def test_the_json_schema_requires_all_fields() -> None:
    text, (request,) = request_prompt('{"Text": "stop", "Caption": "a red sign that says \\"stop\\""}', form="json")
    assert text == 'a red sign that says "stop"'
    assert request.schema is not None and json.loads(request.schema)["required"] == ["Text", "Caption"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"examples": ({"Text": "a"},)}, "example 0 of a template: expected Length, Words, Text, Caption, got Text"),
        ({"checks": (FieldCheck(field="Txt", words="Words"),)}, "check must compare one of its fields (Text, Caption)"),
        ({"checks": (FieldCheck(field="Text"),)}, "expected exactly one of words, characters and contains, got 0"),
        ({"controls": {"Words": ()}}, "control 'Words': expected a list of values, got none"),
    ],
)
def test_an_inconsistent_template_is_refused(change: dict[str, object], problem: str) -> None:
    whole = {"instructions": "", "controls": TEMPLATE.controls, "fields": TEMPLATE.fields}
    with pytest.raises(ConfigError) as refusal:
        Template(**{**whole, **change})  # type: ignore[arg-type]
    assert problem in str(refusal.value)

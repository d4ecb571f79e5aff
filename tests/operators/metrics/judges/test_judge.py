"""Judges' replies are parsed in many formats, and only numbers on the scale become ratings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.metrics.judges.judge import (
    Scale,
    describe_form,
    fill_template,
    make_verdict_schema,
    read_json_verdict,
    read_text_verdict,
)
from plumbline.operators.metrics.metric import Rating
from plumbline.operators.metrics.writing import UnreadableReply

SCALES = (Scale("rating", 1, 100),)
TWO_SCALES = (Scale("naturalness", 0, 10), Scale("artifacts", 0, 10))


@pytest.mark.parametrize(
    "reply",
    [
        '{"rating": 85, "rationale": "It fits."}',
        '{"rating": "85", "rationale": "It fits."}',
        '{"rating": 85.0, "rationale": "It fits."}',
        '{"Rating": "85/100", "Rationale": " It\\n fits. "}',
        '{"rating": "85 out of 100", "rationale": "It fits."}',
        '```json\n{"rating": 85,\n "rationale": "It fits."}\n```',
        'Here is what I think of {it}:\n{"rating": 85, "rationale": "It fits."} Anything else?',
        '<think>{"rating": 3, "rationale": "hm"}</think>{"rating": 85, "rationale": "It fits."}',
        '{"form": {"a": 1}} {"rating": 85, "rationale": "It fits.", "more": [1, 2]}',
        '{"verdict": {"rating": 85, "rationale": "It fits."}}',
    ],
)
def test_an_object_is_found_in_any_surrounding_text(reply: str) -> None:
    verdict = read_json_verdict(reply, SCALES)
    assert (verdict.ratings, verdict.rationale) == ((Rating("rating", 85.0),), "It fits.")


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("I would say 85.", "found none"),
        ('{"rating": 85', "found none"),
        ('{"score": 85}', "no number for 'rating'"),
        ('{"rating": null}', "no number for 'rating'"),
        ('{"rating": true}', "found 'True'"),
        ('{"rating": [85]}', "expected a number"),
        ('{"rating": "good"}', "found 'good'"),
        ('{"rating": 0}', "from 1 to 100, found 0"),
        ('{"rating": 101}', "from 1 to 100, found 101"),
        ('{"rating": "8/10"}', "from 1 to 100, found 8 of 10"),
        ('{"rating": NaN}', "found none"),
        ('{"rating": 1e999}', "expected a number"),
        ('{"a":' * 5000, "found none"),
        ("", "found none"),
    ],
)
def test_a_reply_without_a_verdict_is_refused_with_the_reason(reply: str, why: str) -> None:
    with pytest.raises(UnreadableReply, match=why):
        read_json_verdict(reply, SCALES)


@pytest.mark.parametrize(
    "reply", ["7\n9\nIt looks well.", "Naturalness: 7\nArtifacts: 9\n\nIt looks\nwell.", "**7/10**\n9.\nIt looks well."]
)
def test_plain_text_has_one_number_per_line_and_then_the_reasons(reply: str) -> None:
    verdict = read_text_verdict(reply, TWO_SCALES)
    assert verdict == ((Rating("naturalness", 7), Rating("artifacts", 9)), "It looks well.")


@pytest.mark.parametrize("reply", ["7", "7 and 9", "It is fine.\n7\n9", "7\n11\nfine", "7/100\n9\nfine", ""])
def test_plain_text_without_its_numbers_is_refused(reply: str) -> None:
    with pytest.raises(UnreadableReply):
        read_text_verdict(reply, TWO_SCALES)


@given(st.text(alphabet='{}[]":,0123456789.-/ \nratingeNf', max_size=80))
def test_no_reply_gives_a_number_outside_its_scale(reply: str) -> None:
    for read in (read_json_verdict, read_text_verdict):
        try:
            (rating,) = read(reply, SCALES).ratings
        except UnreadableReply:
            continue
        assert 1 <= rating.value <= 100


def test_reasons_are_text_that_a_table_can_store() -> None:
    verdict = read_json_verdict('{"rating": 5, "rationale": "half \\ud83d of\\u0000 it"}', SCALES)
    assert verdict.rationale.encode() == b"half ? of\x00 it"


def test_the_schema_of_a_verdict_agrees_with_its_described_form() -> None:
    schema = json.loads(make_verdict_schema(TWO_SCALES))
    assert list(schema["properties"]) == schema["required"] == ["naturalness", "artifacts", "rationale"]
    assert schema["properties"]["artifacts"] == {"type": "integer", "minimum": 0, "maximum": 10}
    assert '"naturalness": <integer from 0 to 10>, "artifacts"' in describe_form("json", TWO_SCALES)
    assert "naturalness (0 to 10) and the number for artifacts (0 to 10)" in describe_form("text", TWO_SCALES)


def test_texts_are_filled_in_literally() -> None:
    assert (
        fill_template("{prompt} and {description}", prompt="{description} {}", description="x")
        == "{description} {} and x"
    )

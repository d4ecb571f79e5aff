"""A model's tags are accepted only if all of them are in the taxonomy."""

from collections.abc import Callable

import pytest

from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.parsing import MAX_REPLY_CHARACTERS
from plumbline.operators.metrics.reply_forms import ReplyFormat
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.operators.models.calls import Generation, Request
from plumbline.operators.stages.programs import ProgramRequest, run_programs
from plumbline.plugins.benchmark_builder.tagging import Tagging, parse_text_tags
from plumbline.plugins.benchmark_builder.taxonomy import Skill, SubSkill, Tag, TaggedExample, Taxonomy
from plumbline.plugins.benchmark_builder.writer import WriterOptions

TAXONOMY = Taxonomy(
    name="tiny",
    skills={
        "count": Skill(about="how many", sub_skills={"simple": SubSkill(about="one kind"), "additive": SubSkill()}),
        "action": Skill(),
    },
    examples=(TaggedExample(prompt="two cats", tags=("count - simple (two)",)),),
)
PROMPT = "2 cats and 3 dogs are running"


def request_tags(
    script: Callable[[Request], str], replies: ReplyFormat = "text"
) -> tuple[list[WrittenQuestion] | RowError, list[Request]]:
    asked: list[Request] = []

    def generate(requests: "list[ProgramRequest]") -> list[Generation]:
        asked.extend(one.request for one in requests)
        return [Generation(script(one.request), True, Usage(1)) for one in requests]

    tagging = Tagging(options=WriterOptions(replies=replies), taxonomy=TAXONOMY)
    ran = run_programs([tagging.write(PROMPT)], generate)  # type: ignore[arg-type]
    return ran.results[0], asked


def test_each_tag_becomes_a_row_with_the_words_it_applies_to() -> None:
    rows, (request,) = request_tags(
        lambda request: "1 | count - additive (3 dogs)\n2 | Count - Simple (2 cats)\n3 | action - run (dogs)"
    )
    assert not isinstance(rows, RowError)
    assert [(row.kind, row.span, PROMPT[row.start : row.end]) for row in rows] == [
        ("count - additive", "3 dogs", "3 dogs"),
        ("count - simple", "2 cats", "2 cats"),
        ("action", "dogs", "dogs"),
    ]
    assert "count - simple: one kind\ncount - additive\naction\n" in request.messages[0].text
    assert request.messages[0].text.endswith(f"input: {PROMPT}\noutput:")


def test_tags_outside_the_taxonomy_are_requested_once_more_before_they_fail() -> None:
    rows, asked = request_tags(lambda request: "1 | count - subtractive (2 cats)")
    assert isinstance(rows, RowError) and rows.kind == "unreadable_reply" and not rows.retryable
    assert "'count - subtractive' is not a tag of the taxonomy tiny; did you mean" in rows.message
    assert len(asked) == 2 and "is not a tag of the taxonomy" in asked[1].messages[-1].text


@pytest.mark.parametrize("reply", ["I cannot do that.", "1 |", ""])
def test_a_reply_without_tags_is_an_error(reply: str) -> None:
    assert isinstance(request_tags(lambda request: reply)[0], RowError)


@pytest.mark.parametrize(
    ("replies", "reply"), [("text", "0 | none"), ("json", '{"tags": [{"tag": "none", "words": "none"}]}')]
)
def test_a_prompt_may_require_none_of_the_skills(replies: ReplyFormat, reply: str) -> None:
    (row,), _ = request_tags(lambda request: reply, replies)
    assert row.kind is None and row.span is None


def test_the_json_schema_allows_only_tags_of_the_taxonomy() -> None:
    reply = '{"tags": [{"tag": "count - simple", "words": "2 cats"}]}'
    (row,), (request,) = request_tags(lambda request: reply, "json")
    assert (row.kind, row.span) == ("count - simple", "2 cats")
    assert (
        request.schema is not None
        and '"enum": ["count", "count - simple", "count - additive", "action", "none"]' in request.schema
    )
    assert '{"tags": [{"tag": "count - simple", "words": "two"}]}' in request.messages[0].text


def test_the_key_depends_on_the_taxonomy_and_the_options() -> None:
    def make_key(taxonomy: Taxonomy = TAXONOMY, **options: object) -> object:
        return Tagging(options=WriterOptions(**options), taxonomy=taxonomy).list_question_options()  # type: ignore[arg-type]

    without = Taxonomy(name="tiny", skills=TAXONOMY.skills)
    assert len({str(one) for one in (make_key(), make_key(without), make_key(seed=1), make_key(replies="json"))}) == 4
    assert make_key() == make_key(writer="another")  # the key contains the writing model's files, not its role


def test_an_example_with_an_unknown_tag_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'cuont - simple' is not a tag of the taxonomy tiny; did you mean count - simple"
    ):
        Taxonomy(
            name="tiny", skills=TAXONOMY.skills, examples=(TaggedExample(prompt="a", tags=("cuont - simple (a)",)),)
        )


def test_sub_skills_have_the_names_used_in_gecko2k() -> None:
    assert Tag("att/count", "additive").names == ("att/count", "att/count:additive")
    assert TAXONOMY.find("count:additive") == TAXONOMY.find("Count -  additive") == Tag("count", "additive")


def test_a_long_reply_is_parsed_in_linear_time() -> None:
    (tag,) = parse_text_tags("1 | x(" + ")" * (MAX_REPLY_CHARACTERS - 10) + "a")
    assert tag.words == ""

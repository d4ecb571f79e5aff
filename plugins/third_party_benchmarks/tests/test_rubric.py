"""A judge receives a benchmark's explanations and checkpoints, and its verdicts become scores."""

import pytest

from plumbline.operators.metrics.metric import Evidence
from plumbline.operators.metrics.wording import read_prompt_template
from plumbline.operators.metrics.writing import UnreadableReply, WrittenQuestion
from plumbline.operators.stages.graph import check_chain
from plumbline.plugins.third_party_benchmarks.judges.rubric import RubricConfig, read_meanings
from tests.operators.metrics.scripted import run

KNOWLEDGE_METRIC, CHECKPOINTS_METRIC = RubricConfig(rubric="knowledge"), RubricConfig(rubric="checkpoints")
MEANING_BY_CHECKPOINT = read_meanings(read_prompt_template("rubric_meanings"))
CHECKPOINT_QUESTIONS = [
    WrittenQuestion("1", "ink painting", (), kind="Style"),
    WrittenQuestion("2", "two pandas", (), kind="Attribute - Quantity"),
    WrittenQuestion("3", "three {hats}", (), kind="Attribute - Quantity 2"),
]


def make_evidence(**rated: float) -> Evidence:
    return Evidence({"ratings": [{"name": name, "value": value} for name, value in rated.items()], "rationale": "so"})


def test_a_judge_receives_the_prompt_and_the_explanation_and_returns_zero_or_one() -> None:
    explained = [WrittenQuestion("1", "This means\nmooncakes.", (), kind="culture")]
    ran = run(
        KNOWLEDGE_METRIC.inspect("the {pastry} of autumn", explained), ['{"score": 1, "rationale": "A mooncake."}']
    )
    ((request,),) = ran.rounds
    assert "\nthe {pastry} of autumn\nReference:\nThis means mooncakes.\n" in request.messages[0].text
    assert [(rating.name, rating.value) for rating in ran.result.ratings] == [("score", 1)]
    assert (
        KNOWLEDGE_METRIC.score(make_evidence(score=1)).score == 1
        and KNOWLEDGE_METRIC.score(make_evidence(score=0)).score == 0
    )


@pytest.mark.parametrize("reply", ['{"score": 2, "rationale": ""}', '{"score": 0.5, "rationale": ""}', "A mooncake."])
def test_a_score_other_than_zero_or_one_is_an_unreadable_reply(reply: str) -> None:
    with pytest.raises(UnreadableReply):
        run(KNOWLEDGE_METRIC.inspect("a", CHECKPOINT_QUESTIONS[:1]), [reply], [reply])


def test_every_checkpoint_is_listed_with_its_meaning_and_has_its_own_rating() -> None:
    verdict = '{"Style": 1, "Attribute - Quantity": 0, "Attribute - Quantity 2": 1, "rationale": "One panda."}'
    ran = run(CHECKPOINTS_METRIC.inspect("ink pandas", CHECKPOINT_QUESTIONS), [verdict])
    ((request,),) = ran.rounds
    quantity = MEANING_BY_CHECKPOINT["Attribute - Quantity"]
    assert f"- Attribute - Quantity ({quantity}): two pandas\n" in request.messages[0].text
    assert f"- Attribute - Quantity 2 ({quantity}): three {{hats}}\n" in request.messages[0].text
    rated = {rating.name: rating.value for rating in ran.result.ratings}
    assert rated == {"Style": 1, "Attribute - Quantity": 0, "Attribute - Quantity 2": 1}
    assert CHECKPOINTS_METRIC.score(make_evidence(**rated)).score == pytest.approx(2 / 3)


def test_a_checkpoint_without_a_known_meaning_is_listed_by_name() -> None:
    ran = run(
        CHECKPOINTS_METRIC.inspect("墨", [CHECKPOINT_QUESTIONS[0]._replace(kind="风格")]),
        ['{"风格": 1, "rationale": ""}'],
    )
    assert "- 风格: ink painting\n" in ran.rounds[0][0].messages[0].text


def test_all_27_checkpoints_have_a_meaning() -> None:
    assert len(MEANING_BY_CHECKPOINT) == 27


@pytest.mark.parametrize("metric", [KNOWLEDGE_METRIC, CHECKPOINTS_METRIC], ids=lambda metric: metric.rubric)
def test_a_rubric_has_a_valid_chain_and_refuses_questions_with_choices(metric: RubricConfig) -> None:
    check_chain("rubric", metric)
    assert metric.list_question_options() == {} and metric.list_verdict_options()["templates"]
    assert metric.explain_pack_refusal({0}) is None and "choices" in (metric.explain_pack_refusal({0, 2}) or "")

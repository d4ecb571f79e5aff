"""Scores for a benchmark's own questions equal values computed by hand from the benchmark's released formulas."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from plumbline.operators.metrics.metric import Answered, Evidence
from plumbline.operators.metrics.questions.question_pack import (
    QuestionPackConfig,
    apply_zeroing_in_order,
    list_spellings,
)
from plumbline.operators.metrics.writing import WrittenQuestion

YES_NO = ("yes", "no")
LIKELY_LOGPROBS, UNLIKELY_LOGPROBS = (math.log(0.9),), (math.log(0.1),)


def make_answered_questions(right: Sequence[bool], parents: Mapping[int, Sequence[int]]) -> list[Answered]:
    """Return yes/no questions, numbered from 1, each with an answer; `right` says which answers are right.

    `parents` contains the numbers of each question's parents, keyed by the question's number.
    """
    return [
        Answered(
            WrittenQuestion(str(number), "?", YES_NO, "yes", parents=tuple(map(str, parents.get(number, ())))),
            (LIKELY_LOGPROBS, UNLIKELY_LOGPROBS) if yes else (UNLIKELY_LOGPROBS, LIKELY_LOGPROBS),
        )
        for number, yes in enumerate(right, start=1)
    ]


def score(answered: Sequence[Answered], **options: Any) -> float | None:
    return QuestionPackConfig(**options).score(Evidence({}, answered)).score


# Shares

CHAIN_PARENTS = {2: [1], 3: [2], 4: [3]}


@pytest.mark.parametrize(
    ("zeroing", "expected"),
    [
        (None, 3 / 4),
        ("direct", 2 / 4),  # 2 fails because of its parent 1; 3 and 4 use the raw answers to 2 and 3, which were yes
        ("recursive", 0 / 4),
        ("in_order", 0 / 4),
    ],
)
def test_each_kind_of_zeroing_handles_a_no_at_the_head_of_a_chain(zeroing: Any, expected: float) -> None:
    assert score(make_answered_questions([False, True, True, True], CHAIN_PARENTS), zeroing=zeroing) == pytest.approx(
        expected
    )


def test_zeroing_in_order_uses_earlier_zeros_and_ignores_later_ones() -> None:
    """Question 1 depends on question 3, and 3 depends on 2, whose answer is wrong.

    As in DPG-Bench, questions are zeroed in order: 1 is scored before 3 becomes zero, and therefore keeps its point.
    """
    answered = make_answered_questions([True, False, True], {1: [3], 3: [2]})
    assert score(answered, zeroing="in_order") == pytest.approx(1 / 3)
    assert score(answered, zeroing="recursive") == 0
    right = {"1": True, "2": False, "3": True}
    assert apply_zeroing_in_order(right, {"1": ["3"], "2": [], "3": ["2"]}) == {"1": True, "2": False, "3": False}


def test_a_reply_counts_as_the_choice_that_it_means() -> None:
    question = WrittenQuestion("1", "what color?", ("red", "blue"), "red")
    other = question._replace(question_id="2")
    replied = [Answered(question, reply="crimson", chosen="red"), Answered(other, reply="sky", chosen="blue")]
    assert score(replied, answers="reply") == 0.5


def test_without_questions_there_is_no_score() -> None:
    scored = QuestionPackConfig().score(Evidence({}, ()))
    assert scored.score is None and scored.error is not None


# Soft means


def test_spellings_are_the_released_ones_or_only_those_without_a_leading_space() -> None:
    assert list_spellings("four", "released") == ["four", " four", "Four", " Four", "4", " 4"]
    assert list_spellings("four", "fixed") == ["four", "Four", "4"]
    assert list_spellings("Yes", "released") == ["Yes", " Yes", "yes", " yes"]
    assert list_spellings("Yes", "fixed") == ["Yes", "yes"]
    put = QuestionPackConfig(aggregate="soft_mean", template="{} Answer in one word.").make_vqa_prompt(
        "How many?", ["two"]
    )
    assert put.text == "How many? Answer in one word." and put.choices == tuple(list_spellings("two", "released"))


def make_soft_answer(*tokens: Sequence[float]) -> Answered:
    """Return an answer with one choice per spelling, each given by the probabilities of its tokens.

    An end token with probability 0.5 follows each spelling.
    """
    logs = tuple((*map(math.log, spelling), math.log(0.5)) for spelling in tokens)
    return Answered(WrittenQuestion("1", "?", ("two",), "two"), logs)


def test_soft_tifa_sums_the_spellings_and_takes_either_mean() -> None:
    """The probabilities of the first answer's spellings sum to 0.5 and those of the second to 0.2.

    The score is the arithmetic or the geometric mean of these two sums.
    """
    answered = [make_soft_answer([0.3], [0.15], [0.05]), make_soft_answer([0.1], [0.1])]
    assert score(answered, aggregate="soft_mean") == pytest.approx(0.35)
    assert score(answered, aggregate="soft_geometric") == pytest.approx(math.sqrt(0.5 * 0.2))


def test_only_the_released_convention_counts_a_first_token_as_the_whole_spelling() -> None:
    """Qwen tokenises ` 4` as a space and `4`. The release only counts the space, with which every number starts."""
    answered = [make_soft_answer([0.4], [0.5, 0.01])]
    assert score(answered, aggregate="soft_mean", spelling="released") == pytest.approx(0.9)
    assert score(answered, aggregate="soft_mean", spelling="fixed") == pytest.approx(0.4 + 0.005)


def test_a_geometric_mean_with_an_impossible_answer_is_zero() -> None:
    impossible = Answered(WrittenQuestion("1", "?", ("two",), "two"), ((-800.0, 0.0),))
    assert score([make_soft_answer([0.5]), impossible], aggregate="soft_geometric") == 0


# Rows of several images


@pytest.mark.parametrize(("images", "expected"), [("mean", 0.5), ("last", 0.0)])
def test_the_score_of_several_images_is_their_mean_or_the_last(images: Any, expected: float) -> None:
    metric = QuestionPackConfig(images=images)
    each = [metric.score(Evidence({}, make_answered_questions([yes], {}))) for yes in (True, False)]
    assert metric.combine_images(each).score == expected


# Configuration


def test_a_pack_with_other_choices_is_refused() -> None:
    share, mean = QuestionPackConfig(), QuestionPackConfig(aggregate="soft_mean")
    assert share.explain_pack_refusal({2, 4}) is None and mean.explain_pack_refusal({1}) is None
    assert "aggregate=share" in (mean.explain_pack_refusal({1, 2}) or "")
    assert "likeliest of several" in (share.explain_pack_refusal({1}) or "")

"""Statistics of questions and answers agree with counts made by hand."""

import math
from itertools import product
from random import Random
from statistics import fmean

import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.metrics.questions.dsg import apply_zeroing
from plumbline.operators.metrics.questions.question_pack import PackZeroing, apply_zeroing_in_order
from plumbline.plugins.diagnosis.questions import AnswerCounts, QuestionCounts

YES_NO_CHOICES = ["yes", "no"]


def make_question(
    name: str, prompt: str, text: str, choices: list[str], answer: str | None, **more: object
) -> dict[str, object]:
    return {"question_id": name, "prompt_id": prompt, "text": text, "choices": choices, "answer": answer, **more}


QUESTIONS = rows.table(
    [
        make_question("1", "p", "Is there a dog?", YES_NO_CHOICES, "yes", kind="entity"),
        make_question("2", "p", "Is the dog there?", YES_NO_CHOICES, "yes", kind="entity"),
        make_question("3", "p", "What color is the dog?", ["red", "blue", "green", "black"], "blue", kind="color"),
        make_question("4", "q", "Is there a cat?", ["Yes", "No"], "No", kind="entity"),
        make_question("5", "q", "How many cats?", ["two", "three"], "two"),
        make_question("6", "q", "Is there a cat?", YES_NO_CHOICES, "yes", keep=False),
        make_question("7", "q", "whole", ["Yes"], None),
        {"prompt_id": "r", "error": {"kind": "unreadable_reply", "message": "", "retryable": True}},
    ],
    schemas.QUESTIONS,
)


@pytest.fixture
def question_counts() -> QuestionCounts:
    counted = QuestionCounts("tifa")
    for part in (QUESTIONS.slice(0, 4), QUESTIONS.slice(4)):
        counted.add(part)
    return counted


def test_questions_are_counted_by_their_choices_and_right_answers(question_counts: QuestionCounts) -> None:
    found = question_counts.compute_statistics()
    assert (found.metric, found.prompts, found.questions) == ("tifa", 2, 5)
    assert found.yes_no == 3 / 5 and found.yes == pytest.approx(2 / 3) and found.first == 1 / 2
    assert found.repeated == 1 / 5, "question 2 repeats question 1"
    assert found.majority == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found.chance == pytest.approx(((0.5 + 0.5 + 0.25) / 3 + (0.5 + 0.5) / 2) / 2)
    assert [(one.kind, one.questions) for one in question_counts.list_kinds()] == [("entity", 3), ("color", 1)]
    assert sorted(question_counts.count_questions_per_prompt().values.tolist()) == [2, 3]


@pytest.mark.parametrize("zeroing", [None, "direct", "recursive", "in_order"])
def test_chance_is_the_mean_score_of_all_ways_to_answer(zeroing: PackZeroing | None) -> None:
    random = Random(7)
    asked, scores = [], []
    for prompt in "pqr":
        names = [f"{prompt}{n}" for n in range(random.randint(2, 6))]
        parents = {name: random.sample([*names, "dropped"], random.randint(0, 2)) for name in names}
        sizes = {name: random.randint(2, 3) for name in names}
        asked += [
            make_question(name, prompt, name, list("abc")[: sizes[name]], "a", parents=parents[name]) for name in names
        ]
        ways = [dict(zip(names, way, strict=True)) for way in product(*(range(sizes[name]) for name in names))]
        right = [{name: said == 0 for name, said in way.items()} for way in ways]
        holds = [
            one
            if zeroing is None
            else apply_zeroing_in_order(one, parents)
            if zeroing == "in_order"
            else apply_zeroing(one, parents, zeroing)
            for one in right
        ]
        scores.append(fmean(fmean(one.values()) for one in holds))
    random.shuffle(asked) if zeroing != "in_order" else None
    question_counts = QuestionCounts("dsg", zeroing)
    question_counts.add(rows.table(asked, schemas.QUESTIONS))
    assert question_counts.compute_statistics().chance == pytest.approx(fmean(scores))


def test_all_fractions_of_zero_questions_are_nan() -> None:
    found = QuestionCounts("vqascore").compute_statistics()
    assert found.questions == 0 and all(math.isnan(value) for value in found[3:])


def make_elements(*given: tuple[str, str, str | None]) -> pa.ChunkedArray:
    each = [{"question_id": name, "wanted": wanted, "given": said} for name, wanted, said in given]
    return pa.chunked_array([pa.array([each, None], pa.list_(schemas.ELEMENT))])


def test_answers_are_counted_by_choice_and_correctness(question_counts: QuestionCounts) -> None:
    answers = AnswerCounts("tifa", "blank_images", question_counts.known)
    answers.add(make_elements(("1", "yes", "yes"), ("3", "blue", "red"), ("4", "No", "Yes"), ("9", "yes", "yes")))
    answers.add(make_elements(("1", "yes", "no"), ("3", "blue", "blue"), ("5", "two", "two"), ("2", "yes", None)))
    found = answers.compute_statistics()
    assert (found.metric, found.denied, found.answers) == ("tifa", "blank_images", 6)
    assert found.right == 3 / 6
    assert (found.yes_no, found.yes, found.wanted) == (3, 2 / 3, 2 / 3)
    assert (found.choices, found.first) == (3, 2 / 3)

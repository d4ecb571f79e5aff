"""Each row of a gold table must match one task of the study; other rows are rejected."""

from typing import Any

import pytest

from plugins.rating.tests.simulated import make_likert_tasks, make_task
from plumbline.operators.base.errors import SourceError
from plumbline.plugins.rating.gold import mark_gold_tasks, parse_gold_question

TASKS = [
    *make_likert_tasks(2),
    make_task("words", "p000", ("atlas",)),
    make_task("questions", "p000", ("atlas",)),
    make_task("vote", "p001", ("atlas", "cobalt")),
]


def list_correct_answers(*rows: dict[str, Any]) -> list[Any]:
    return [
        task.gold
        for task in mark_gold_tasks(TASKS, [parse_gold_question(row, f"gold.csv:{n}") for n, row in enumerate(rows, 2)])
    ]


def test_a_row_belongs_to_the_task_with_its_template_and_image() -> None:
    assert list_correct_answers(
        {"template": "likert", "prompt_id": "p000", "generator": "cobalt", "answer": "5"},
        {"template": "likert", "image_id": "p001/atlas", "answer": 1, "prompt_id": "", "generator": None},
        {"template": "words", "image_id": "p000/atlas", "answer": '{"wrong": [2], "unsure": []}'},
        {"template": "questions", "prompt_id": "p000", "generator": "atlas", "answer": '{"q2": "no"}'},
        {"template": "vote", "prompt_id": "p001", "generator": "atlas", "generator_b": "cobalt", "answer": "b"},
    ) == [None, 5, 1, None, {"wrong": [2], "unsure": []}, {"q2": "no"}, "b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"template": "stars"}, "gold.csv:2: template: expected one of likert, .*, got 'stars'"),
        ({"answer": "6"}, "gold.csv:2: answer: expected a whole number from 1 to 5, or unsure or cannot_tell, got '6'"),
        ({"generator": None}, "gold.csv:2: expected prompt_id and generator, or image_id, for each image"),
        (
            {"generator": "other"},
            "gold.csv:2: expected one task of the study that matches this gold question, found none",
        ),
        (
            {"template": "questions", "answer": '{"q3": "no"}', "generator": "atlas"},
            "gold.csv:2: answer: expected questions among q1 and q2, got q3",
        ),
        ({"template": "words", "generator": "atlas", "answer": '{"wrong": [3], "unsure": []}'}, "gold.csv:2: answer: "),
    ],
)
def test_an_invalid_row_is_refused_with_the_remedy(changes: dict[str, Any], message: str) -> None:
    row = {"template": "likert", "prompt_id": "p000", "generator": "cobalt", "answer": "5"}
    with pytest.raises(SourceError, match=message):
        list_correct_answers({**row, **changes})

"""Each template accepts only its valid answers, and damaged answer files are rejected."""

import json
from typing import Any

import pytest

from plumbline.plugins.rating.answers import Answer, BadAnswer, encode_answer, parse_answer
from plumbline.plugins.rating.question_templates import TEMPLATES, Scope, find_problem
from plumbline.plugins.rating.tasks import ImagePlace, Task, TaskQuestion, task_id_of, task_table, tasks_of

ASKED = Scope(words=3, questions=["q1", "q2"])


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        ("likert", 1),
        ("likert", 5),
        ("genai_bench", 1),
        ("gecko_likert", 5),
        ("llmscore_overall", 10),
        ("llmscore_errors", 0),
        ("llmscore_errors", 9),
        ("words", {"wrong": [0, 2], "unsure": [1]}),
        ("words", {"wrong": [], "unsure": []}),
        ("questions", {"q1": "yes", "q2": "cannot_tell"}),
        ("questions", {"q1": "subjective", "q2": "invalid"}),
        ("side_by_side", "b"),
        ("vote", "tie"),
        *((template, "unsure") for template in TEMPLATES),
        *((template, "cannot_tell") for template in TEMPLATES),
    ],
)
def test_an_answer_of_its_template_is_valid(template: str, answer: Any) -> None:
    assert find_problem(TEMPLATES[template], answer, ASKED) is None


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        *(("likert", answer) for answer in (0, 6, 3.0, "3", True, None)),
        *(("llmscore_overall", answer) for answer in (0, 11)),
        *(("llmscore_errors", answer) for answer in (-1, 10)),
        *(("words", {"wrong": wrong, "unsure": [1]}) for wrong in ([1], [3], [-1], [0, 0], ["0"], [True], "0", None)),
        ("words", {"wrong": [0]}),
        ("words", [0]),
        *(("questions", answer) for answer in ({}, {"q1": "yes"}, {"q1": "yes", "q2": "maybe"}, "yes", {"q3": "no"})),
        *(("side_by_side", answer) for answer in ("A", "left", 0, ["a"], {"a": 1}, "")),
        ("vote", "unsure "),
    ],
)
def test_any_other_answer_is_refused_with_what_was_expected(template: str, answer: Any) -> None:
    problem = find_problem(TEMPLATES[template], answer, ASKED)
    assert problem is not None and TEMPLATES[template].expected in problem


def test_how_many_words_a_prompt_has_is_held_to_only_where_it_is_known() -> None:
    assert find_problem(TEMPLATES["words"], {"wrong": [9], "unsure": []}) is None


GIVEN = {
    "version": 1,
    "task_id": "0123456789abcdef",
    "template": "side_by_side",
    "prompt_id": "p1",
    "image_ids": ["i1", "i2"],
    "generators": ["atlas", "birch"],
    "shown": [1, 0],
    "repeat": 0,
    "gold": None,
    "rater": "Zoë Müller",
    "answer": "a",
    "note": "the left one ⟨has⟩ no cat",
    "seconds": 12.3,
    "at": "2026-11-26T02:00:00+00:00",
}


def test_an_answer_is_the_same_after_it_was_written_and_read() -> None:
    answer = parse_answer(json.dumps(GIVEN).encode(), "here")
    assert answer.generators == ("atlas", "birch") and answer.note == GIVEN["note"]
    written = encode_answer(answer)
    assert json.loads(written) == GIVEN and parse_answer(written, "here") == answer == Answer(**GIVEN)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"answer": "left"}, "expected a or b or tie"),
        ({"template": "likert"}, "expected 1 of each for likert"),
        ({"template": "gut"}, "expected one of likert, genai_bench"),
        ({"shown": [0, 0]}, "shown: expected the index of each image once"),
        ({"gold": "left"}, "gold answer: expected a or b or tie"),
        ({"task_id": "../../etc"}, "task_id"),
        ({"rater": "../ann"}, "'../ann' is not a valid name"),
        ({"seconds": -1}, "seconds"),
        ({"at": "yesterday"}, "at: "),
        ({"version": "1"}, "version"),
        ({"note": "x" * 2001}, "note"),
        ({"more": 1}, "more"),
    ],
)
def test_a_file_that_is_no_answer_is_refused_by_name_and_field(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(BadAnswer) as refused:
        parse_answer(json.dumps(GIVEN | changed).encode(), "answers/ann/x.json")
    assert str(refused.value).startswith("answers/ann/x.json: not an answer (") and told in str(refused.value)


@pytest.mark.parametrize("cut", [b"", b"{", b"[]", b"null", json.dumps(GIVEN).encode()[:-9]])
def test_a_file_that_is_cut_off_is_refused(cut: bytes) -> None:
    with pytest.raises(BadAnswer, match="not an answer"):
        parse_answer(cut, "here")


QUESTION = TaskQuestion("q1", "Is there a cat?")
TASK = Task(
    task_id=task_id_of("questions", "p1", "a cat", ["i1"], ["atlas"], [QUESTION]),
    template="questions",
    prompt_id="p1",
    prompt="a cat",
    skills=("object",),
    image_ids=("i1",),
    generators=("atlas",),
    questions=(QUESTION,),
    gold={"q1": "yes"},
    places=(ImagePlace("00000", 3),),
)


def test_tasks_are_the_same_after_they_were_a_table() -> None:
    other = Task(
        task_id="f" * 16, template="vote", prompt_id="p1", prompt="a cat", image_ids=("i1", "i2"),
        generators=("atlas", "birch"), places=(ImagePlace("00000", 0), ImagePlace("00001", 4)),
    )  # fmt: skip
    assert tasks_of(task_table([TASK, other])) == [TASK, other]


def test_a_task_is_another_where_a_rater_sees_anything_else() -> None:
    given: list[Any] = ["questions", "p1", "a cat", ["i1"], ["atlas"], [QUESTION]]
    others: list[Any] = ["likert", "p2", "a dog", ["i2"], ["birch"], [QUESTION._replace(text="Is there a dog?")]]
    changed = [[*given[:place], other, *given[place + 1 :]] for place, other in enumerate(others)]
    assert len({task_id_of(*seen) for seen in (given, *changed)}) == 7

"""Each template accepts only its valid answers, and damaged answer files are rejected."""

import json
from typing import Any

import pytest

from plumbline.plugins.rating.answers import Answer, BadAnswer, encode_answer, parse_answer
from plumbline.plugins.rating.question_templates import TEMPLATES, AnswerScope, find_problem
from plumbline.plugins.rating.tasks import ImageLocation, Task, TaskQuestion, decode_tasks, encode_tasks, hash_task

ASKED_SCOPE = AnswerScope(words=3, questions=["q1", "q2"])


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
def test_an_answer_in_its_templates_form_is_valid(template: str, answer: Any) -> None:
    assert find_problem(TEMPLATES[template], answer, ASKED_SCOPE) is None


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
def test_any_other_answer_is_refused_with_the_expected_form(template: str, answer: Any) -> None:
    problem = find_problem(TEMPLATES[template], answer, ASKED_SCOPE)
    assert problem is not None and TEMPLATES[template].expected in problem


def test_word_indices_have_no_limit_if_the_number_of_words_is_unknown() -> None:
    assert find_problem(TEMPLATES["words"], {"wrong": [9], "unsure": []}) is None


ANSWER_FIELDS = {
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


def test_a_written_answer_is_read_back_unchanged() -> None:
    answer = parse_answer(json.dumps(ANSWER_FIELDS).encode(), "here")
    assert answer.generators == ("atlas", "birch") and answer.note == ANSWER_FIELDS["note"]
    written = encode_answer(answer)
    assert json.loads(written) == ANSWER_FIELDS and parse_answer(written, "here") == answer == Answer(**ANSWER_FIELDS)


@pytest.mark.parametrize(
    ("changed", "message"),
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
def test_an_invalid_answer_file_is_refused_with_its_name_and_field(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadAnswer) as refused:
        parse_answer(json.dumps(ANSWER_FIELDS | changed).encode(), "answers/ann/x.json")
    assert str(refused.value).startswith("answers/ann/x.json: not an answer (") and message in str(refused.value)


@pytest.mark.parametrize("cut", [b"", b"{", b"[]", b"null", json.dumps(ANSWER_FIELDS).encode()[:-9]])
def test_a_truncated_file_is_refused(cut: bytes) -> None:
    with pytest.raises(BadAnswer, match="not an answer"):
        parse_answer(cut, "here")


QUESTION = TaskQuestion("q1", "Is there a cat?")
TASK = Task(
    task_id=hash_task("questions", "p1", "a cat", ["i1"], ["atlas"], [QUESTION]),
    template="questions",
    prompt_id="p1",
    prompt="a cat",
    skills=("object",),
    image_ids=("i1",),
    generators=("atlas",),
    questions=(QUESTION,),
    gold={"q1": "yes"},
    places=(ImageLocation("00000", 3),),
)


def test_tasks_are_unchanged_after_encoding_and_decoding() -> None:
    other = Task(
        task_id="f" * 16, template="vote", prompt_id="p1", prompt="a cat", image_ids=("i1", "i2"),
        generators=("atlas", "birch"), places=(ImageLocation("00000", 0), ImageLocation("00001", 4)),
    )  # fmt: skip
    assert decode_tasks(encode_tasks([TASK, other])) == [TASK, other]


def test_a_task_id_depends_on_everything_that_a_rater_sees() -> None:
    given: list[Any] = ["questions", "p1", "a cat", ["i1"], ["atlas"], [QUESTION]]
    others: list[Any] = ["likert", "p2", "a dog", ["i2"], ["birch"], [QUESTION._replace(text="Is there a dog?")]]
    changed = [[*given[:place], other, *given[place + 1 :]] for place, other in enumerate(others)]
    assert len({hash_task(*seen) for seen in (given, *changed)}) == 7

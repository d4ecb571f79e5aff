"""Answers are read from a study's folder, and damaged files are reported."""

from pathlib import Path

import pytest

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.plugins.rating.answers import Answer, encode_answer
from plumbline.plugins.rating.study_files import (
    AnswerReader,
    make_answer_path,
    make_key,
    read_answers,
    read_study,
)

TASK_ID = "0123456789abcdef"


def make_answer(rater: str, value: int, repeat: int = 0, minute: int = 0) -> Answer:
    return Answer(
        version=1, task_id=TASK_ID, template="likert", prompt_id="p1", image_ids=("i1",), generators=("atlas",),
        shown=(0,), repeat=repeat, rater=rater, answer=value, seconds=1.0, at=f"2026-11-26T02:{minute:02}:00+00:00",
    )  # fmt: skip


def store_answer(study: Place, given: Answer, revision: int = 0) -> None:
    assert (study / make_answer_path(make_key(given), revision)).create(encode_answer(given))


@pytest.fixture
def study(tmp_path: Path) -> Place:
    return StorageConfig().locate(str(tmp_path / "study"))


def test_the_last_revision_of_each_answer_counts_and_repeats_are_separate_answers(study: Place) -> None:
    store_answer(study, make_answer("ann", 2, minute=1))
    store_answer(study, make_answer("ann", 4, minute=3), revision=1)
    store_answer(study, make_answer("ann", 5, repeat=1, minute=4))
    store_answer(study, make_answer("Zoë", 1, minute=2))
    assert [(one.rater, one.repeat, one.answer) for one in read_answers(study)] == [
        ("Zoë", 0, 1),
        ("ann", 0, 4),
        ("ann", 1, 5),
    ]


def test_a_new_study_has_no_answers(study: Place) -> None:
    assert read_answers(study) == []


def test_new_answers_are_read_without_reading_earlier_answers_again(study: Place) -> None:
    store_answer(study, make_answer("ann", 2))
    answers = AnswerReader(study)
    answers.refresh()
    Path(study.path, make_answer_path(make_key(make_answer("ann", 2)), 0)).write_bytes(b"changed meanwhile")
    store_answer(study, make_answer("bob", 3))
    answers.refresh()
    assert [one.answer for one in answers.list_answers()] == [2, 3] and not answers.problems


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("answers/ann/0123456789abcdef.0.0.json", b"{", "not an answer"),
        ("answers/ann/0123456789abcdef.0.json", b"", "expected RATER/TASK.REPEAT.REVISION.json"),
        ("answers/notes.txt", b"", "expected RATER/TASK.REPEAT.REVISION.json"),
        (
            "answers/bob/0123456789abcdef.0.0.json",
            encode_answer(make_answer("ann", 3)),
            "contains the answer of rater 'ann'",
        ),
    ],
)
def test_a_file_whose_content_does_not_match_its_name_is_reported(
    study: Place, path: str, content: bytes, message: str
) -> None:
    store_answer(study, make_answer("zed", 3))
    (study / path).write(content)
    with pytest.raises(SourceError, match=message) as refused:
        read_answers(study)
    assert path in str(refused.value)
    answers = AnswerReader(study)
    answers.refresh()
    assert [one.rater for one in answers.list_answers()] == ["zed"] and len(answers.problems) == 1


def test_a_partially_written_file_is_ignored(study: Place) -> None:
    (study / f"answers/ann/.{TASK_ID}.0.0.json.f00").write(b"{")
    assert read_answers(study) == []


def test_a_folder_without_a_study_is_refused(study: Place) -> None:
    with pytest.raises(SourceError, match=r"expected a study's folder with study\.1\.json, found none"):
        read_study(study)

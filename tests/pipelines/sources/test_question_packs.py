"""Question files are read as the released code reads them; an unreadable row is reported and affects no other."""

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.base.errors import PlumblineError, SourceError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.question_packs import PACKS, PackFile, digest_pack, read_pack
from plumbline.pipelines.sources.question_packs.pack import Convention, QuestionPack
from tests.question_packs import (
    ANNOTATION_COLUMNS,
    make_choice_question,
    make_proposition,
    make_propositions,
    write_csv,
    write_json,
)

STORAGE_CONFIG = StorageConfig()


def read_pack_file(name: str, path: Path, convention: Convention = "released") -> QuestionPack:
    return read_pack(PackFile(pack=name, place=STORAGE_CONFIG.locate(str(path)), convention=convention), "suite")


def list_questions(pack: QuestionPack, prompt_id: str) -> list[dict[str, Any]]:
    return [row for row in pack.questions.to_pylist() if row["prompt_id"] == prompt_id]


def list_parents(pack: QuestionPack, prompt_id: str) -> list[list[str]]:
    """Return the texts of each question's parents."""
    rows = list_questions(pack, prompt_id)
    text_of = {row["question_id"]: row["text"] for row in rows}
    return [[text_of[parent] for parent in row["parents"]] for row in rows]


# TIFA v1.0


def test_tifa_has_choices_with_their_answer_and_the_position_of_their_element(tmp_path: Path) -> None:
    row = make_choice_question("coco_1", "a red circle", "what is it?", ["circle", "square"], "circle", coco_val_id="7")
    pack = read_pack_file("tifa_v1", write_json(tmp_path / "q.json", [row, row]))
    first, second = list_questions(pack, "coco_1")
    assert (first["text"], first["choices"], first["answer"]) == ("what is it?", ["circle", "square"], "circle")
    assert (first["kind"], first["span"], first["start"], first["end"]) == ("object", "circle", 6, 12)
    assert second["question_id"] == first["question_id"] + "-2", "a question that occurs twice counts twice"
    assert pack.prompts.to_pylist() == [{"prompt_id": "coco_1", "text": "a red circle", "skills": [], "suite": "suite"}]
    assert pack.problems == ()


def test_an_unreadable_row_is_reported_in_one_line_and_costs_only_itself(tmp_path: Path) -> None:
    good = make_choice_question("a", "a circle", "is there a circle?", ["yes", "no"], "yes")
    rows = [
        good,
        {**good, "answer": "maybe"},
        {**good, "question": None},
        "circle",
        {**good, "choices": "yes"},
        {**good, "id": None},
        {**good, "caption": "a square"},
        {**good, "question": "is it red?"},
    ]
    path = write_json(tmp_path / "q.json", rows)
    pack = read_pack_file("tifa_v1", path)
    assert [row["text"] for row in list_questions(pack, "a")] == ["is there a circle?", "is it red?"]
    assert [line.split(": ")[0] for line in pack.problems] == [f"{path}, row {row}" for row in (1, 2, 3, 4, 5, 6)]
    assert "'maybe'" in pack.problems[0] and "a different" in pack.problems[5]


def test_a_prompt_without_any_readable_question_has_an_error(tmp_path: Path) -> None:
    rows = make_propositions("a", "a circle")[:1]
    path = write_csv(
        tmp_path / "q.csv",
        ANNOTATION_COLUMNS,
        [{**rows[0], "question_natural_language": " "}, *make_propositions("b", "b")],
    )
    pack = read_pack_file("dsg_1k", path)
    assert "a" not in pack.places and len(list_questions(pack, "b")) == 3, "as if it were not in the file"
    assert pack.problems[0].startswith(f"{path}, row 0: expected 'question_natural_language' as text")


@pytest.mark.parametrize(("content", "said"), [("{", "not JSON"), ('{"a": 1}', "expected a list"), ("", "empty")])
def test_a_file_of_another_form_is_refused_by_name(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(content)
    with pytest.raises(SourceError, match=said):
        read_pack_file("tifa_v1", tmp_path / "q.json")


@pytest.mark.parametrize("name", PACKS)
def test_a_missing_file_is_reported_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(PlumblineError, match=r"q\.json"):
        read_pack_file(name, tmp_path / "q.json")


# DSG-1k


def test_dsg_has_yes_no_questions_with_their_parents(tmp_path: Path) -> None:
    pack = read_pack_file(
        "dsg_1k", write_csv(tmp_path / "q.csv", ANNOTATION_COLUMNS, make_propositions("tifa_1", "a red circle"))
    )
    first, second, _ = list_questions(pack, "tifa_1")
    assert (first["choices"], first["answer"], first["kind"]) == (["yes", "no"], "yes", "entity - whole")
    assert second["kind"] == "attribute - color"
    assert list_parents(pack, "tifa_1") == [[], ["Is there a circle?"], ["Is the circle red?"]]


def test_the_release_drops_all_dependencies_of_a_prompt_if_one_is_not_a_number(tmp_path: Path) -> None:
    odd = make_propositions("a", "a circle")[:2] + [
        make_proposition("a", "a circle", 3, "1, background", "Is it far?", "global")
    ]
    path = write_csv(tmp_path / "q.csv", ANNOTATION_COLUMNS, [*odd, *make_propositions("b", "a square")])
    released, fixed = read_pack_file("dsg_1k", path, "released"), read_pack_file("dsg_1k", path, "fixed")
    assert list_parents(released, "a") == [[], [], []]
    assert list_parents(fixed, "a") == [[], ["Is there a circle?"], ["Is there a circle?"]]
    assert list_parents(released, "b") == list_parents(fixed, "b") != [[], [], []]
    assert len(released.problems) == len(fixed.problems) == 1
    assert released.problems[0].startswith(f"{path}, row 2: the dependency '1, background'")


def test_the_last_row_of_a_repeated_number_counts(tmp_path: Path) -> None:
    again = make_proposition("a", "a circle", 2, "0", "Is it round?", "attribute - shape")
    pack = read_pack_file(
        "dsg_1k", write_csv(tmp_path / "q.csv", ANNOTATION_COLUMNS, [*make_propositions("a", "a circle"), again])
    )
    assert [row["text"] for row in list_questions(pack, "a")][1] == "Is it round?"
    assert "occurs twice" in pack.problems[0]


# All


def test_the_digest_covers_the_questions_and_not_the_file(tmp_path: Path) -> None:
    rows = [make_choice_question("a", "a circle", "is it red?", ["yes", "no"], "yes")]
    one, other = write_json(tmp_path / "one.json", rows), tmp_path / "other.json"
    other.write_text(json.dumps(rows))
    assert digest_pack(read_pack_file("tifa_v1", one)) == digest_pack(read_pack_file("tifa_v1", other))
    write_json(other, [{**rows[0], "answer": "no"}])
    assert digest_pack(read_pack_file("tifa_v1", one)) != digest_pack(read_pack_file("tifa_v1", other))
    planned = PackFile(
        pack="tifa_v1", place=STORAGE_CONFIG.locate(str(other)), digest=digest_pack(read_pack_file("tifa_v1", one))
    )
    with pytest.raises(SourceError, match="have changed since the run was planned"):
        read_pack(planned, "suite")

"""The expected texts are read from each benchmark's files as upstream's code reads them."""

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.pipelines.sources.question_packs.pack import QuestionPack
from tests.pipelines.sources.test_question_packs import list_questions, read_pack_file
from tests.pipelines.sources.test_question_packs_fuzz import make_rows, require_others_unaffected
from tests.question_packs import write_csv, write_json

PACK_FILES: dict[str, dict[str, Any]] = {
    "cvtg_2k": {
        f"{folder}/{area}.json": {"data_list": make_rows(lambda n: {"index": n, "prompt": f"a sign 'OPEN' {n}"})}
        for folder in ("CVTG", "CVTG-Style") for area in (2, 3, 4, 5)
    },
    "longtext_bench": {
        "q.jsonl": make_rows(lambda n: {
            "prompt_id": n, "prompt": f"a sign {n}", "text": ["OPEN"], "category": "sign", "length": "short"
        })
    },
    "wegenbench_text": {
        "q.jsonl": make_rows(lambda n: {
            "id": f"EN_{n}", "prompt": f"a sign {n}", "text": ["OPEN"], "type": "sign", "tag": ["a"],
            "difficulty": "Easy",
        })
    },
    "oneig_text": {"q.csv": make_rows(lambda n: {"id": n, "prompt_en": f"a sign {n}", "text_content": "['OPEN']"})},
}  # fmt: skip
"""File contents of each pack."""


def read_texts(pack: QuestionPack, prompt_id: str) -> list[str]:
    return [row["answer"] for row in list_questions(pack, prompt_id)]


def test_longtext_bench_has_a_list_of_texts_for_each_prompt(tmp_path: Path) -> None:
    rows = [
        {"category": "sign", "length": "short", "prompt": "a shop, OPEN", "text": ["OPEN", "24 h"], "prompt_id": 0},
        {"prompt": "a bus", "text": "stop", "prompt_id": 1},
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pack = read_pack_file("longtext_bench", tmp_path / "q.jsonl")
    assert read_texts(pack, "0") == ["OPEN", "24 h"] and pack.prompts["skills"].to_pylist()[0] == ["sign", "short"]
    assert list_questions(pack, "0")[0]["start"] == 8
    assert "row 1: expected 'text' as a list of texts" in list_questions(pack, "1")[0]["error"]["message"]


def test_wegenbench_has_texts_a_type_tags_and_a_difficulty(tmp_path: Path) -> None:
    row = {
        "id": "CN_1",
        "prompt": "写着“开业”",
        "text": ["开业"],
        "type": "海报",
        "tag": ["中文"],
        "difficulty": "Hard",
    }
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    pack = read_pack_file("wegenbench_text", tmp_path / "q.jsonl")
    assert read_texts(pack, "CN_1") == ["开业"] and pack.prompts["skills"].to_pylist() == [["海报", "中文", "Hard"]]


@pytest.mark.parametrize("prompt", ["prompt_en", "prompt_cn"])
def test_oneigs_texts_are_a_python_list_literal(prompt: str, tmp_path: Path) -> None:
    wanted = ["Baker's", 'say "hi"', "two\nlines"]
    rows = [{"": 0, "id": "000", prompt: "a slide", "text_content": str(wanted)}]
    path = write_csv(tmp_path / "q.csv", [*rows[0]], rows)
    assert read_texts(read_pack_file("oneig_text", path), "000") == ["Baker's", 'say "hi"', r"two\nlines"]
    assert read_texts(read_pack_file("oneig_text", path, "fixed"), "000") == ["Baker's", 'say "hi"', "two lines"]


def test_cvtg_2k_expects_the_texts_in_single_quotes(tmp_path: Path) -> None:
    for folder in ("CVTG", "CVTG-Style"):
        (tmp_path / folder).mkdir()
        for area in (2, 3, 4, 5):
            listed = [
                {"index": 0, "prompt": f"a shop with 'Fresh' and 'Open {area}'"},
                {"index": 1, "prompt": "a shop"},
            ]
            write_json(tmp_path / f"{folder}/{area}.json", {"data_list": listed})
    pack = read_pack_file("cvtg_2k", tmp_path)
    assert len(pack.prompts) == 16 and read_texts(pack, "CVTG-Style_3_0") == ["Fresh", "Open 3"]
    assert list_questions(pack, "CVTG_2_1")[0]["error"]["kind"] == "no_questions"


@pytest.mark.parametrize("name", PACK_FILES)
def test_a_field_of_the_wrong_type_fails_only_its_row_and_is_reported_with_file_and_row(name: str) -> None:
    require_others_unaffected(name, PACK_FILES[name], row_depth=3 if name == "cvtg_2k" else 2)

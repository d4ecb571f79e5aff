"""Each release's question file is read as its own code reads it; one that cannot be is a line and costs no other."""

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.base.errors import PlumblineError, SourceError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.question_packs import PACKS, PackFile, pack_digest, read_pack
from plumbline.pipelines.sources.question_packs.independent import LAST
from plumbline.pipelines.sources.question_packs.pack import Convention, QuestionPack
from tests.question_packs import (
    ANNOTATIONS,
    choice,
    proposition,
    propositions,
    write_csv,
    write_geneval2,
    write_json,
    write_oneig,
    write_prism_bench,
    write_t2i_corebench,
    write_tiif_bench,
)

STORAGE = StorageConfig()


def pack_of(name: str, path: Path, convention: Convention = "released") -> QuestionPack:
    return read_pack(PackFile(pack=name, place=STORAGE.locate(str(path)), convention=convention), "suite")


def questions(pack: QuestionPack, prompt_id: str) -> list[dict[str, Any]]:
    return [row for row in pack.questions.to_pylist() if row["prompt_id"] == prompt_id]


def parents(pack: QuestionPack, prompt_id: str) -> list[list[str]]:
    """Return the texts of the parents of each question."""
    rows = questions(pack, prompt_id)
    text_of = {row["question_id"]: row["text"] for row in rows}
    return [[text_of[parent] for parent in row["parents"]] for row in rows]


# TIFA v1.0


def test_tifa_has_choices_with_their_answer_and_the_place_of_their_element(tmp_path: Path) -> None:
    row = choice("coco_1", "a red circle", "what is it?", ["circle", "square"], "circle", coco_val_id="7")
    pack = pack_of("tifa_v1", write_json(tmp_path / "q.json", [row, row]))
    first, second = questions(pack, "coco_1")
    assert (first["text"], first["choices"], first["answer"]) == ("what is it?", ["circle", "square"], "circle")
    assert (first["kind"], first["span"], first["start"], first["end"]) == ("object", "circle", 6, 12)
    assert second["question_id"] == first["question_id"] + "-2", "a question that stands twice counts twice"
    assert pack.prompts.to_pylist() == [{"prompt_id": "coco_1", "text": "a red circle", "skills": [], "suite": "suite"}]
    assert pack.problems == ()


def test_a_row_that_cannot_be_read_is_one_line_and_costs_nothing_else(tmp_path: Path) -> None:
    good = choice("a", "a circle", "is there a circle?", ["yes", "no"], "yes")
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
    pack = pack_of("tifa_v1", path)
    assert [row["text"] for row in questions(pack, "a")] == ["is there a circle?", "is it red?"]
    assert [line.split(": ")[0] for line in pack.problems] == [f"{path}, row {row}" for row in (1, 2, 3, 4, 5, 6)]
    assert "'maybe'" in pack.problems[0] and "another text" in pack.problems[5]


def test_a_prompt_whose_questions_can_none_of_them_be_read_has_an_error(tmp_path: Path) -> None:
    rows = propositions("a", "a circle")[:1]
    path = write_csv(
        tmp_path / "q.csv", ANNOTATIONS, [{**rows[0], "question_natural_language": " "}, *propositions("b", "b")]
    )
    pack = pack_of("dsg_1k", path)
    assert "a" not in pack.places and len(questions(pack, "b")) == 3, "as if it were not in the file"
    assert pack.problems[0].startswith(f"{path}, row 0: expected 'question_natural_language' as text")


@pytest.mark.parametrize(("content", "said"), [("{", "not JSON"), ('{"a": 1}', "expected a list"), ("", "empty")])
def test_a_file_of_another_form_is_refused_by_name(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(content)
    with pytest.raises(SourceError, match=said):
        pack_of("tifa_v1", tmp_path / "q.json")


@pytest.mark.parametrize("name", PACKS)
def test_a_file_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(PlumblineError, match=r"q\.json"):
        pack_of(name, tmp_path / "q.json")


# DSG-1k


def test_dsg_has_yes_no_questions_with_their_parents(tmp_path: Path) -> None:
    pack = pack_of("dsg_1k", write_csv(tmp_path / "q.csv", ANNOTATIONS, propositions("tifa_1", "a red circle")))
    first, second, _ = questions(pack, "tifa_1")
    assert (first["choices"], first["answer"], first["kind"]) == (["yes", "no"], "yes", "entity - whole")
    assert second["kind"] == "attribute - color"
    assert parents(pack, "tifa_1") == [[], ["Is there a circle?"], ["Is the circle red?"]]


def test_a_dependency_with_words_costs_the_release_all_of_its_prompt(tmp_path: Path) -> None:
    odd = propositions("a", "a circle")[:2] + [proposition("a", "a circle", 3, "1, background", "Is it far?", "global")]
    path = write_csv(tmp_path / "q.csv", ANNOTATIONS, [*odd, *propositions("b", "a square")])
    released, fixed = pack_of("dsg_1k", path, "released"), pack_of("dsg_1k", path, "fixed")
    assert parents(released, "a") == [[], [], []]
    assert parents(fixed, "a") == [[], ["Is there a circle?"], ["Is there a circle?"]]
    assert parents(released, "b") == parents(fixed, "b") != [[], [], []]
    assert len(released.problems) == len(fixed.problems) == 1
    assert released.problems[0].startswith(f"{path}, row 2: the dependency '1, background'")


def test_of_a_number_that_stands_twice_the_last_row_counts(tmp_path: Path) -> None:
    again = proposition("a", "a circle", 2, "0", "Is it round?", "attribute - shape")
    pack = pack_of("dsg_1k", write_csv(tmp_path / "q.csv", ANNOTATIONS, [*propositions("a", "a circle"), again]))
    assert [row["text"] for row in questions(pack, "a")][1] == "Is it round?"
    assert "stands twice" in pack.problems[0]


# DPG-Bench


def test_the_release_does_not_read_the_first_row_and_loses_the_first_prompt_by_it(tmp_path: Path) -> None:
    """Its code looks for the answer to the question that it has not put, and leaves the image out."""
    path = write_csv(tmp_path / "q.csv", ANNOTATIONS, [*propositions("a", "a circle"), *propositions("b", "a square")])
    released, fixed = pack_of("dpg_bench", path, "released"), pack_of("dpg_bench", path, "fixed")
    (failed,) = questions(released, "a")
    assert failed["error"]["kind"] == "no_questions" and not failed["error"]["retryable"]
    assert f"{path}, row 0: the release does not read the row" in failed["error"]["message"]
    assert len(questions(fixed, "a")) == 3 and fixed.problems == ()
    assert questions(released, "b") == questions(fixed, "b")
    assert released.problems == (f"{path}, row 0: left out, as in the release; benchmark.convention=fixed reads it",)


def test_a_first_prompt_that_no_answer_is_missing_of_keeps_its_other_questions(tmp_path: Path) -> None:
    apart = [row | {"dependency": "0"} for row in propositions("a", "a circle")]
    pack = pack_of("dpg_bench", write_csv(tmp_path / "q.csv", ANNOTATIONS, apart))
    assert [row["text"] for row in questions(pack, "a")] == ["Is the circle red?", "Is the circle above a square?"]


# GenEval2


def test_geneval2_has_one_right_answer_for_each_atom(tmp_path: Path) -> None:
    pack = pack_of("geneval2", write_geneval2(tmp_path / "q.jsonl", count=2))
    assert pack.prompts["prompt_id"].to_pylist() == ["0", "1"]
    assert pack.prompts["skills"].to_pylist() == [["3 atoms"]] * 2
    count, there = questions(pack, "1")
    assert (count["choices"], count["answer"], count["kind"]) == (["one"], "one", "count")
    assert (there["choices"], there["kind"]) == (["Yes"], "object")


def test_a_line_of_geneval2_that_cannot_be_read_costs_its_prompt_alone(tmp_path: Path) -> None:
    path = write_geneval2(tmp_path / "q.jsonl", count=2)
    good = path.read_text().splitlines()
    odd = json.loads(good[0]) | {"skills": ["count"]}
    path.write_text("\n".join([good[0], json.dumps(odd), "{", good[1]]))
    pack = pack_of("geneval2", path)
    assert pack.prompts["prompt_id"].to_pylist() == ["0", "1", "3"], "a row's number stays its own"
    assert [row["error"]["kind"] for row in questions(pack, "1")] == ["no_questions"]
    assert [line.split(": ")[0] for line in pack.problems] == [f"{path}, row 1", f"{path}, row 2"]


# OneIG


def test_oneig_has_its_prompts_in_one_file_and_their_questions_in_others(tmp_path: Path) -> None:
    pack = pack_of("oneig", write_oneig(tmp_path / "oneig", count=2))
    assert pack.prompts["prompt_id"].to_pylist() == ["object_000", "object_001"]
    assert pack.prompts["skills"].to_pylist() == [["object", "short", "NP"]] * 2
    assert parents(pack, "object_001") == [[], ["Is there a circle?"]]


def test_questions_without_a_prompt_or_of_another_form_are_told_by_their_file(tmp_path: Path) -> None:
    folder = write_oneig(tmp_path / "oneig", count=2)
    file = folder / "scripts/alignment/Q_D/object.json"
    asked = json.loads(file.read_text())
    write_json(file, {**asked, "777": asked["000"], "001": {"question": "[]", "dependency": "{}"}})
    pack = pack_of("oneig", folder)
    assert [row["error"] is None for row in questions(pack, "object_000")] == [True, True]
    assert [row["error"]["kind"] for row in questions(pack, "object_001")] == ["no_questions"]
    assert [line.split(": ")[0] for line in pack.problems] == [f"{file}, row 1", f"{file}, row 2"], pack.problems


def test_a_folder_without_the_release_is_told_by_the_file_that_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"OneIG-Bench\.csv: not found"):
        pack_of("oneig", tmp_path)


# Texts


def texts(pack: QuestionPack, prompt_id: str) -> list[str]:
    return [row["answer"] for row in questions(pack, prompt_id)]


def test_longtext_bench_has_a_list_of_texts_for_each_prompt(tmp_path: Path) -> None:
    rows = [
        {"category": "sign", "length": "short", "prompt": "a shop, OPEN", "text": ["OPEN", "24 h"], "prompt_id": 0},
        {"prompt": "a bus", "text": "stop", "prompt_id": 1},
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pack = pack_of("longtext_bench", tmp_path / "q.jsonl")
    assert texts(pack, "0") == ["OPEN", "24 h"] and pack.prompts["skills"].to_pylist()[0] == ["sign", "short"]
    assert questions(pack, "0")[0]["start"] == 8
    assert "row 1: expected 'text' as a list of texts" in questions(pack, "1")[0]["error"]["message"]


@pytest.mark.parametrize("prompt", ["prompt_en", "prompt_cn"])
def test_oneigs_texts_are_a_list_as_python_writes_it(prompt: str, tmp_path: Path) -> None:
    wanted = ["Baker's", 'say "hi"', "two\nlines"]
    rows = [{"": 0, "id": "000", prompt: "a slide", "text_content": str(wanted)}]
    path = write_csv(tmp_path / "q.csv", [*rows[0]], rows)
    assert texts(pack_of("oneig_text", path), "000") == ["Baker's", 'say "hi"', r"two\nlines"]
    assert texts(pack_of("oneig_text", path, "fixed"), "000") == ["Baker's", 'say "hi"', "two lines"]


def test_cvtg_2k_wants_what_stands_in_single_quotes(tmp_path: Path) -> None:
    for folder in ("CVTG", "CVTG-Style"):
        (tmp_path / folder).mkdir()
        for area in (2, 3, 4, 5):
            listed = [
                {"index": 0, "prompt": f"a shop with 'Fresh' and 'Open {area}'"},
                {"index": 1, "prompt": "a shop"},
            ]
            write_json(tmp_path / f"{folder}/{area}.json", {"data_list": listed})
    pack = pack_of("cvtg_2k", tmp_path)
    assert len(pack.prompts) == 16 and texts(pack, "CVTG-Style_3_0") == ["Fresh", "Open 3"]
    assert questions(pack, "CVTG_2_1")[0]["error"]["kind"] == "no_questions"


# Checklists


def test_t2i_corebench_has_yes_no_questions_with_their_first_tag(tmp_path: Path) -> None:
    pack = pack_of("t2i_corebench", write_t2i_corebench(tmp_path / "q.json", count=1))
    (prompt,) = pack.prompts.to_pylist()
    asked = questions(pack, prompt["prompt_id"])
    assert [(row["answer"], row["kind"]) for row in asked] == [("yes", "content"), ("yes", "layout")]
    assert prompt["skills"] == ["Composition", "Multi-Instance"]


def test_tiif_bench_asks_the_same_of_a_prompt_in_both_lengths(tmp_path: Path) -> None:
    folder = write_tiif_bench(tmp_path / "testmini_eval_prompts", count=2)
    pack = pack_of("tiif_bench", folder)
    assert pack.prompts["prompt_id"].to_pylist() == [
        "numeracy_0_short", "numeracy_0_long", "numeracy_1_short", "numeracy_1_long"
    ]  # fmt: skip
    assert [(row["text"], row["answer"], row["kind"]) for row in questions(pack, "numeracy_1_long")] == [
        ("Is there a circle?", "yes", "numeracy"),
        ("Is it square?", "no", "numeracy"),
    ]
    assert pack.prompts["skills"].to_pylist()[1] == ["numeracy", "long"]


# Prompts alone


def test_prism_bench_has_prompts_by_track_and_line_and_no_questions(tmp_path: Path) -> None:
    pack = pack_of("prism_bench", write_prism_bench(tmp_path / "en"))
    assert [(row["prompt_id"], row["text"], row["skills"]) for row in pack.prompts.to_pylist()][:2] == [
        ("affection_0", "a affection", ["affection"]), ("composition_0", "a composition", ["composition"]),
    ]  # fmt: skip
    assert len(pack.prompts) == len(pack.problems) == 7 and not pack.choices


# WISE_Verified


def test_wise_has_an_explanation_of_each_prompt_and_its_category_by_its_number(tmp_path: Path) -> None:
    rows = [{"Prompt": "p", "Explanation": "e", "prompt_id": number} for number in (1, 400, 401, 520, 641, 1000, 1001)]
    path = write_json(tmp_path / "merge.json", rows)
    pack = pack_of("wise_verified", path)
    skills = ["culture", "culture", "time", "time", "biology", "chemistry"]
    assert pack.prompts["skills"].to_pylist() == [[skill] for skill in skills]
    assert (questions(pack, "401")[0]["text"], questions(pack, "401")[0]["choices"]) == ("e", [])
    assert pack.problems == (f"{path}, row 6: expected 'prompt_id' from 1 to 1000, found '1001'; the row is left out",)


def test_the_mean_over_all_prompts_has_the_weights_of_the_release() -> None:
    """calculate_verified.py: 0.4 of culture and 0.12 of each other category."""
    ends = [0, *LAST.values()]
    shares = {name: (end - begin) / 1000 for name, begin, end in zip(LAST, ends, ends[1:], strict=False)}
    assert shares == {"culture": 0.4, **dict.fromkeys(("time", "space", "biology", "physics", "chemistry"), 0.12)}


def test_wise_may_be_the_folder_with_its_three_files(tmp_path: Path) -> None:
    parts = {"cultural_common_sense": 1, "spatio-temporal_reasoning": 401, "natural_science": 641}
    for name, number in parts.items():
        row = {"Prompt": "p", "Explanation": "e", "prompt_id": number}
        write_json(tmp_path / f"{name}_verified.json", [row])
    assert pack_of("wise_verified", tmp_path).prompts["prompt_id"].to_pylist() == ["1", "401", "641"]


# UniGenBench++


@pytest.mark.parametrize(
    ("language", "keys"),
    [
        ("en", ("Testpoints", "Testpoint Description", "Primary Categories")),
        ("zh", ("考点", "考点对应描述", "一级垂类")),
    ],
)
def test_unigenbench_has_a_checkpoint_with_what_the_prompt_has_of_it(
    language: str, keys: tuple[str, str, str], tmp_path: Path
) -> None:
    told = json.dumps(dict(zip(keys, [["Style", "Style"], ["ink", "wash"], "Art"], strict=True)))
    names = ["index", f"prompt_{language}", f"sub_dims_{language}"]
    good, odd = ({names[0]: number, names[1]: "pandas in ink", names[2]: one} for number, one in enumerate([told, "{"]))
    path = write_csv(tmp_path / "q.csv", names, [good, odd])
    pack = pack_of("unigenbench", path)
    assert [(row["kind"], row["text"]) for row in questions(pack, "0")] == [("Style", "ink"), ("Style 2", "wash")]
    assert pack.prompts["skills"].to_pylist() == [["Art"], []]
    assert [row["error"]["kind"] for row in questions(pack, "1")] == ["no_questions"]
    assert len(pack.problems) == 1 and pack.problems[0].startswith(f"{path}, row 1: not JSON")


# All


def test_the_digest_is_of_what_is_asked_and_not_of_the_file(tmp_path: Path) -> None:
    rows = [choice("a", "a circle", "is it red?", ["yes", "no"], "yes")]
    one, other = write_json(tmp_path / "one.json", rows), tmp_path / "other.json"
    other.write_text(json.dumps(rows))
    assert pack_digest(pack_of("tifa_v1", one)) == pack_digest(pack_of("tifa_v1", other))
    write_json(other, [{**rows[0], "answer": "no"}])
    assert pack_digest(pack_of("tifa_v1", one)) != pack_digest(pack_of("tifa_v1", other))
    planned = PackFile(pack="tifa_v1", place=STORAGE.locate(str(other)), digest=pack_digest(pack_of("tifa_v1", one)))
    with pytest.raises(SourceError, match="have changed since the run was planned"):
        read_pack(planned, "suite")

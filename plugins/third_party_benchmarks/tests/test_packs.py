"""Each benchmark's question file is read as upstream's code reads it."""

import json
from pathlib import Path

import pytest

from plugins.third_party_benchmarks.tests.packs import (
    write_oneig,
    write_prism_bench,
    write_t2i_corebench,
    write_tiif_bench,
)
from plumbline.operators.base.errors import SourceError
from plumbline.plugins.third_party_benchmarks.question_packs.independent import LAST_PROMPT_BY_CATEGORY
from tests.pipelines.sources.test_question_packs import list_parents, list_questions, read_pack_file
from tests.question_packs import ANNOTATION_COLUMNS, make_propositions, write_csv, write_geneval2, write_json


def test_the_released_form_of_dpg_bench_skips_the_first_row_and_fails_on_the_first_prompt(tmp_path: Path) -> None:
    """The release's code fails to look up the answer to a question that it has skipped, and leaves the image out."""
    path = write_csv(
        tmp_path / "q.csv",
        ANNOTATION_COLUMNS,
        [*make_propositions("a", "a circle"), *make_propositions("b", "a square")],
    )
    released, fixed = read_pack_file("dpg_bench", path, "released"), read_pack_file("dpg_bench", path, "fixed")
    (failed,) = list_questions(released, "a")
    assert failed["error"]["kind"] == "no_questions" and not failed["error"]["retryable"]
    assert f"{path}, row 0: the release skips the row" in failed["error"]["message"]
    assert len(list_questions(fixed, "a")) == 3 and fixed.problems == ()
    assert list_questions(released, "b") == list_questions(fixed, "b")
    assert released.problems == (f"{path}, row 0: left out, as in the release; benchmark.convention=fixed reads it",)


def test_the_released_form_of_dpg_bench_keeps_a_first_prompt_with_independent_questions(tmp_path: Path) -> None:
    apart = [row | {"dependency": "0"} for row in make_propositions("a", "a circle")]
    pack = read_pack_file("dpg_bench", write_csv(tmp_path / "q.csv", ANNOTATION_COLUMNS, apart))
    assert [row["text"] for row in list_questions(pack, "a")] == ["Is the circle red?", "Is the circle above a square?"]


def test_geneval2_has_a_question_with_one_choice_for_each_atom(tmp_path: Path) -> None:
    pack = read_pack_file("geneval2", write_geneval2(tmp_path / "q.jsonl", count=2))
    assert pack.prompts["prompt_id"].to_pylist() == ["0", "1"]
    assert pack.prompts["skills"].to_pylist() == [["3 atoms"]] * 2
    count, there = list_questions(pack, "1")
    assert (count["choices"], count["answer"], count["kind"]) == (["one"], "one", "count")
    assert (there["choices"], there["kind"]) == (["Yes"], "object")


def test_an_invalid_line_of_geneval2_only_affects_its_own_prompt(tmp_path: Path) -> None:
    path = write_geneval2(tmp_path / "q.jsonl", count=2)
    good = path.read_text().splitlines()
    odd = json.loads(good[0]) | {"skills": ["count"]}
    path.write_text("\n".join([good[0], json.dumps(odd), "{", good[1]]))
    pack = read_pack_file("geneval2", path)
    assert pack.prompts["prompt_id"].to_pylist() == ["0", "1", "3"], "prompts keep the numbers of their rows"
    assert [row["error"]["kind"] for row in list_questions(pack, "1")] == ["no_questions"]
    assert [line.split(": ")[0] for line in pack.problems] == [f"{path}, row 1", f"{path}, row 2"]


def test_oneig_prompts_are_joined_with_questions_from_other_files(tmp_path: Path) -> None:
    pack = read_pack_file("oneig", write_oneig(tmp_path / "oneig", count=2))
    assert pack.prompts["prompt_id"].to_pylist() == ["object_000", "object_001"]
    assert pack.prompts["skills"].to_pylist() == [["object", "short", "NP"]] * 2
    assert list_parents(pack, "object_001") == [[], ["Is there a circle?"]]


def test_invalid_oneig_questions_are_reported_with_file_and_row(tmp_path: Path) -> None:
    folder = write_oneig(tmp_path / "oneig", count=2)
    file = folder / "scripts/alignment/Q_D/object.json"
    asked = json.loads(file.read_text())
    write_json(file, {**asked, "777": asked["000"], "001": {"question": "[]", "dependency": "{}"}})
    pack = read_pack_file("oneig", folder)
    assert [row["error"] is None for row in list_questions(pack, "object_000")] == [True, True]
    assert [row["error"]["kind"] for row in list_questions(pack, "object_001")] == ["no_questions"]
    assert [line.split(": ")[0] for line in pack.problems] == [f"{file}, row 1", f"{file}, row 2"], pack.problems


def test_a_folder_without_the_question_files_is_an_error_that_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"OneIG-Bench\.csv: not found"):
        read_pack_file("oneig", tmp_path)


def test_t2i_corebench_questions_have_their_first_tag_as_kind(tmp_path: Path) -> None:
    pack = read_pack_file("t2i_corebench", write_t2i_corebench(tmp_path / "q.json", count=1))
    (prompt,) = pack.prompts.to_pylist()
    asked = list_questions(pack, prompt["prompt_id"])
    assert [(row["answer"], row["kind"]) for row in asked] == [("yes", "content"), ("yes", "layout")]
    assert prompt["skills"] == ["Composition", "Multi-Instance"]


def test_tiif_bench_has_the_same_questions_for_both_lengths_of_a_prompt(tmp_path: Path) -> None:
    folder = write_tiif_bench(tmp_path / "testmini_eval_prompts", count=2)
    pack = read_pack_file("tiif_bench", folder)
    assert pack.prompts["prompt_id"].to_pylist() == [
        "numeracy_0_short", "numeracy_0_long", "numeracy_1_short", "numeracy_1_long"
    ]  # fmt: skip
    assert [(row["text"], row["answer"], row["kind"]) for row in list_questions(pack, "numeracy_1_long")] == [
        ("Is there a circle?", "yes", "numeracy"),
        ("Is it square?", "no", "numeracy"),
    ]
    assert pack.prompts["skills"].to_pylist()[1] == ["numeracy", "long"]


def test_prism_bench_prompts_are_numbered_by_track_and_have_no_questions(tmp_path: Path) -> None:
    pack = read_pack_file("prism_bench", write_prism_bench(tmp_path / "en"))
    assert [(row["prompt_id"], row["text"], row["skills"]) for row in pack.prompts.to_pylist()][:2] == [
        ("affection_0", "a affection", ["affection"]), ("composition_0", "a composition", ["composition"]),
    ]  # fmt: skip
    assert len(pack.prompts) == len(pack.problems) == 7 and not pack.choices


def test_wise_prompts_have_an_explanation_and_a_category_that_follows_from_the_number(tmp_path: Path) -> None:
    rows = [{"Prompt": "p", "Explanation": "e", "prompt_id": number} for number in (1, 400, 401, 520, 641, 1000, 1001)]
    path = write_json(tmp_path / "merge.json", rows)
    pack = read_pack_file("wise_verified", path)
    skills = ["culture", "culture", "time", "time", "biology", "chemistry"]
    assert pack.prompts["skills"].to_pylist() == [[skill] for skill in skills]
    assert (list_questions(pack, "401")[0]["text"], list_questions(pack, "401")[0]["choices"]) == ("e", [])
    assert pack.problems == (f"{path}, row 6: expected 'prompt_id' from 1 to 1000, found '1001'; the row is left out",)


def test_the_mean_over_all_prompts_weights_categories_like_the_published_score() -> None:
    """The weights in calculate_verified.py are 0.4 for culture and 0.12 for each other category."""
    ends = [0, *LAST_PROMPT_BY_CATEGORY.values()]
    shares = {
        name: (end - begin) / 1000 for name, begin, end in zip(LAST_PROMPT_BY_CATEGORY, ends, ends[1:], strict=False)
    }
    assert shares == {"culture": 0.4, **dict.fromkeys(("time", "space", "biology", "physics", "chemistry"), 0.12)}


def test_wise_can_be_read_from_a_folder_with_three_files(tmp_path: Path) -> None:
    parts = {"cultural_common_sense": 1, "spatio-temporal_reasoning": 401, "natural_science": 641}
    for name, number in parts.items():
        row = {"Prompt": "p", "Explanation": "e", "prompt_id": number}
        write_json(tmp_path / f"{name}_verified.json", [row])
    assert read_pack_file("wise_verified", tmp_path).prompts["prompt_id"].to_pylist() == ["1", "401", "641"]


@pytest.mark.parametrize(
    ("language", "keys"),
    [
        ("en", ("Testpoints", "Testpoint Description", "Primary Categories")),
        ("zh", ("考点", "考点对应描述", "一级垂类")),
    ],
)
def test_unigenbench_checkpoints_have_a_name_and_a_description(
    language: str, keys: tuple[str, str, str], tmp_path: Path
) -> None:
    told = json.dumps(dict(zip(keys, [["Style", "Style"], ["ink", "wash"], "Art"], strict=True)))
    names = ["index", f"prompt_{language}", f"sub_dims_{language}"]
    good, odd = ({names[0]: number, names[1]: "pandas in ink", names[2]: one} for number, one in enumerate([told, "{"]))
    path = write_csv(tmp_path / "q.csv", names, [good, odd])
    pack = read_pack_file("unigenbench", path)
    assert [(row["kind"], row["text"]) for row in list_questions(pack, "0")] == [("Style", "ink"), ("Style 2", "wash")]
    assert pack.prompts["skills"].to_pylist() == [["Art"], []]
    assert [row["error"]["kind"] for row in list_questions(pack, "1")] == ["no_questions"]
    assert len(pack.problems) == 1 and pack.problems[0].startswith(f"{path}, row 1: not JSON")

"""Editors' results are scored with a benchmark's prompts and sources, using the file names of the benchmark's own code.

The files are small and have the layouts of GEdit-Bench's Parquet, ImgEdit's basic_edit.json, and MagicBrush's sessions.
"""

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from tests.bench_of import write_rows
from tests.commands import find_newest_run_folder, run


def encode_grey(level: int) -> bytes:
    encoded = io.BytesIO()
    Image.new("RGB", (12, 12), (level, level, level)).save(encoded, "png")
    return encoded.getvalue()


def write_image(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_grey(level))


def make_gedit_row(key: str, kind: str, language: str, source: int | None) -> dict[str, Any]:
    picture = None if source is None else {"bytes": encode_grey(source), "path": f"{key}.png"}
    records = {"task_type": kind, "key": key, "instruction": f"{language}: {key}", "instruction_language": language}
    return {**records, "input_image": picture, "input_image_raw": picture, "Intersection_exist": True}


def write_gedit(folder: Path) -> Path:
    """Write three edits in two languages, one of them without a source; return the folder with the prompts.

    The prompts are in two files. One model's results for all edits are in another folder.
    """
    rows = [
        make_gedit_row(key, kind, language, source) for language in ("cn", "en") for key, kind, source in GEDIT_ROWS
    ]
    write_rows(folder / "data/train-00001-of-00002.parquet", rows[4:])
    write_rows(folder / "data/train-00000-of-00002.parquet", rows[:4])
    for language, level in (("en", 51), ("cn", 102)):
        for key, kind, source in GEDIT_ROWS:
            write_image(folder / f"results/one/fullset/{kind}/{language}/{key}.png", level)
            write_image(folder / f"results/one/fullset/{kind}/{language}/{key}_SRCIMG.png", source or 0)
    return folder / "data"


GEDIT_ROWS = [("b1", "text_change", 0), ("a0", "subject-add", 51), ("c2", "subject-add", None)]


def write_imgedit(folder: Path) -> Path:
    """Write three edits and their results, but only two source images; return the prompts file.

    The source images are in one folder per topic.
    """
    edits = {"1082": ("animal/2.jpg", "adjust"), "673": ("style/1.jpg", "style"), "97": ("for_add/3.jpg", "adjust")}
    records = {key: {"id": name, "prompt": f"edit {key}", "edit_type": kind} for key, (name, kind) in edits.items()}
    write_image(folder / "singleturn/animal/2.jpg", 0)
    write_image(folder / "singleturn/style/1.jpg", 51)
    (folder / "singleturn/singleturn.json").write_text(json.dumps(records))
    for key in ("673", "97", "1082"):
        write_image(folder / f"results/one/{key}.png", 51)
    return folder / "singleturn/singleturn.json"


def write_magicbrush(folder: Path) -> Path:
    """Write two sessions. One has two turns, and the second turn's input is missing. Return the sessions file."""
    turns = {
        "139": [("139-input.png", "add a hat"), ("139-output1.png", "make it red")],
        "30": [("30-input.png", "remove the dog")],
    }
    records = {key: [{"input": name, "instruction": text} for name, text in value] for key, value in turns.items()}
    write_image(folder / "test/images/139/139-input.png", 0)
    write_image(folder / "test/images/30/30-input.png", 51)
    (folder / "test/edit_sessions.json").write_text(json.dumps(records))
    for name in ("30/30_1", "139/139_1", "139/139_inde_2", "139/139_iter_2"):
        write_image(folder / f"results/{name}.png", 51)
    return folder / "test/edit_sessions.json"


def score_results(benchmark: str, prompts: Path, folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    given = [f"images={folder}/results", f"benchmark={benchmark}", f"benchmark.prompts={prompts}", "metric=[source_l1]"]
    ended = run("score", *given, "cluster=here", f"store={folder}/store", "max_failed=0.4")
    assert ended.code == 2, ended.err
    run_folder = find_newest_run_folder(folder / "store")
    return tuple(pd.read_parquet(run_folder / f"{name}.parquet") for name in ("scores", "summary"))  # type: ignore


@pytest.mark.parametrize(
    "benchmark, write, expected, generator, kinds",
    [
        ("gedit_bench", write_gedit, {"b1": 0.2, "a0": 0.0, "c2": None}, "one", {"text_change", "subject-add"}),
        ("gedit_bench_cn", write_gedit, {"b1": 0.4, "a0": 0.2, "c2": None}, "one", {"text_change", "subject-add"}),
        ("imgedit", write_imgedit, {"1082": 0.2, "673": 0.0, "97": None}, "one", {"adjust", "style"}),
        ("magicbrush", write_magicbrush, {"139_1": 0.2, "30_1": 0.0, "139_inde_2": None}, "results", set()),
    ],
)
def test_results_are_found_by_the_file_names_of_the_benchmarks_own_code(
    benchmark: str, write: Any, expected: dict[str, float | None], generator: str, kinds: set[str], tmp_path: Path
) -> None:
    scores, summary = score_results(benchmark, write(tmp_path), tmp_path)
    found = scores.set_index("prompt_id")
    assert set(found.index) == set(expected) and len(found) == len(expected)
    assert set(found["generator"]) == {generator}
    for prompt_id, score in expected.items():
        if score is None:
            assert "source" in found.at[prompt_id, "error"]["message"]
        else:
            assert found.at[prompt_id, "score"] == pytest.approx(score, abs=1e-6)
    assert set(summary["skill"]) == {"overall", *kinds}


def test_a_language_that_no_prompt_has_is_refused(tmp_path: Path) -> None:
    given = [f"images={tmp_path}/results", "benchmark=gedit_bench", f"benchmark.prompts={write_gedit(tmp_path)}"]
    where = "benchmark.prompt_columns.where=[instruction_language:fr]"
    ended = run("score", *given, where, "metric=[source_l1]", "cluster=here", f"store={tmp_path}/store")
    assert ended.code == 1
    assert "no prompt has instruction_language:fr; correct prompt_columns.where" in ended.err
    ended = run("score", *given, "benchmark.prompt_columns.where=[en]", "metric=[source_l1]", "cluster=here")
    assert "benchmark.prompt_columns.where: expected COLUMN:VALUE, got 'en'" in ended.err

"""An export of edits contains each source image where the trainer reads it; formats without sources are refused."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.bench_of import read_image_rows, read_prompt_rows, run_bench, write_benchmark, write_rows
from tests.commands import run_for_output, run_refused

N_PROMPTS = 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweep over two editors, and return the store.

    The prompts are in the reverse order of the images, so that the last prompt, which has no source, comes first.
    """
    folder = write_benchmark(tmp_path_factory.mktemp("edits") / "bench", count=N_PROMPTS)
    sources = [*make_other_sources()[:-1], None]
    rows = [{**row, "before": source} for row, source in zip(read_prompt_rows(N_PROMPTS), sources, strict=True)]
    write_rows(folder / "prompts.parquet", rows[::-1], row_group=3)
    run_bench(folder, folder.parent / "store", "metric=[clipscore]", "benchmark.columns.source=before")
    return folder.parent / "store"


def make_other_sources() -> list[bytes]:
    """Return ember's images for the same prompts, which can replace the sources of the edits."""
    return [row["image"] for row in read_image_rows("ember", N_PROMPTS)]


def export(store: Path, output: Path, form: str, code: int = 1) -> str:
    words = ["run=latest", f"format={form}", f"store={store}", f"output={output}", "selection.margin=0", "held_out=0"]
    return run_for_output("rewards", *words, "max_failed=0.5", code=code)


def find_source(prompt: str) -> bytes:
    return make_other_sources()[[row["text"] for row in read_prompt_rows(N_PROMPTS)].index(prompt)]


def test_ms_swift_gets_the_source_before_the_edit_in_both_messages(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "ms_swift", code=2)
    rows = [json.loads(line) for line in (tmp_path / "out/train.jsonl").read_text().splitlines()]
    assert len(rows) == N_PROMPTS - 1
    for row in rows:
        for side in ("", "rejected_"):
            source, edit = (tmp_path / "out" / path for path in row[f"{side}images"])
            question = row[f"{side}messages"][0]["content"]
            assert question.count("<image>") == 2 and edit.read_bytes() != source.read_bytes()
            assert source.read_bytes() == find_source(question.split('"')[1])
        assert row["images"][0] == row["rejected_images"][0] and row["images"][1] != row["rejected_images"][1]


def read_editreward_item(sample: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """Return a sample's images and scores as TIGER-AI-Lab/EditReward's PairwiseEditOriginalDataset does.

    The code is in EditReward/dataset/pairwise_edit_dataset.py. A sample is dropped (the result is None) unless its
    three files exist, and only the last of a model's dimension scores is used.
    """
    paths = [folder / sample[name] for name in ("path_src", "path1", "path2")]
    if not all(path.exists() for path in paths):
        return None
    dims = [[value for key, value in sample.items() if key.startswith(f"model{n}_dim") and key.endswith("_score")]
            for n in (1, 2)]  # fmt: skip
    return {"images": [path.read_bytes() for path in paths], "A_scores": dims[0][-1], "B_scores": dims[1][-1]}


def test_editreward_gets_three_files_and_scores_of_both_edits(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "editreward", code=2)
    samples = json.loads((tmp_path / "out/train.json").read_text())
    assert len(samples) == N_PROMPTS - 1
    for sample in samples:
        item = read_editreward_item(sample, tmp_path / "out")
        assert item is not None and item["A_scores"] > item["B_scores"]
        assert item["images"][0] == find_source(sample["prompt"]) and len(set(item["images"])) == 3
        assert sample["model1_overall_score"] == item["A_scores"]


def test_instruct_pix2pix_gets_input_instruction_and_the_best_edit(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "instruct_pix2pix", code=2)
    table = datasets.load_dataset("parquet", data_files=f"{tmp_path}/out/data/train-*.parquet", split="train")
    assert isinstance(table.features["input_image"], datasets.Image)
    rows = table.cast_column("input_image", datasets.Image(decode=False)).to_list()
    assert len(rows) == N_PROMPTS - 1
    assert all(row["input_image"]["bytes"] == find_source(row["edit_prompt"]) for row in rows)
    best = {(row["prompt_id"], row["generator"]): row["edited_image"]["bytes"] for row in rows}
    made = {
        (row["prompt_id"], name): row["image"]
        for name in ("atlas", "flint")
        for row in read_image_rows(name, N_PROMPTS)
    }
    assert all(made[key] == image for key, image in best.items())


def test_trl_shows_a_judge_the_source_before_the_two_edits(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "trl_vision_dpo", code=2)
    rows = datasets.load_dataset("parquet", data_files=f"{tmp_path}/out/data/train-*.parquet", split="train")
    for row in rows.cast_column("images", [datasets.Image(decode=False)]).to_list():
        assert len(row["images"]) == 3
        assert row["images"][0]["bytes"] == find_source(row["prompt"][0]["content"].split('"')[1])


@pytest.mark.parametrize("form", ["pairs", "verl_omni", "best_of_n"])
def test_a_format_without_a_field_for_sources_is_refused(store: Path, tmp_path: Path, form: str) -> None:
    line = run_refused("rewards", "run=latest", f"format={form}", f"store={store}", f"output={tmp_path}/out")
    assert "cannot store the source images" in line and "ms_swift" in line and "rewards" in line
    assert not (tmp_path / "out").exists()


def test_rewards_without_images_are_exported_as_for_any_run(store: Path, tmp_path: Path) -> None:
    export(store, tmp_path / "out", "rewards", code=0)
    rows = datasets.load_dataset("parquet", data_files=f"{tmp_path}/out/data/train-*.parquet", split="train")
    assert len(rows) == 2 * N_PROMPTS


def test_a_format_of_edits_needs_a_run_of_edits(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", count=N_PROMPTS)
    run_bench(folder, tmp_path / "store", "metric=[clipscore]")
    words = ["run=latest", "format=editreward", f"store={tmp_path}/store", f"output={tmp_path}/out"]
    assert "benchmark.columns.source" in run_refused("rewards", *words)

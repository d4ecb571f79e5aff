"""Sweeps on real Ray: resumable, incremental, the same on a folder and on S3, and with no row lost."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from plumbline.operators import schemas
from plumbline.pipelines.cells.runs import list_runs
from plumbline.pipelines.running.events import Totals
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import FinishedSweep, run_sweep
from tests.bench_of import images, prompts, sweep_config, write_benchmark, write_rows


def run(folder: str | Path, store: str | Path, *overrides: str) -> FinishedSweep:
    return run_sweep(plan_sweep(sweep_config(folder, store, *overrides)), lambda progress: None)


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.slow), "s3"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A benchmark and a store, both on disk or both on S3."""
    folder = write_benchmark(tmp_path / "bench")
    if request.param == "folder":
        return str(folder), str(tmp_path / "store")
    import fsspec

    bucket = request.getfixturevalue("bucket")
    fsspec.filesystem("s3", use_listings_cache=False).put(f"{folder}/", f"{bucket}/bench/", recursive=True)
    return f"{bucket}/bench", f"{bucket}/store"


def test_a_sweep_computes_all_a_second_nothing_and_a_new_revision_only_what_stands_on_it(
    places: tuple[str, str],
) -> None:
    seen = Totals()
    planned = plan_sweep(sweep_config(*places))
    first = run_sweep(planned, seen.add)
    assert (first.computed, first.exit_code) == (18, 0)
    assert {name: (state.cells, state.rows, state.failed_rows) for name, state in seen.nodes.items()} == {
        "questions": (2, 8, 0),
        "answers:vqa": (4, 16, 0),
        "similarities:clip": (4, 16, 0),
        "scores": (8, 16, 0),
    }
    scores = first.results.read_scores()
    assert scores.schema == schemas.SCORES and len(scores) == 2 * 2 * 8
    assert scores.column("score").null_count == 0
    again = run(*places)
    assert again.computed == 0 and again.unchanged
    assert again.results.read_scores().sort_by("image_id") == scores.sort_by("image_id")
    assert run(*places, "models.vqa.revision=v2").computed == 8
    store = planned.store
    manifest = json.loads(store.read_text(f"runs/{first.run_id}/manifest.json") or "")
    assert manifest["counts"]["cells_computed"] == 18 and manifest["exit_code"] == 0
    cells = store.read_table(f"runs/{first.run_id}/cells.parquet")
    assert cells.column("state").to_pylist() == ["committed"] * 18 and "cells" not in manifest
    assert [record.latest for record in list_runs(store)] == [False, True]
    with (store.place / f"runs/{first.run_id}/summary.parquet").open() as file:
        assert pq.read_table(file).schema.names == schemas.SUMMARY.names


def test_every_way_a_row_can_fail_leaves_a_null_with_its_reason_and_all_else_scored(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas", "borealis", "cobalt", "drift", "flint"])
    asked = prompts(8)
    asked[7]["text"] = " "
    write_rows(folder / "prompts.parquet", asked)
    bad = images("flint", 8)
    bad[0]["image"] = b"not an image"
    bad[1]["image"] = bad[1]["image"][:60]
    bad[2]["prompt_id"] = "nobody's"
    bad[3]["prompt_id"] = None
    write_rows(folder / "images/flint/00000.parquet", bad)
    write_rows(folder / "images/borealis/00000.parquet", images("borealis", 6))
    truncated = folder / "images/cobalt/00000.parquet"
    truncated.write_bytes(truncated.read_bytes()[:-100])

    garbled = folder / "images/drift/00000.parquet"
    content = bytearray(garbled.read_bytes())
    content[4:2000] = b"\xff" * 1996
    garbled.write_bytes(content)

    done = run(folder, tmp_path / "store", "max_failed=0.6")
    assert done.exit_code == 2
    errors = done.results.errors.to_pylist()
    kinds = {
        generator: sorted(e["kind"] for e in errors if e["generator"] == generator and e["metric"] == "vqascore")
        for generator in ("atlas", "borealis", "cobalt", "drift", "flint")
    }
    assert kinds == {
        "atlas": ["empty_prompt"],
        "borealis": ["missing_image", "missing_image"],
        "cobalt": ["broken_file"] * 8,
        "drift": ["broken_file"] * 4 + ["empty_prompt"],
        "flint": ["corrupt_image", "corrupt_image", "empty_prompt", "missing_image", "missing_image",
                  "missing_prompt_id", "unknown_prompt"],
    }  # fmt: skip
    for file in (truncated, garbled):
        broken = [e["message"] for e in errors if e["generator"] == file.parent.name and e["kind"] == "broken_file"]
        assert broken and all(str(file) in message for message in broken)
    scores = done.results.read_scores().to_pylist()
    assert all((row["score"] is None) == (row["error"] is not None) for row in scores)
    assert sum(row["score"] is not None for row in scores) == 2 * (7 + 6 + 0 + 3 + 3)
    overall = {
        row["generator"]: (row["n"], row["n_null"])
        for row in done.results.summary.to_pylist()
        if row["metric"] == "vqascore" and row["skill"] == "overall"
    }
    assert overall == {"atlas": (7, 1), "borealis": (6, 2), "cobalt": (0, 8), "drift": (3, 5), "flint": (3, 7)}
    assert run(folder, tmp_path / "store", "max_failed=0.1").exit_code == 1


@pytest.mark.slow
def test_stages_whose_pools_cannot_stand_together_run_in_waves_with_the_same_scores(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    together = run(folder, tmp_path / "one")
    big = [f"cluster.pools.{stage}.num_cpus=3" for stage in ("answers", "similarities", "scores")]
    waves = run(folder, tmp_path / "two", *big)
    assert waves.computed == together.computed
    assert waves.results.read_scores().sort_by("image_id") == together.results.read_scores().sort_by("image_id")


def test_metrics_that_share_a_model_share_its_pass_and_differ_by_their_reduction(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    products = "+metrics.product={kind: vqascore, model: vqa, reduction: product}"
    done = run(folder, tmp_path / "store", products, "metric=[vqascore]")
    scores = {(row["metric"], row["image_id"]): row["score"] for row in done.results.read_scores().to_pylist()}
    assert done.computed == 2 + 2 + 4
    for (metric, image), value in scores.items():
        if metric == "product":
            assert value == pytest.approx(scores["vqascore", image] ** 2, rel=1e-5)

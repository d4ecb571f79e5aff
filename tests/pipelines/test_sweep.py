"""Sweeps are resumable and incremental, work the same in a folder and on S3, and lose no rows."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from plumbline.operators.base import schemas
from plumbline.pipelines.running.events import ProgressTotals
from plumbline.pipelines.store.runs import list_runs
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import plan_bench, read_image_rows, run_bench, write_benchmark, write_rows


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.slow), "s3"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Return the addresses of a new benchmark and of a store, both on disk or both on S3."""
    folder = write_benchmark(tmp_path / "bench")
    if request.param == "folder":
        return str(folder), str(tmp_path / "store")
    import fsspec

    bucket = request.getfixturevalue("bucket")
    fsspec.filesystem("s3", use_listings_cache=False).put(f"{folder}/", f"{bucket}/bench/", recursive=True)
    return f"{bucket}/bench", f"{bucket}/store"


def test_a_second_sweep_computes_nothing_and_a_new_revision_only_dependent_cells(
    places: tuple[str, str],
) -> None:
    seen = ProgressTotals()
    planned = plan_bench(*places)
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
    again = run_bench(*places)
    assert again.computed == 0 and again.unchanged
    assert again.results.read_scores().sort_by("image_id") == scores.sort_by("image_id")
    assert run_bench(*places, "models.vqa.revision=v2").computed == 8
    store = planned.store
    manifest = json.loads(store.read_text(f"runs/{first.run_id}/manifest.json") or "")
    assert manifest["counts"]["cells_computed"] == 18 and manifest["exit_code"] == 0
    cells = store.read_table(f"runs/{first.run_id}/cells.parquet")
    assert cells.column("state").to_pylist() == ["committed"] * 18 and "cells" not in manifest
    assert [record.latest for record in list_runs(store)] == [False, True]
    with (store.place / f"runs/{first.run_id}/summary.parquet").open() as file:
        assert pq.read_table(file).schema.names == schemas.SUMMARY.names


def test_a_prompt_without_an_image_is_a_null_that_the_summary_counts(tmp_path: Path) -> None:
    """Other failures of rows are tested in tests/faults/test_bad_rows.py."""
    folder = write_benchmark(tmp_path / "bench", ["atlas", "borealis", "cobalt"])
    write_rows(folder / "images/borealis/00000.parquet", read_image_rows("borealis", 6))
    (folder / "images/cobalt/00000.parquet").write_bytes(b"PAR1")
    done = run_bench(folder, tmp_path / "store", "metric=[clipscore]", "max_failed=0.6")
    errors = [(row["generator"], row["kind"]) for row in done.results.read_errors().to_pylist()]
    assert sorted(errors) == [("borealis", "missing_image")] * 2 + [("cobalt", "broken_file")] * 8
    overall = {
        row["generator"]: (row["n"], row["n_null"])
        for row in done.results.summary.to_pylist()
        if row["skill"] == "overall"
    }
    assert overall == {"atlas": (8, 0), "borealis": (6, 2), "cobalt": (0, 8)}
    again = run_bench(folder, tmp_path / "store", "metric=[clipscore]", "max_failed=0.1")
    assert (done.exit_code, again.exit_code) == (2, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_stages_whose_pools_do_not_fit_together_run_in_waves_with_the_same_scores(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    together = run_bench(folder, tmp_path / "one", "cluster=local")
    big = ["cluster=local"] + [f"cluster.pools.{stage}.num_cpus=3" for stage in ("answers", "similarities", "scores")]
    waves = run_bench(folder, tmp_path / "two", *big)
    assert waves.computed == together.computed
    assert waves.results.read_scores().sort_by("image_id") == together.results.read_scores().sort_by("image_id")


def test_metrics_that_share_a_model_share_its_pass_and_differ_by_their_reduction(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    products = "+metrics.product={kind: vqascore, model: vqa, reduction: product}"
    done = run_bench(folder, tmp_path / "store", products, "metric=[vqascore]")
    scores = {(row["metric"], row["image_id"]): row["score"] for row in done.results.read_scores().to_pylist()}
    assert done.computed == 2 + 2 + 4
    for (metric, image), value in scores.items():
        if metric == "product":
            assert value == pytest.approx(scores["vqascore", image] ** 2, rel=1e-5)

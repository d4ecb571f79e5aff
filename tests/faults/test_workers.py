"""Workers that die or hang do not affect other rows, and a stage that cannot start reports the reason."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from plumbline.pipelines.running.errors import RunnerError
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import (
    SHAPES_FOLDER,
    make_sweep_config,
    plan_bench,
    read_image_rows,
    run_bench,
    run_config,
    run_plan,
    write_benchmark,
    write_rows,
)
from tests.faults.hook import BAIT_MARK, DEADLY_MARK, HANGING_IMAGE_ID, HANGING_MARK

pytestmark = pytest.mark.usefixtures("ray_cluster")


def sweep_marked_images(
    marks: dict[int, bytes], tmp_path: Path, *overrides: str
) -> tuple[FinishedSweep, list[dict[str, Any]]]:
    """Sweep over twelve images in three shards; `marks` contains bytes to append to images, by position.

    Return the finished sweep, and the rows that it read.
    """
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=12)
    rows = read_image_rows("atlas", 12)
    for row, mark in marks.items():
        rows[row]["image"] += mark
    write_rows(folder / "images/atlas/00000.parquet", rows)
    config = make_sweep_config(folder, tmp_path / "store", *overrides, "cluster=local")
    return run_config(config), rows


def list_failed_ids(done: FinishedSweep) -> set[str]:
    return {row["image_id"] for row in done.results.read_scores().to_pylist() if row["score"] is None}


MARK_BY_POSITION = {5: DEADLY_MARK, 10: HANGING_MARK}
CASES = [("edge_density", 3, {6: HANGING_MARK}), *(pytest.param(*case, MARK_BY_POSITION, marks=pytest.mark.slow)
         for case in (("edge_density", 3), ("edge_density", 1), ("clipscore", 2), ("vqascore", 1)))]  # fmt: skip
"""Cases (metric, shards per call, bytes to append to images by position).

Only the first case is fast: its metric needs no model, so replacement workers import no model libraries, and its only
marked image hangs until the deadline.
"""


@pytest.mark.parametrize(("metric", "bundle", "marks"), CASES)
def test_rows_that_kill_their_worker_or_hang_are_left_out_and_their_shards_are_scored(
    metric: str, bundle: int, marks: dict[int, bytes], tmp_path: Path
) -> None:
    deadlines = [f"cluster.pools.{stage}.deadline=5" for stage in ("answers", "similarities")]
    overrides = (f"metric=[{metric}]", "cluster.default.deadline=5", *deadlines, f"cluster.bundle={bundle}")
    done, rows = sweep_marked_images(marks, tmp_path, *overrides)
    assert list_failed_ids(done) == {rows[row]["image_id"] for row in marks}
    errors = done.results.read_errors().to_pylist()
    assert [(error["kind"], error["retryable"]) for error in errors] == [("killed_worker", True)] * len(marks)


@pytest.mark.slow
def test_the_deadline_ends_a_model_call_that_hangs_and_its_row_is_left_out(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=4)
    rows = read_image_rows("atlas", 4)
    rows[1]["image_id"] = HANGING_IMAGE_ID
    write_rows(folder / "images/atlas/00000.parquet", rows)
    overrides = ("metric=[clipscore]", "cluster.pools.similarities.deadline=5")
    done = run_bench(folder, tmp_path / "store", *overrides, "cluster=local")
    assert list_failed_ids(done) == {HANGING_IMAGE_ID}
    (error,) = done.results.read_errors().to_pylist()
    assert (error["kind"], error["retryable"]) == ("killed_worker", True)


@pytest.mark.slow
def test_a_shard_that_keeps_killing_workers_fails_alone_and_the_next_run_tries_it_again(tmp_path: Path) -> None:
    overrides = ("metric=[edge_density]", "cluster.max_attempts=2")
    done, rows = sweep_marked_images({4: DEADLY_MARK, 6: DEADLY_MARK}, tmp_path, *overrides)
    assert list_failed_ids(done) == {row["image_id"] for row in rows[4:8]}
    assert {e["message"] for e in done.results.read_errors().to_pylist()} == {"the worker died 2 times on this shard"}
    assert (done.exit_code, len(done.results.read_scores())) == (1, 12)

    left = plan_bench(tmp_path / "bench", tmp_path / "store", "cluster=local", *overrides).plan.missing
    assert {cell.recipe.stage for cell in left} == {"image_statistics", "scores"} and len(left) == 2


@pytest.mark.slow
def test_a_sweep_with_retry_failed_tries_an_abandoned_shard_again(tmp_path: Path) -> None:
    """The shard's image blocks the first process that decodes it until the deadline, but not the second process."""
    overrides = ("metric=[edge_density]", "cluster.max_attempts=1", "cluster.default.deadline=5")
    done, rows = sweep_marked_images({5: BAIT_MARK + str(tmp_path / "pid").encode()}, tmp_path, *overrides)
    assert list_failed_ids(done) == {row["image_id"] for row in rows[4:8]}
    write_rows(tmp_path / "bench/images/flint/00000.parquet", read_image_rows("flint", 12))
    config = make_sweep_config(tmp_path / "bench", tmp_path / "store", "cluster=local", *overrides, "retry_failed=true")
    again = run_config(config)
    assert (again.computed, again.retried) == (2, (4, 4))
    assert {error["kind"] for error in again.results.read_errors().to_pylist()} == {"not_computed"}
    assert {error["generator"] for error in again.results.read_errors().to_pylist()} == {"flint"}


@pytest.mark.slow
def test_a_model_that_does_not_load_stops_the_run_with_its_reason(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    weights = shutil.copytree(SHAPES_FOLDER.parent / "clip-shapes", tmp_path / "clip")
    overrides = ("metric=[clipscore]", f"models.clip.checkpoint={weights}")
    planned = plan_bench(folder, tmp_path / "store", *overrides, "cluster=local")
    (weights / "model.safetensors").write_bytes(b"gone bad after the plan was made")
    with pytest.raises(RunnerError, match=r"stage similarities:clip: .*[Hh]eader"):
        run_plan(planned)

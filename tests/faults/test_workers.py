"""What dies takes nothing with it: deadly shards are given up alone, and a stage that cannot start says why."""

import shutil
from pathlib import Path

import pytest

from pipelines.runner import RunnerError
from pipelines.sweep import plan_sweep, run_sweep
from tests.bench_of import PACK, images, sweep_config, write_benchmark, write_rows
from tests.faults.hook import DEADLY

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_a_shard_that_kills_its_worker_fails_alone_and_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=12)
    deadly = images("atlas", 12)
    deadly[5]["image"] += DEADLY
    write_rows(folder / "images/atlas/00000.parquet", deadly)
    config = sweep_config(folder, tmp_path / "store", "metric=[clipscore]", "cluster.max_attempts=2")

    done = run_sweep(plan_sweep(config), lambda progress: None)
    failed = {row["image_id"] for row in done.results.scores.to_pylist() if row["score"] is None}
    assert failed == {row["image_id"] for row in deadly[4:8]}
    assert {e["message"] for e in done.results.errors.to_pylist()} == {"the worker died 2 times on this shard"}
    assert (done.computed, done.exit_code) == (4, 1)

    left = plan_sweep(config).plan.missing
    assert {path.split("/")[0] for path in left} == {"similarities", "scores"} and len(left) == 2


def test_a_model_that_does_not_load_stops_the_run_with_its_reason(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    weights = shutil.copytree(PACK.parent / "clip-shapes", tmp_path / "clip")
    overrides = ("metric=[clipscore]", f"models.clip.checkpoint={weights}")
    planned = plan_sweep(sweep_config(folder, tmp_path / "store", *overrides))
    (weights / "model.safetensors").write_bytes(b"gone bad after the plan was made")
    with pytest.raises(RunnerError, match=r"stage similarities:clip: .*[Hh]eader"):
        run_sweep(planned, lambda progress: None)

"""A model whose weights are split over processes is evaluated under `accelerate launch`."""

import json
import os
import subprocess
import sys
from pathlib import Path

from plumbline.pipelines.base.storage import StorageConfig
from plumbline.plugins.training_loop.step_folder import StepFolder
from tests.environment import ROOT


def test_a_sharded_model_has_the_same_scores_as_the_whole_model_and_a_failing_rank_stops_all_ranks(
    tmp_path: Path,
) -> None:
    """On CPUs, Accelerate only runs several processes through MPI or with --multi_gpu."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
    options = ["--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"]
    script = ROOT / "plugins/training_loop/tests/sharded_training.py"
    done = subprocess.run(
        [*launch, *options, str(script), str(tmp_path / "evaluation"), str(tmp_path / "{rank}.json")], cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [rank["n_own"] for rank in ranks] == [ranks[0]["n_all"] / 2] * 2
    results = StepFolder(StorageConfig().locate(str(tmp_path / "evaluation"))).read_results()
    split, whole = (result["brightness"].previous for result in results[1:])
    assert [result.step for result in results] == [0, 100, 200] and split is not None and whole is not None
    assert split.verdict == "better" and (whole.step, whole.difference) == (100, 0.0)
    assert "Timed out waiting 2000ms" in ranks[0]["failure"] and ranks[1]["failure"] == "rank 1 is out of memory"

"""A report made by Ray tasks is byte-identical to the report made in one process."""

from pathlib import Path

import pytest

from plumbline.operators.rewards.combination import RewardConfig
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.report.report import write_report
from tests.operators.report.made import make_run


@pytest.mark.slow
def test_metrics_compared_in_parallel_make_the_same_report(tmp_path: Path, ray_cluster: None) -> None:
    """The report includes changes since an earlier run, and a reward that combines two metrics."""
    before, run = make_run(tmp_path, run_id="20260101-030405-000006"), make_run(tmp_path, counts={"rows": 72})
    reward = RewardConfig(weights={"gecko": 1.0, "clipscore": 1.0}, unit="z_score")
    made = []
    for most in (72, 71):
        cluster = ClusterConfig(driver_rows=most)
        write_report(run.store, compare=before.run_id, reward=reward, bradley_terry=True, cluster=cluster)
        made.append([(run.folder / name).read_bytes() for name in ("report.html", "summary.csv", "summary.md")])
    assert made[0] == made[1]

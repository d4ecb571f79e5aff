"""A sweep's images are rated in a study on S3, and the same sweep then judges its metrics by these ratings."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.study import SentAnswer, open_study
from tests.bench_of import list_arguments, write_benchmark
from tests.commands import find_newest_run_folder, run, run_for_output

ANSWERS_BY_TEMPLATE: dict[str, Any] = {"likert": {"atlas": 5, "flint": 2}, "vote": "tie"}


def test_a_sweep_judges_its_metrics_by_the_study_of_its_images(tmp_path: Path, bucket: str) -> None:
    given = list_arguments(write_benchmark(tmp_path / "bench", count=4), tmp_path / "store", "metric=[edge_density]")
    assert run("sweep", *given).code == 0
    store, folder = f"{tmp_path}/store", f"{bucket}/study"
    study = open_study(RateConfig(store=store, study=folder, templates=("likert", "vote"), repeats=0), print)
    for task in study.served.tasks.values():
        said = (
            ANSWERS_BY_TEMPLATE[task.template]
            if task.template == "vote"
            else ANSWERS_BY_TEMPLATE["likert"][task.generators[0]]
        )
        for rater in ("ann", "bob"):
            study.add(SentAnswer(task_id=task.task_id, version=1, rater=rater, answer=said, seconds=2.0))
    assert run("sweep", *given, "protocol=study", f"protocol.path={folder}").code == 0
    judged = pq.read_table(find_newest_run_folder(tmp_path / "store") / "metaeval/judgements.parquet").to_pylist()
    found = {(row["metric"], row["template"], row["statistic"]): row["n"] for row in judged}
    assert found["edge_density", "likert", "spearman"] == 8 and found["people", "vote", "alpha_ordinal"] == 4
    of_all = [row for row in judged if row["subset"] == "overall"]
    means = {row["generator"]: row["value"] for row in of_all if row["statistic"] == "mean_rating"}
    assert means == {"atlas": 5, "flint": 2}
    written = run_for_output("rate", f"store={store}", f"study={folder}", "export_to=label_studio")
    assert f"written: {folder}/exports/label_studio/likert.0.json" in written
    assert (study.place / "exports/label_studio/vote.xml").exists()

"""Reads the distribution of a benchmark's scores from the sketches that the runs of a store keep."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.metrics.table import falling_metrics
from plumbline.operators.report.changes import comparable_metrics
from plumbline.operators.results.metric_recipes import unranked_metrics
from plumbline.operators.results.percentile_ranks import UsualScores, largest_sketches
from plumbline.pipelines.store.runs import READERS, newest_first
from plumbline.pipelines.store.store import Store

MAX_RUNS = 120
"""Number of runs that are read, the newest ones."""


def read_usual_scores(store: Store, run_id: str, manifest: Mapping[str, Any]) -> UsualScores:
    """Read the scores of a run and of other runs of its benchmark, by metrics with the same settings and models.

    Runs whose sketches are missing or damaged are left out and counted.
    """
    benchmark = manifest.get("benchmark")
    others = [
        (run.run_id, comparable_metrics(run.manifest, manifest))
        for run in islice(newest_first(store), MAX_RUNS)
        if run.manifest is not None and run.manifest.get("benchmark") == benchmark and run.run_id != run_id
    ]
    wanted = [(run_id, list(manifest.get("metrics", ()))), *((other, names) for other, names in others if names)]
    with ThreadPoolExecutor(READERS) as pool:
        read = list(pool.map(lambda pair: _read(store, *pair), wanted))
    tables = [table for table in read if table is not None]
    unranked = unranked_metrics(manifest)
    ranked = {key: sketch for key, sketch in largest_sketches(tables).items() if key.metric not in unranked}
    return UsualScores(str(benchmark), ranked, falling_metrics(manifest), len(read) - len(tables))


def _read(store: Store, run_id: str, metrics: list[str]) -> pa.Table | None:
    """Read the sketches of a run's scores by some metrics; None if it has none."""
    try:
        kept = store.read_table(f"runs/{run_id}/usual_scores.parquet")
    except PlumblineError:
        return None
    return kept.filter(pc.is_in(kept.column("metric"), pa.array(metrics, pa.string())))

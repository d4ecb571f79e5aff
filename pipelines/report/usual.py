"""The usual scores of a run's benchmark, read from what all runs of the store keep of theirs."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.metrics.table import falling_metrics, read_metrics
from plumbline.operators.report.changes import comparable_metrics
from plumbline.operators.results.usual_scores import UsualScores, largest_sketches
from plumbline.pipelines.cells.runs import READERS, newest_first
from plumbline.pipelines.cells.store import Store

MOST_RUNS = 120
"""The newest runs that are read."""


def read_usual_scores(store: Store, run_id: str, manifest: Mapping[str, Any]) -> UsualScores:
    """Of the run itself and of others of its benchmark, by metrics whose settings and models are the run's.

    Runs that keep nothing of their scores, from before that was done, are left out.
    """
    benchmark = manifest.get("benchmark")
    others = [
        (run.run_id, comparable_metrics(run.manifest, manifest))
        for run in islice(newest_first(store), MOST_RUNS)
        if run.manifest is not None and run.manifest.get("benchmark") == benchmark and run.run_id != run_id
    ]
    wanted = [(run_id, list(manifest.get("metrics", ()))), *((other, names) for other, names in others if names)]
    with ThreadPoolExecutor(READERS) as pool:
        read = list(pool.map(lambda one: _read(store, *one), wanted))
    tables = [table for table in read if table is not None]
    sketches = largest_sketches(tables)
    unranked = {name for name, metric in read_metrics(manifest).items() if not metric.ranks}
    ranked = {whose: one for whose, one in sketches.items() if whose.metric not in unranked}
    return UsualScores(str(benchmark), ranked, falling_metrics(manifest), len(read) - len(tables))


def _read(store: Store, run_id: str, metrics: list[str]) -> pa.Table | None:
    """What a run keeps of its scores by some metrics, where it does."""
    try:
        kept = store.read_table(f"runs/{run_id}/usual_scores.parquet")
    except PlumblineError:
        return None
    return kept.filter(pc.is_in(kept.column("metric"), pa.array(metrics, pa.string())))

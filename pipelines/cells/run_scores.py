"""A run's scores, read from the store part by part."""

from functools import partial

from plumbline.operators.each import Each, one_by_one
from plumbline.operators.run_scores import RunScores
from plumbline.pipelines.cells.store import Store

SHARED = ("generator", "metric")
"""Columns whose values many rows share."""


def score_parts(store: Store, run_id: str) -> list[str]:
    """The files of its scores."""
    path = f"runs/{run_id}/scores.parquet"
    return store.files(path) or [path]


def read_run_scores(store: Store, run_id: str, each: Each = one_by_one) -> RunScores:
    """Its scores as they are compared, no more of them in memory than of one metric and generator."""
    return RunScores([partial(store.read_file, path, encoded=SHARED) for path in score_parts(store, run_id)], each)

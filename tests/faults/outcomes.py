"""Compares the tables of a disturbed sweep with those of an undisturbed sweep, and finds files left behind."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from plumbline.pipelines.base.storage import StorageConfig

SORT_COLUMNS = ["metric", "generator", "prompt_id", "image_id"]
SORT_COLUMNS_BY_TABLE = {
    "scores": SORT_COLUMNS,
    "summary": ["metric", "generator", "skill"],
    "errors": [*SORT_COLUMNS, "kind", "row"],
}
"""Tables of a run that depend only on its sources, each with the columns by which to sort its rows."""
STATED_FIELDS = ("benchmark", "generators", "metrics", "lower_is_better", "exit_code", "limited", "seen", "errors")
COUNTED_FIELDS = ("rows", "rows_null", "rows_truncated", "coverage")


def read_scores(folder: str) -> pd.DataFrame:
    """Return the scores of the run in this folder, with the rows sorted by SORT_COLUMNS."""
    return read_run_table(folder, "scores", SORT_COLUMNS, StorageConfig())


def read_run_table(folder: str, name: str, order: Sequence[str], storage: StorageConfig) -> pd.DataFrame:
    """Return the table `name` of a run, with its rows sorted by the columns `order`."""
    location = storage.locate(folder)
    rows = pq.read_table((location / f"{name}.parquet").path, filesystem=location.fs).to_pandas()
    return rows.sort_values(list(order), ignore_index=True)


def assert_same_tables(folder: str, undisturbed: str, *, rtol: float = 0, storage: StorageConfig | None = None) -> None:
    """Assert that the tables of two runs are equal, given the addresses of the runs' folders.

    `storage` must give access to both. Values may differ by a fraction `rtol` or, near 0, by `rtol` itself.
    """
    reached = storage or StorageConfig()
    for name, order in SORT_COLUMNS_BY_TABLE.items():
        one, other = read_run_table(folder, name, order, reached), read_run_table(undisturbed, name, order, reached)
        pd.testing.assert_frame_equal(one, other, rtol=rtol, atol=rtol, check_exact=not rtol)


def assert_same_counts(folder: str, undisturbed: str, *, storage: StorageConfig | None = None) -> None:
    """Assert that the manifests of two runs are equal, except for how much was computed in each run."""
    one, other = (_read_manifest(run, storage or StorageConfig()) for run in (folder, undisturbed))
    assert {name: one.get(name) for name in STATED_FIELDS} == {name: other.get(name) for name in STATED_FIELDS}
    for name in COUNTED_FIELDS:
        assert one["counts"][name] == pytest.approx(other["counts"][name]), name


def _read_manifest(folder: str, storage: StorageConfig) -> dict[str, Any]:
    location = storage.locate(folder)
    read: dict[str, Any] = json.loads((location / "manifest.json").read())
    return read


def find_leftovers(store: Path) -> list[Path]:
    """Return the draft files and hidden files that are left in a store."""
    return [path for path in store.rglob("*") if path.name.startswith(".") or ".draft." in path.name]

"""What a sweep leaves behind, whatever befell it: its tables beside an undisturbed run's, and nothing to clean up."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from plumbline.pipelines.base.storage import StorageConfig

ORDER = ["metric", "generator", "prompt_id", "image_id"]
ORDERS = {
    "scores": ORDER,
    "summary": ["metric", "generator", "skill"],
    "errors": [*ORDER, "kind", "row"],
}
"""The tables of a run that follow from its sources alone, and what their rows are put in order by."""
STATED = ("benchmark", "generators", "metrics", "lower_is_better", "exit_code", "limited", "seen", "errors")
COUNTED = ("rows", "rows_null", "rows_truncated", "coverage")


def scores(folder: str) -> pd.DataFrame:
    """A run's scores as they stand in its store, in one order."""
    return table(folder, "scores", ORDER, StorageConfig())


def table(folder: str, name: str, order: Sequence[str], storage: StorageConfig) -> pd.DataFrame:
    """A table of a run, in one order."""
    location = storage.locate(folder)
    rows = pq.read_table((location / f"{name}.parquet").path, filesystem=location.fs).to_pandas()
    return rows.sort_values(list(order), ignore_index=True)


def assert_same_tables(folder: str, undisturbed: str, *, rtol: float = 0, storage: StorageConfig | None = None) -> None:
    """The tables of two runs, by the addresses of their folders; `storage` reaches both.

    Scores go from about 0 to about 1, so that `rtol` is meant of 1 where they are near 0.
    """
    reached = storage or StorageConfig()
    for name, order in ORDERS.items():
        one, other = table(folder, name, order, reached), table(undisturbed, name, order, reached)
        pd.testing.assert_frame_equal(one, other, rtol=rtol, atol=rtol, check_exact=not rtol)


def assert_same_counts(folder: str, undisturbed: str, *, storage: StorageConfig | None = None) -> None:
    """What the manifests of two runs state and count, but for how much of it was computed in that run."""
    one, other = (_manifest(run, storage or StorageConfig()) for run in (folder, undisturbed))
    assert {name: one.get(name) for name in STATED} == {name: other.get(name) for name in STATED}
    for name in COUNTED:
        assert one["counts"][name] == pytest.approx(other["counts"][name]), name


def _manifest(folder: str, storage: StorageConfig) -> dict[str, Any]:
    location = storage.locate(folder)
    read: dict[str, Any] = json.loads((location / "manifest.json").read())
    return read


def leftovers(store: Path) -> list[Path]:
    """Files that are neither cells, nor a run's, nor the store's own."""
    return [path for path in store.rglob("*") if path.name.startswith(".") or ".draft." in path.name]

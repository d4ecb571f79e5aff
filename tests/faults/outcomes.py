"""What a sweep leaves behind, whatever befell it: its tables beside an undisturbed run's, and nothing to clean up."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from pipelines.storage import StorageConfig, locate

ORDER = ["metric", "generator", "image_id"]


def scores(folder: str) -> pd.DataFrame:
    """A run's scores as they stand in its store, in one order."""
    return table(folder, "scores", ORDER, StorageConfig())


def table(folder: str, name: str, order: Sequence[str], storage: StorageConfig) -> pd.DataFrame:
    """A table of a run, in one order."""
    location = locate(folder, storage)
    rows = pq.read_table(location.at(f"{name}.parquet"), filesystem=location.fs).to_pandas()
    return rows.sort_values(list(order), ignore_index=True)


def assert_same_tables(folder: str, undisturbed: str, *, rtol: float = 0, storage: StorageConfig | None = None) -> None:
    """The scores and the summary of two runs, by the addresses of their folders; `storage` reaches both."""
    reached = storage or StorageConfig()
    for name, order in (("scores", ORDER), ("summary", ["metric", "generator", "skill"])):
        one, other = table(folder, name, order, reached), table(undisturbed, name, order, reached)
        pd.testing.assert_frame_equal(one, other, rtol=rtol, atol=0, check_exact=not rtol)


def leftovers(store: Path) -> list[Path]:
    """Files that are neither cells, nor a run's, nor the store's own."""
    return [path for path in store.rglob("*") if path.name.startswith(".") or ".draft." in path.name]

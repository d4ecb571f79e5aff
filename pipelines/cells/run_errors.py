"""The rows of a run without a score: a folder of parts, as its scores are, each with the failures of one of theirs."""

import pyarrow as pa

from plumbline.operators.base.failures import count_failures, merge_failures
from plumbline.pipelines.cells.store import Store


def errors_path(run_folder: str) -> str:
    """Where a run has them."""
    return f"{run_folder}/errors.parquet"


def read_failures(store: Store, run_folder: str) -> pa.Table:
    """Their kinds (schema FAILURES), read part by part; raises StoreError where a file is damaged or gone."""
    path = errors_path(run_folder)
    return merge_failures([count_failures(store.read_file(part)) for part in store.files(path) or [path]])

"""What a run's metrics make of single questions, from the cells that its scores were read from."""

from collections.abc import Collection, Iterator

import pyarrow as pa

from plumbline.operators.errors import ConfigError
from plumbline.operators.judging.matching import IDS
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.cells.runs import scores_cells
from plumbline.pipelines.cells.store import Store

COLUMNS = (*IDS, "metric", "elements")


def read_elements(run: Place, metrics: Collection[str] = ()) -> Iterator[pa.Table]:
    """The rows with elements of a run of ours, cell by cell (some columns of operators/schemas.py, ELEMENT_SCORES).

    Of these `metrics` alone where they are given. Raises ConfigError where `run` is no run in its store, and StoreError
    where a cell is gone or damaged.
    """
    folder = run.parent if run.name == "scores.parquet" else run
    runs = folder.parent
    if runs.name != "runs":
        raise ConfigError(
            f"scores: to judge words, expected a run in its store (STORE/runs/ID), whose cells have the score of every "
            f"question; got {run}"
        )
    store = Store(runs.parent)
    for cell in scores_cells(store, folder.name):
        table = store.read_cell(cell.stored, COLUMNS).table
        metric = table.column("metric")[0].as_py() if len(table) else ""
        if table.column("elements").null_count < len(table) and (not metrics or metric in metrics):
            yield table

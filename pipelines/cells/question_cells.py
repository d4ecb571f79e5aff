"""The questions that a run's metric asked: its scores' cells, and the cells of questions that these read."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from plumbline.operators.base.schemas import QUESTIONS
from plumbline.pipelines.cells.store import Store, StoredCell, draft_path

READ = ("cached", "committed", "draft")
"""States of cells that hold a table."""
States = Mapping[str, str]
"""What became of a run's cells, by path."""


def cell_states(store: Store, run_id: str) -> States:
    """What became of the cells of a run."""
    cells = store.read_table(f"runs/{run_id}/cells.parquet", ["path", "state"])
    return dict(zip(*(cells.column(name).to_pylist() for name in ("path", "state")), strict=True))


def scores_of(store: Store, states: States, metric: str) -> Iterator[str]:
    """The scores cells of the metric; all of a folder are of the same."""
    metric_of: dict[str, str] = {}
    for path, state in states.items():
        if not path.startswith("scores/") or state not in READ:
            continue
        folder = "/".join(path.split("/")[:2])
        if folder not in metric_of:
            table = store.read(path, draft=state == "draft", columns=["metric"])
            metric_of |= {folder: str(table.column("metric")[0])} if len(table) else {}
        if metric_of.get(folder) == metric:
            yield path


def questions_in(inputs: Iterable[str]) -> list[str]:
    """The cells of questions among those that a cell was computed from."""
    return [path for path in inputs if path.startswith("questions/")]


def read_stored(store: Store, states: States, path: str) -> StoredCell:
    """A cell of a run, or its draft."""
    return store.read_cell(draft_path(path) if states.get(path) == "draft" else path)


def read_asked(store: Store, run_id: str, metric: str) -> pa.Table:
    """All questions of a metric (schema QUESTIONS); no rows for a metric that asks none.

    Raises StoreError where a cell of them is damaged or gone.
    """
    states = cell_states(store, run_id)
    scores = (read_stored(store, states, path) for path in scores_of(store, states, metric))
    paths = dict.fromkeys(path for cell in scores for path in questions_in(cell.provenance["inputs"]))
    tables = [read_stored(store, states, path).table for path in paths]
    return pa.concat_tables([QUESTIONS.empty_table(), *(table.select(QUESTIONS.names) for table in tables)])

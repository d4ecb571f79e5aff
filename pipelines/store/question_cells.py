"""Finds the questions that a metric asked in a run, by following its scores cells to the questions cells they read."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from plumbline.operators.base.schemas import QUESTIONS
from plumbline.pipelines.store.runs import CellStates, read_cell_states
from plumbline.pipelines.store.store import Store, StoredCell, get_draft_path

CELL_STATES_WITH_TABLE = ("cached", "committed", "draft")


def find_scores_cells(store: Store, states: CellStates, metric: str) -> Iterator[str]:
    """Yield the paths of a metric's scores cells; open one cell per folder, because a folder belongs to one metric."""
    metric_of: dict[str, str] = {}
    for path, state in states.items():
        if not path.startswith("scores/") or state not in CELL_STATES_WITH_TABLE:
            continue
        folder = "/".join(path.split("/")[:2])
        if folder not in metric_of:
            table = store.read(path, draft=state == "draft", columns=["metric"])
            metric_of |= {folder: str(table.column("metric")[0])} if len(table) else {}
        if metric_of.get(folder) == metric:
            yield path


def select_question_cells(inputs: Iterable[str]) -> list[str]:
    """Return the questions cells among a cell's inputs."""
    return [path for path in inputs if path.startswith("questions/")]


def read_stored_cell(store: Store, states: CellStates, path: str) -> StoredCell:
    """Read a run's cell, or its draft if the run only saved a draft."""
    return store.read_cell(get_draft_path(path) if states.get(path) == "draft" else path)


def read_asked_questions(store: Store, run_id: str, metric: str) -> pa.Table:
    """Return all questions that a metric asked (schema QUESTIONS); the table is empty if the metric asks none.

    Raises StoreError if a questions cell is damaged or deleted.
    """
    states = read_cell_states(store, run_id)
    scores = (read_stored_cell(store, states, path) for path in find_scores_cells(store, states, metric))
    paths = dict.fromkeys(path for cell in scores for path in select_question_cells(cell.provenance["inputs"]))
    tables = [read_stored_cell(store, states, path).table for path in paths]
    return pa.concat_tables([QUESTIONS.empty_table(), *(table.select(QUESTIONS.names) for table in tables)])

"""What a sweep with retry_failed computes: the cells of which rows failed, and all that stands on them."""

from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from plumbline.operators.errors import PlumblineError, RowError
from plumbline.operators.rows import count_errors
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.cells.cells import Outcome, PlannedCell
from plumbline.pipelines.cells.runs import read_manifest, run_ids
from plumbline.pipelines.cells.store import Store, StoreError, draft_path

READERS = 16
LEFT = RowError(
    "not_computed", "was never tried, and retry_failed=true computes only what failed; run without it", retryable=True
)
"""Of rows whose cells such a sweep leaves alone."""


class FailedRows(NamedTuple):
    """How many rows of a cell have no result."""

    rows: int
    retryable: int
    """Those of them that may have one another time."""


class Retried(NamedTuple):
    """What came of trying failed rows again."""

    rows: int
    succeeded: int


def failed_before(
    cells: Iterable[PlannedCell], standing: Set[str], store: Store, benchmark: str
) -> dict[PlannedCell, str]:
    """The cells that stand as drafts, and those of which rows failed in the benchmark's newest run.

    Each with the path of the cell whose draft tells which: another one where the images were mended since. `standing`
    are the paths in the store that the plan does not name.
    """
    failed = _failed_places(store, benchmark)
    paths = {cell: path if draft_path(path := cell.path) in standing else failed.get(_place(path)) for cell in cells}
    return {cell: path for cell, path in paths.items() if path is not None}


def _failed_places(store: Store, benchmark: str) -> dict[str, str]:
    """By place, the failed cells of the benchmark's newest run; a run that cannot be read tells nothing."""
    for run_id in reversed(run_ids(store)):
        try:
            if read_manifest(store, run_id).get("benchmark") == benchmark:
                cells = store.read_table(f"runs/{run_id}/cells.parquet", ["path", "state"])
                states = zip(cells.column("path").to_pylist(), cells.column("state").to_pylist(), strict=True)
                return {_place(path): path for path, state in states if state in ("failed", "draft")}
        except PlumblineError:
            continue
    return {}


def _place(path: str) -> str:
    """What the cells of a recipe on one shard share, whatever the shard holds."""
    return path.rpartition("-")[0]


def standing_on(
    failed: Set[PlannedCell],
    missing: Set[PlannedCell],
    reads: Callable[[PlannedCell], Mapping[str, tuple[PlannedCell, ...]]],
) -> set[PlannedCell]:
    """Those of the missing cells that failed, or read one that is computed again."""
    order = list(STAGES)
    again = set(failed & missing)
    for cell in sorted(missing, key=lambda cell: order.index(cell.recipe.stage)):
        if any(upstream in again for of_stage in reads(cell).values() for upstream in of_stage):
            again.add(cell)
    return again


def count_failed(failed: Mapping[PlannedCell, str], store: Store) -> dict[str, FailedRows]:
    """By the cells' paths: their failed rows as the drafts tell them; without a draft, all rows of the shard."""

    def count(cell: PlannedCell) -> FailedRows:
        try:
            table = store.read(failed[cell], draft=True, columns=["error"])
        except StoreError:
            return FailedRows(cell.shard.rows, cell.shard.rows)
        return FailedRows(count_errors(table), count_errors(table, retryable_only=True))

    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip((cell.path for cell in failed), pool.map(count, failed), strict=True))


def count_retried(failed: Mapping[str, FailedRows], outcomes: Mapping[str, Outcome]) -> Retried:
    """The rows that were tried again, and those of them that have a result now."""
    succeeded = 0
    for path, before in failed.items():
        outcome = outcomes.get(path)
        if outcome is not None and outcome.state != "failed":
            succeeded += max(0, before.rows - outcome.errors)
    return Retried(sum(before.retryable for before in failed.values()), succeeded)

"""Reuse of earlier sweeps' results: cells with reusable rows, and failed rows to retry."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.operators.base.rows import count_errors
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.stages.stage import Stage
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.store.cells import PIECE_SUFFIX_PATTERN, Cell, Outcome, PlannedCell
from plumbline.pipelines.store.runs import N_READERS, list_run_ids, read_cell_states, read_manifest
from plumbline.pipelines.store.store import Store, StoredCell, StoreError, get_draft_path

NOT_TRIED_ERROR = RowError(
    "not_computed", "retry_failed=true skipped this row, which was never tried; run without it", retryable=True
)
"""Error for rows whose cells are skipped by a sweep with retry_failed."""
MAX_EARLIER_CELLS = 32
"""Maximum number of earlier cells to read for each cell to compute."""


class EarlierCells:
    """Index of drafts and earlier cells from which planned cells may reuse rows."""

    def __init__(self, stored: Mapping[str, float]) -> None:
        """Index the stored paths that are not in the plan; `stored` maps them to modification times."""
        self.by_group: dict[str, list[str]] = defaultdict(list)
        """Paths by group (see `_list_similar_groups`), newest first."""
        for path in sorted(stored, key=stored.__getitem__, reverse=True):
            for group in _list_similar_groups(path):
                self.by_group[group].append(path)

    def find_similar_cells(self, path: str, *, renew: bool) -> tuple[str, ...]:
        """Return the path of a cell's draft, if any, and the paths of the most similar earlier cells, newest first.

        Similar cells are returned even if there is a draft, because the draft may contain few rows. If the cell is to
        be renewed, its own path comes first, because some rows of the existing cell may still be valid. The result is
        empty if the cell's stage does not reuse rows.
        """
        if not _get_stage_class(path).keeps_rows:
            return ()
        draft, groups = get_draft_path(path), [self.by_group.get(group, []) for group in _list_similar_groups(path)]
        own = [*([path] if renew else ()), *([draft] if draft in groups[0] else ())]
        others = next((found for group in groups if (found := [other for other in group if other != draft])), [])
        return (*own, *others[:MAX_EARLIER_CELLS])


def _list_similar_groups(path: str) -> tuple[str, ...]:
    """Return the names of groups whose cells are likely to have equal rows, the most similar group first.

    Cells over prompts are grouped by the folder of their benchmark. Cells over images are grouped by shard (which
    includes the pieces of a shard), by shard name in case the generator was renamed, and by generator in case its file
    was renamed.
    """
    folder = path.rpartition("/")[0]
    if _get_stage_class(path).row_kind == "prompts":
        return (folder,)
    recipe, shard = folder.rpartition("/")[0], PIECE_SUFFIX_PATTERN.sub("", _strip_input_digest(path))
    return (shard, f"{recipe}/*/{shard.rpartition('/')[2]}", folder)


def _strip_input_digest(path: str) -> str:
    """Return a cell's path without the digest of its input, so that it names only the recipe and the shard."""
    return path.rpartition("-")[0]


def _get_stage_class(path: str) -> type[Stage]:
    return STAGES[path.partition("/")[0]]


def read_earlier_tables(cell: Cell, limits: ImageLimits, read: Callable[[str], StoredCell]) -> list[pa.Table]:
    """Return the tables of the earlier cells that a cell may reuse, newest first.

    Cells are skipped if they are damaged, have a different recipe, or may contain images that exceed `limits`.
    """
    stage = STAGES[cell.stage]
    tables = []
    for path in cell.earlier:
        try:
            stored = read(path)
        except StoreError:
            continue
        admitted = stage.row_kind == "prompts" or limits.accepts_all_of(stored.provenance.get("limits") or {})
        if stored.provenance.get("recipe") == cell.recipe and admitted:
            tables.append(stored.table)
    return tables


class FailedRows(NamedTuple):
    """Counts of a cell's rows without a result."""

    rows: int
    retryable: int
    """Number of these rows that may succeed on a retry."""


class RetryCounts(NamedTuple):
    """Number of failed rows that were retried, and number of retried rows that succeeded."""

    rows: int
    succeeded: int


def find_cells_to_retry(
    cells: Iterable[PlannedCell], stored: Set[str], store: Store, benchmark: str
) -> dict[PlannedCell, str]:
    """Return the cells to retry: cells saved as drafts, and cells with failed rows in the benchmark's newest run.

    The result maps each cell to the path of the cell whose draft contains the failed rows. This is a different cell if
    the images have been repaired since. `stored` contains the stored paths that are not in the plan.
    """
    failed = _find_failed_cells(store, benchmark)
    paths = {
        cell: path if get_draft_path(path := cell.path) in stored else failed.get(_strip_input_digest(path))
        for cell in cells
    }
    return {cell: path for cell, path in paths.items() if path is not None}


def _find_failed_cells(store: Store, benchmark: str) -> dict[str, str]:
    """Return the paths of the failed and draft cells of the benchmark's newest readable run, by recipe and shard."""
    for run_id in reversed(list_run_ids(store)):
        try:
            if read_manifest(store, run_id).get("benchmark") == benchmark:
                states = read_cell_states(store, run_id)
                return {
                    _strip_input_digest(path): path for path, state in states.items() if state in ("failed", "draft")
                }
        except PlumblineError:
            continue
    return {}


def select_failed_and_dependents(
    failed: Set[PlannedCell],
    missing: Set[PlannedCell],
    reads: Callable[[PlannedCell], Mapping[str, tuple[PlannedCell, ...]]],
) -> set[PlannedCell]:
    """Return the failed cells among the missing cells, and the missing cells that depend on a failed cell."""
    order = list(STAGES)
    again = set(failed & missing)
    for cell in sorted(missing, key=lambda cell: order.index(cell.recipe.stage)):
        if any(upstream in again for of_stage in reads(cell).values() for upstream in of_stage):
            again.add(cell)
    return again


def count_failed_rows(failed: Mapping[PlannedCell, str], store: Store) -> dict[str, FailedRows]:
    """Count the failed rows of each cell's draft, by cell path; if it cannot be read, count all rows of the cell."""

    def count(cell: PlannedCell) -> FailedRows:
        try:
            table = store.read(failed[cell], draft=True, columns=["error"])
        except StoreError:
            return FailedRows(cell.shard.rows, cell.shard.rows)
        return FailedRows(count_errors(table), count_errors(table, retryable_only=True))

    with ThreadPoolExecutor(N_READERS) as pool:
        return dict(zip((cell.path for cell in failed), pool.map(count, failed), strict=True))


def count_retried_rows(failed: Mapping[str, FailedRows], outcomes: Mapping[str, Outcome]) -> RetryCounts:
    """Count the rows that were retried, and the retried rows that now have a result."""
    succeeded = 0
    for path, before in failed.items():
        outcome = outcomes.get(path)
        if outcome is not None and outcome.state != "failed":
            succeeded += max(0, before.rows - outcome.errors)
    return RetryCounts(sum(before.retryable for before in failed.values()), succeeded)

"""Results of earlier sweeps: cells whose rows a new cell may reuse, and failed rows that are tried again."""

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
from plumbline.pipelines.store.cells import PIECE, Cell, Outcome, PlannedCell
from plumbline.pipelines.store.runs import READERS, read_cell_states, read_manifest, run_ids
from plumbline.pipelines.store.store import Store, StoredCell, StoreError, draft_path

NOT_TRIED = RowError(
    "not_computed", "was never tried, and retry_failed=true computes only what failed; run without it", retryable=True
)
"""Error of rows whose cells a sweep with retry_failed leaves alone."""
MAX_EARLIER = 32
"""Earlier cells that are read for one cell to compute."""


class EarlierCells:
    """Drafts, and cells of the same recipes on earlier versions of prompts or images."""

    def __init__(self, stored: Mapping[str, float]) -> None:
        """Index the paths in the store that the plan does not name, by their modification times."""
        self.by_group: dict[str, list[str]] = defaultdict(list)
        """Paths by `_similar_groups`, newest first."""
        for path in sorted(stored, key=stored.__getitem__, reverse=True):
            for group in _similar_groups(path):
                self.by_group[group].append(path)

    def similar_cells(self, path: str, *, renew: bool) -> tuple[str, ...]:
        """Return the paths of the draft of a cell and of the newest of the cells that are most like it.

        A draft may contain few rows, so the other cells are returned even if there is one. A cell to renew may contain
        rows that stay, so it comes first.
        """
        if not _stage_of(path).keeps_rows:
            return ()
        draft, groups = draft_path(path), [self.by_group.get(group, []) for group in _similar_groups(path)]
        own = [*([path] if renew else ()), *([draft] if draft in groups[0] else ())]
        others = next((found for group in groups if (found := [other for other in group if other != draft])), [])
        return (*own, *others[:MAX_EARLIER])


def _similar_groups(path: str) -> tuple[str, ...]:
    """Return names of groups of cells that are likely to have equal rows, the most similar group first.

    Cells over prompts share the folder of their benchmark. Cells over images share the shard (pieces of a shard count
    as the shard), the shard's name if the generator was renamed, or the generator if its file was renamed.
    """
    folder = path.rpartition("/")[0]
    if _stage_of(path).over == "prompts":
        return (folder,)
    recipe, shard = folder.rpartition("/")[0], PIECE.sub("", _shard_of(path))
    return (shard, f"{recipe}/*/{shard.rpartition('/')[2]}", folder)


def _shard_of(path: str) -> str:
    """Return the part of a path that all cells of one recipe on one shard share, independent of the content."""
    return path.rpartition("-")[0]


def _stage_of(path: str) -> type[Stage]:
    return STAGES[path.partition("/")[0]]


def read_earlier(cell: Cell, limits: ImageLimits, read: Callable[[str], StoredCell]) -> list[pa.Table]:
    """Return the tables of a cell's earlier cells, newest first.

    Damaged cells are skipped, and so are cells of another recipe and cells with images that `limits` might refuse.
    """
    stage = STAGES[cell.stage]
    tables = []
    for path in cell.earlier:
        try:
            stored = read(path)
        except StoreError:
            continue
        admitted = stage.over == "prompts" or limits.admit(stored.provenance.get("limits") or {})
        if stored.provenance.get("recipe") == cell.recipe and admitted:
            tables.append(stored.table)
    return tables


class FailedRows(NamedTuple):
    """Numbers of rows of a cell without a result."""

    rows: int
    retryable: int
    """The rows among them that may succeed if they are tried again."""


class Retried(NamedTuple):
    """Numbers of failed rows that were tried again, and of those that succeeded."""

    rows: int
    succeeded: int


def find_failed(cells: Iterable[PlannedCell], stored: Set[str], store: Store, benchmark: str) -> dict[PlannedCell, str]:
    """Return the cells that are saved as drafts, and those with failed rows in the benchmark's newest run.

    Each comes with the path of the cell whose draft has its failed rows: a different one if the images were repaired
    since. `stored` are paths in the store that the plan does not name.
    """
    failed = _find_failed_shards(store, benchmark)
    paths = {cell: path if draft_path(path := cell.path) in stored else failed.get(_shard_of(path)) for cell in cells}
    return {cell: path for cell, path in paths.items() if path is not None}


def _find_failed_shards(store: Store, benchmark: str) -> dict[str, str]:
    """Return the failed cells of the benchmark's newest readable run, by recipe and shard."""
    for run_id in reversed(run_ids(store)):
        try:
            if read_manifest(store, run_id).get("benchmark") == benchmark:
                states = read_cell_states(store, run_id)
                return {_shard_of(path): path for path, state in states.items() if state in ("failed", "draft")}
        except PlumblineError:
            continue
    return {}


def dependents_of_failed(
    failed: Set[PlannedCell],
    missing: Set[PlannedCell],
    reads: Callable[[PlannedCell], Mapping[str, tuple[PlannedCell, ...]]],
) -> set[PlannedCell]:
    """Return the missing cells that failed, and those that directly or indirectly read one of them."""
    order = list(STAGES)
    again = set(failed & missing)
    for cell in sorted(missing, key=lambda cell: order.index(cell.recipe.stage)):
        if any(upstream in again for of_stage in reads(cell).values() for upstream in of_stage):
            again.add(cell)
    return again


def count_failed(failed: Mapping[PlannedCell, str], store: Store) -> dict[str, FailedRows]:
    """Return the failed rows by cell path, as counted in the drafts; without a draft, all rows of the shard."""

    def count(cell: PlannedCell) -> FailedRows:
        try:
            table = store.read(failed[cell], draft=True, columns=["error"])
        except StoreError:
            return FailedRows(cell.shard.rows, cell.shard.rows)
        return FailedRows(count_errors(table), count_errors(table, retryable_only=True))

    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip((cell.path for cell in failed), pool.map(count, failed), strict=True))


def count_retried(failed: Mapping[str, FailedRows], outcomes: Mapping[str, Outcome]) -> Retried:
    """Count the rows that were tried again, and the rows among them that have a result now."""
    succeeded = 0
    for path, before in failed.items():
        outcome = outcomes.get(path)
        if outcome is not None and outcome.state != "failed":
            succeeded += max(0, before.rows - outcome.errors)
    return Retried(sum(before.retryable for before in failed.values()), succeeded)

"""What earlier sweeps computed: cells whose rows a new cell may take, and rows that failed and are tried again."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.operators.base.rows import count_errors
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.cells.cells import PIECE, Cell, Outcome, PlannedCell
from plumbline.pipelines.cells.runs import read_manifest, run_ids
from plumbline.pipelines.cells.store import Store, StoredCell, StoreError, draft_path

READERS = 16
NOT_TRIED = RowError(
    "not_computed", "was never tried, and retry_failed=true computes only what failed; run without it", retryable=True
)
"""Error of rows whose cells a sweep with retry_failed leaves alone."""
MAX_EARLIER = 32
"""Cells that are read for one cell that is computed."""


class EarlierCells:
    """Drafts, and cells of a recipe on prompts or images that have changed since."""

    def __init__(self, stored: Mapping[str, float]) -> None:
        """`stored` are the paths in the store that the plan does not name, with their time of writing."""
        self.alike: dict[str, list[str]] = defaultdict(list)
        for path in sorted(stored, key=stored.__getitem__, reverse=True):
            for likeness in _likenesses(path):
                self.alike[likeness].append(path)

    def beside(self, path: str, *, renew: bool) -> tuple[str, ...]:
        """The draft of the cell at a path, and the newest of the cells that are most like it.

        A draft may hold few rows, so it hides no other cell. A cell to renew may hold rows that stay.
        """
        if not STAGES[_stage(path)].keeps_rows:
            return ()
        draft, closest = draft_path(path), [self.alike.get(likeness, []) for likeness in _likenesses(path)]
        own = [*([path] if renew else ()), *([draft] if draft in closest[0] else ())]
        others = next((found for alike in closest if (found := [other for other in alike if other != draft])), [])
        return (*own, *others[:MAX_EARLIER])


def _likenesses(path: str) -> tuple[str, ...]:
    """What cells share whose rows may be the same, the closest first.

    Cells over prompts share the folder of their benchmark. Cells over images share the shard (pieces of it count as
    itself); the shard's name, where the generator was renamed; or the generator, where its file was.
    """
    folder = path.rpartition("/")[0]
    if STAGES[_stage(path)].over == "prompts":
        return (folder,)
    recipe, shard = folder.rpartition("/")[0], PIECE.sub("", _shard_of(path))
    return (shard, f"{recipe}/*/{shard.rpartition('/')[2]}", folder)


def _shard_of(path: str) -> str:
    """What the cells of a recipe on one shard share, whatever the shard holds."""
    return path.rpartition("-")[0]


def _stage(path: str) -> str:
    return path.partition("/")[0]


def read_earlier(cell: Cell, limits: ImageLimits, read: Callable[[str], StoredCell]) -> list[pa.Table]:
    """The tables of a cell's earlier cells, newest first.

    Left out are damaged ones, those of another recipe, and those that let in images that `limits` may refuse.
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
    failed = _failed_shards(store, benchmark)
    paths = {cell: path if draft_path(path := cell.path) in standing else failed.get(_shard_of(path)) for cell in cells}
    return {cell: path for cell, path in paths.items() if path is not None}


def _failed_shards(store: Store, benchmark: str) -> dict[str, str]:
    """By shard of a recipe, the failed cells of the benchmark's newest run; a run that cannot be read tells nothing."""
    for run_id in reversed(run_ids(store)):
        try:
            if read_manifest(store, run_id).get("benchmark") == benchmark:
                cells = store.read_table(f"runs/{run_id}/cells.parquet", ["path", "state"])
                states = zip(cells.column("path").to_pylist(), cells.column("state").to_pylist(), strict=True)
                return {_shard_of(path): path for path, state in states if state in ("failed", "draft")}
        except PlumblineError:
            continue
    return {}


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

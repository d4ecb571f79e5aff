"""Verifies a sweep's committed cells by their digests: damage may leave a file's size and time unchanged."""

from collections.abc import Sequence
from typing import NamedTuple

from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.maintenance.gc_config import PRUNABLE_STAGES
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.running.tasks import open_tasks
from plumbline.pipelines.store.store import BrokenCellError, MissingCellError, Store

CELLS_PER_BATCH = 64


class VerifiedCells(NamedTuple):
    """Number of cells that were read, and the cells that are broken."""

    read: int
    broken: tuple[str, ...]
    """Paths of cells that are damaged or missing."""


class CellToRead(NamedTuple):
    """A committed cell to verify."""

    path: str
    key: str
    prunable: bool
    """True if jobs.gc may have deleted the cell, because the scores computed from it exist."""


def verify_cells(plan: Plan, store: Store, cluster: ClusterConfig) -> VerifiedCells:
    """Read every committed cell of a plan; raise StoreError if one is unreachable.

    A missing cell counts as broken, unless it may have been pruned.
    """
    expected = [cell for cell in plan.cells if cell not in plan.missing and cell not in plan.untried]
    batches = (
        [
            CellToRead(cell.path, cell.key, cell.recipe.stage in PRUNABLE_STAGES)
            for cell in expected[first : first + CELLS_PER_BATCH]
        ]
        for first in range(0, len(expected), CELLS_PER_BATCH)
    )
    with open_tasks(cluster, store, rows=sum(cell.shard.rows for cell in expected)) as tasks:
        found = list(tasks.map(_read_cells, batches, shared=store))
    return VerifiedCells(sum(each.read for each in found), tuple(path for each in found for path in each.broken))


def _read_cells(store: Store, cells: Sequence[CellToRead]) -> VerifiedCells:
    read, broken = 0, list[str]()
    for cell in cells:
        try:
            store.read(cell.path, key=cell.key, columns=[])
        except BrokenCellError as error:
            if isinstance(error, MissingCellError) and cell.prunable:
                continue
            broken.append(cell.path)
        read += 1
    return VerifiedCells(read, tuple(broken))

"""Earlier cells, whose rows a cell computed anew need not compute: its draft, and those on what has changed since."""

from collections import defaultdict
from collections.abc import Callable, Mapping

import pyarrow as pa

from plumbline.operators import rows
from plumbline.operators.images import ImageLimits
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.cells.cells import PIECE, Cell
from plumbline.pipelines.cells.store import StoredCell, StoreError

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
        """The newest of those that are most like the cell of a path; a cell to renew may hold rows that stay."""
        if not STAGES[_stage(path)].keeps_rows:
            return ()
        alike = next((self.alike[likeness] for likeness in _likenesses(path) if likeness in self.alike), [])
        return (*([path] if renew else ()), *alike[:MAX_EARLIER])


def _likenesses(path: str) -> tuple[str, ...]:
    """What cells share whose rows may be the same, the closest first.

    Cells over prompts share the folder of their benchmark. Cells over images share the shard (pieces of it count as
    itself); the shard's name, where the generator was renamed; or the generator, where its file was.
    """
    folder, _, name = path.rpartition("/")
    if STAGES[_stage(path)].over == "prompts":
        return (folder,)
    recipe, shard = folder.rpartition("/")[0], PIECE.sub("", name.rpartition("-")[0])
    return (f"{folder}/{shard}", f"{recipe}/*/{shard}", folder)


def _stage(path: str) -> str:
    return path.partition("/")[0]


def read_earlier(cell: Cell, limits: ImageLimits, read: Callable[[str], StoredCell]) -> list[pa.Table]:
    """The tables of a cell's earlier cells, newest first.

    Left out are damaged ones, those of another recipe or schema, and those that let in images that `limits` may refuse.
    Cells older than the recipe in their provenance are taken for those of their folder's.
    """
    stage = STAGES[cell.stage]
    tables = []
    for path in cell.earlier:
        try:
            stored = read(path)
        except StoreError:
            continue
        if stored.provenance.get("recipe", cell.recipe) != cell.recipe:
            continue
        admitted = limits.admit(stored.provenance.get("limits") or {})
        table = rows.conformed(stored.table, stage.schema)
        if table.schema.equals(stage.schema) and (admitted or stage.over == "prompts"):
            tables.append(table)
    return tables

"""The questions that a service's language model writes, as cells of a store: they outlast it, and replicas share."""

import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.pipelines.base.storage import is_storage_error
from plumbline.pipelines.cells.cells import Cell, Recipe, digest
from plumbline.pipelines.cells.reused_rows import read_earlier
from plumbline.pipelines.cells.store import Store

LOG = logging.getLogger(__name__)

GROUP = "served"
"""The folder of a recipe's cells that a service writes, where those of a sweep have the name of their benchmark."""


class QuestionStore:
    """Tables of questions by metric: those of sweeps with the same recipe, of other services, and of this one."""

    def __init__(self, store: Store, recipes: Mapping[str, Recipe]) -> None:
        """`recipes` are those of the questions stage, by metric."""
        self.store, self.recipes = store, recipes
        self.seen: set[str] = set()

    def unread(self, metric: str) -> Sequence[pa.Table]:
        """The tables that came since the last call, newest first; none where the store does not answer."""
        recipe = self.recipes[metric]
        try:
            listed = self.store.listing(recipe.folder)
        except PlumblineError as error:
            LOG.warning("questions that were written before are not read: %s", error)
            return []
        new = sorted(listed.keys() - self.seen, key=lambda path: listed[path], reverse=True)
        self.seen.update(new)
        return read_earlier(_cell(recipe, metric, earlier=tuple(new)), ImageLimits(), self.store.read_cell)

    def add(self, metric: str, table: pa.Table) -> None:
        """Commits the questions about some prompts; where that fails they are written again after a restart."""
        recipe, texts = self.recipes[metric], sorted(set(table.column("prompt").to_pylist()))
        cell = _cell(recipe, metric, key=digest({"recipe": recipe.digest, "prompts": texts}))
        try:
            self.store.save(cell, table)
        except Exception as error:
            if not isinstance(error, PlumblineError) and not is_storage_error(error):
                raise
            LOG.warning("the questions about %d prompts are kept in memory alone: %s", len(texts), error)
        self.seen.add(cell.path)


def _cell(recipe: Recipe, metric: str, *, key: str = "", earlier: tuple[str, ...] = ()) -> Cell:
    return Cell(
        node=recipe.node,
        stage=recipe.stage,
        metric=metric,
        key=key,
        path=f"{recipe.folder}/{GROUP}/{key[8:24]}-{key[:8]}.parquet",
        inputs={},
        recipe=recipe.digest,
        earlier=earlier,
    )

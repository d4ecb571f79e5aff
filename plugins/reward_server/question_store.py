"""Stores the questions that a service's language model writes, for use by its replicas and after restarts."""

import logging
from collections.abc import Mapping, Sequence

import pyarrow as pa

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.pipelines.base.storage import is_storage_error
from plumbline.pipelines.store.cells import Cell, Recipe, digest
from plumbline.pipelines.store.reused_rows import read_earlier_tables
from plumbline.pipelines.store.store import Store

LOG = logging.getLogger(__name__)

SERVICE_GROUP = "served"
"""Name of the folder for a service's cells within a recipe; sweeps use the name of their benchmark instead."""


class QuestionStore:
    """Store of question tables by metric, shared with all sweeps and services that use the same recipes."""

    def __init__(self, store: Store, recipes: Mapping[str, Recipe]) -> None:
        """Open a store; `recipes` maps each metric's name to the recipe that its questions are written with."""
        self.store, self.recipes = store, recipes
        self.seen: set[str] = set()

    def read_new_tables(self, metric: str) -> Sequence[pa.Table]:
        """Return the tables added since the last call, newest first, or no tables if the store cannot be read."""
        recipe = self.recipes[metric]
        try:
            listed = self.store.list_files(recipe.folder)
        except PlumblineError as error:
            LOG.warning("earlier questions cannot be read: %s", error)
            return []
        new = sorted(listed.keys() - self.seen, key=lambda path: listed[path], reverse=True)
        self.seen.update(new)
        return read_earlier_tables(_make_cell(recipe, metric, earlier=tuple(new)), ImageLimits(), self.store.read_cell)

    def add(self, metric: str, table: pa.Table) -> None:
        """Store a table of questions. If that fails, log a warning; the questions then only exist in memory."""
        recipe, texts = self.recipes[metric], sorted(set(table.column("prompt").to_pylist()))
        cell = _make_cell(recipe, metric, key=digest({"recipe": recipe.digest, "prompts": texts}))
        try:
            self.store.save(cell, table)
        except Exception as error:
            if not isinstance(error, PlumblineError) and not is_storage_error(error):
                raise
            LOG.warning("the questions about %d prompts are only kept in memory: %s", len(texts), error)
        self.seen.add(cell.path)


def _make_cell(recipe: Recipe, metric: str, *, key: str = "", earlier: tuple[str, ...] = ()) -> Cell:
    return Cell(
        node=recipe.node,
        stage=recipe.stage,
        metric=metric,
        key=key,
        path=f"{recipe.folder}/{SERVICE_GROUP}/{key[8:24]}-{key[:8]}.parquet",
        inputs={},
        recipe=recipe.digest,
        earlier=earlier,
    )

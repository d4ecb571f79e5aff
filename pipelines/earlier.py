"""Rows that earlier cells hold, so that a cell computed anew asks its model only for the rest."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import pyarrow as pa

from operators import rows
from operators.images import ImageLimits
from pipelines.cells import Cell, Shard, Stage, digest
from pipelines.store import StoredCell, StoreError

OF_PROMPTS: tuple[Stage, ...] = ("questions",)
OF_IMAGES: tuple[Stage, ...] = ("answers", "similarities")
MOST_EARLIER = 32
"""Cells that are looked into for one."""


ReadCell = Callable[[str], StoredCell]


class EarlierCells:
    """Drafts, and cells of a recipe on prompts or images that have changed since.

    Of images, those of the same shard; of prompts, those of the same benchmark that no shard has any more.
    """

    def __init__(self, stored: Mapping[str, float], planned: Mapping[str, Cell]) -> None:
        """`stored` are the paths in the store with their time of writing."""
        self.places: dict[str, list[str]] = defaultdict(list)
        for path in sorted(stored.keys() - planned.keys(), key=stored.__getitem__, reverse=True):
            self.places[_place(path)].append(path)

    def beside(self, cell: Cell, *, renew: bool) -> Cell:
        """The cell with the newest of them; a cell to renew may hold rows that stay."""
        if cell.stage not in OF_PROMPTS + OF_IMAGES:
            return replace(cell, renew=renew)
        own = [cell.path] if renew else []
        return replace(cell, renew=renew, earlier=(*own, *self.places[_place(cell.path)][:MOST_EARLIER]))


def _place(path: str) -> str:
    """What cells share whose rows may be the same: the folder of a benchmark's prompts, and of images the shard too."""
    return path.rpartition("/" if path.startswith(OF_PROMPTS) else "-")[0]


class KeptRows(NamedTuple):
    """Rows of a shard that need no computing."""

    table: pa.Table
    places: Mapping[int, int]
    """By row of the shard, its row in the table."""

    def completed(self, computed: pa.Table, left: Sequence[int], wanted: Sequence[int]) -> pa.Table:
        """The wanted rows of the shard, of which the ones `left` were computed."""
        places = {**{row: len(self.table) + place for place, row in enumerate(left)}, **self.places}
        both = pa.concat_tables([self.table, computed.replace_schema_metadata(None)])
        return both.take(pa.array([places[row] for row in wanted], pa.int64())).replace_schema_metadata(
            computed.schema.metadata
        )


def source_of(shard: Shard, limits: ImageLimits) -> dict[str, Any]:
    """What a cell's file says about the images it was computed from."""
    return {"source": digest(shard.source()), "limits": asdict(limits)}


def kept_images(
    cell: Cell, shard: Shard, limits: ImageLimits, bases: Sequence[str | None], read: ReadCell, schema: pa.Schema
) -> KeptRows:
    """The shard's rows that earlier cells hold without an error, on the same images and the same basis.

    `bases` are what every row stands on now: the digest of its questions or text.
    """
    tables = [schema.empty_table()]
    places: dict[int, int] = {}
    for path in cell.earlier:
        table = _of_same_images(path, shard, limits, read, schema)
        if table is not None:
            first = sum(map(len, tables))
            places |= {row: first + row for row in _sound(table, bases) if row not in places}
            tables.append(table)
    return KeptRows(pa.concat_tables(tables), places)


def _of_same_images(path: str, shard: Shard, limits: ImageLimits, read: ReadCell, schema: pa.Schema) -> pa.Table | None:
    """An earlier cell's rows, unless it is damaged, of other images, or let in images that are refused now."""
    try:
        cell = read(path)
    except StoreError:
        return None
    now, then = source_of(shard, limits), cell.provenance
    admitted = then.get("limits", {})
    same = then.get("source") == now["source"] and admitted.keys() == now["limits"].keys()
    refused_now = any(admitted[name] > most for name, most in now["limits"].items()) if same else True
    fits = same and not refused_now and len(cell.table) == shard.rows and cell.table.schema.equals(schema)
    return cell.table if fits else None


def _sound(table: pa.Table, bases: Sequence[str | None]) -> list[int]:
    held = zip(table.column("basis").to_pylist(), table.column("error").is_null().to_pylist(), bases, strict=True)
    return [row for row, (basis, sound, now) in enumerate(held) if sound and basis is not None and basis == now]


def kept_questions(cell: Cell, read: ReadCell) -> dict[str, list[dict[str, Any]]]:
    """By prompt text, the rows that earlier cells hold about it, but for errors that may pass."""
    kept: dict[str, list[dict[str, Any]]] = {}
    for path in cell.earlier:
        try:
            table = read(path).table
        except StoreError:
            continue
        if table.schema.equals(rows.QUESTIONS):
            kept = _by_text(table.to_pylist()) | kept
    return kept


def _by_text(records: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each text, of the first prompt that has it."""
    asked: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        asked[record["prompt"] or ""][record["prompt_id"]].append(dict(record))
    first = {text: next(iter(of_prompts.values())) for text, of_prompts in asked.items()}
    return {text: of_text for text, of_text in first.items() if not any(map(_may_pass, of_text))}


def _may_pass(row: Mapping[str, Any]) -> bool:
    return row["error"] is not None and row["error"]["retryable"]

"""Rows that earlier cells hold, so that a cell computed anew asks its model only for the rest."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from operators import rows
from operators.images import ImageLimits
from pipelines.cells.cells import IMAGE_STAGES, Cell, Stage
from pipelines.cells.store import StoredCell, StoreError

OF_PROMPTS: tuple[Stage, ...] = ("questions",)
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
        if cell.stage not in OF_PROMPTS + IMAGE_STAGES:
            return replace(cell, renew=renew)
        own = [cell.path] if renew else []
        return replace(cell, renew=renew, earlier=(*own, *self.places[_place(cell.path)][:MOST_EARLIER]))


def _place(path: str) -> str:
    """What cells share whose rows may be the same: the folder of a benchmark's prompts, and of images the shard too."""
    return path.rpartition("/" if path.startswith(OF_PROMPTS) else "-")[0]


RowKey = tuple[str | None, str | None, str, str]
"""All that a row follows from: the image's and the prompt's id, the digest of the image, and the basis."""


class KeptRows(NamedTuple):
    """Rows of earlier cells on images, by what they stand on."""

    table: pa.Table
    places: Mapping[RowKey, int]


def kept_rows(cell: Cell, limits: ImageLimits, read: ReadCell, schema: pa.Schema) -> KeptRows:
    """The rows without an error of a cell's earlier cells, but for those that let in what `limits` may refuse."""
    tables = [table for path in cell.earlier if (table := _admitted(path, limits, read, schema)) is not None]
    both = pa.concat_tables([schema.empty_table(), *reversed(tables)])
    ids = [both.column(name).to_pylist() for name in ("image_id", "prompt_id", "image_digest", "basis")]
    sound = both.column("error").is_null().to_pylist()
    return KeptRows(both, {key: place for place, key in enumerate(zip(*ids, strict=True)) if sound[place]})


def _admitted(path: str, limits: ImageLimits, read: ReadCell, schema: pa.Schema) -> pa.Table | None:
    """An earlier cell's rows, unless it is damaged, of another schema, or computed under looser limits."""
    try:
        cell = read(path)
    except StoreError:
        return None
    then, now = cell.provenance.get("limits") or {}, limits.semantic()
    tighter = then.keys() == now.keys() and all(then[name] <= now[name] for name in now)
    return cell.table if tighter and cell.table.schema.equals(schema) else None


def completed(computed: pa.Table, places: Sequence[int], kept: KeptRows, found: Mapping[int, int]) -> pa.Table:
    """A shard's rows in their order: kept ones at the places `found`, and those `computed` at the other `places`."""
    both = pa.concat_tables([kept.table, computed.replace_schema_metadata(None)])
    at = {**{place: len(kept.table) + row for row, place in enumerate(places)}, **found}
    ordered = both.take(pa.array([at[place] for place in sorted(at)], pa.int64()))
    return ordered.replace_schema_metadata(computed.schema.metadata)


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

"""Shards cut by the prompts of their rows: a part of a benchmark's prompts, and the images of these."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.errors import SourceError
from plumbline.operators.images import id_text, image_records
from plumbline.pipelines.cells.cells import Shard, digest
from plumbline.pipelines.sources.prompts import Prompts, pairs_of, read_files

LEFT_OUT = -1
"""The part of rows that no piece has."""
PartOf = Callable[[str], int]
"""By the id of a prompt, empty where a row names none, the part that its rows come in, from 0, or LEFT_OUT."""


class Piece(NamedTuple):
    """The rows of a shard that come in one part, as a shard."""

    shard: Shard
    part: int
    rows: NDArray[np.intp]
    """Their places in the shard that was cut."""


def cut_images(shards: Sequence[Shard], part_of: PartOf) -> Iterator[tuple[Shard, int]]:
    """The shards' pieces, each with its part, of which the ids alone are read; what cannot be read comes whole in the
    first.
    """
    for shard, table in read_files(shards, ("prompt_id",)):
        if isinstance(table, SourceError):
            yield shard, 0
            continue
        ids = [id_text(record["prompt_id"]) or "" for record in image_records(table)]
        yield from ((piece.shard, piece.part) for piece in _cut(shard, [part_of(prompt_id) for prompt_id in ids]))


def cut_prompts(table: pa.Table, shards: Sequence[Shard], part_of: PartOf) -> Prompts:
    """The shards' pieces with their prompts, part after part; `table` (schema PROMPTS) has the shards' one after the
    other.
    """
    starts = accumulate((shard.rows for shard in shards), initial=0)
    pieces: list[tuple[int, Shard, pa.Table]] = []
    for shard, start in zip(shards, starts, strict=False):
        prompts = table.slice(start, shard.rows)
        for piece in _cut(shard, [part_of(prompt_id) for prompt_id in prompts.column("prompt_id").to_pylist()]):
            rows = prompts.take(pa.array(piece.rows))
            pieces.append((piece.part, replace(piece.shard, prompts=digest(sorted(pairs_of(rows)))), rows))
    pieces.sort(key=lambda piece: piece[0])
    tables = [rows for _, _, rows in pieces]
    return Prompts(pa.concat_tables(tables), [shard for _, shard, _ in pieces], tables)


def _cut(shard: Shard, parts: Sequence[int]) -> Iterator[Piece]:
    """The shard's rows of each part; one that is all in one part stays as it is."""
    of_row = np.asarray(parts)
    for part in np.unique(of_row[of_row != LEFT_OUT]):
        rows = np.flatnonzero(of_row == part)
        whole = len(rows) == len(of_row)
        picked = [shard.picked[row] for row in rows] if shard.picked else rows.tolist()
        piece = replace(shard, name=f"{shard.name}+w{part:02d}", rows=len(rows), picked=tuple(picked))
        yield Piece(shard if whole else piece, int(part), rows)

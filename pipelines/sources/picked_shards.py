"""Shards cut by the prompts of their rows: some of a benchmark's prompts, and the images of these."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base.errors import SourceError
from plumbline.operators.images.rows import ADDRESSES, id_text, image_records
from plumbline.pipelines.cells.cells import Shard, digest
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.prompts import PromptTables, pairs_of, read_files

LEFT_OUT = -1
"""The round of rows that no piece has."""
RoundOf = Callable[[str], int]
"""By the id of a prompt, empty where a row names none, the round that its rows come in, from 0, or LEFT_OUT."""


class Piece(NamedTuple):
    """The rows of a shard that come in one round, as a shard."""

    shard: Shard
    round: int
    rows: NDArray[np.intp]
    """Their places in the shard that was cut."""


def cut_images(shards: Sequence[Shard], round_of: RoundOf, memory: FileMemory) -> Iterator[tuple[Shard, int]]:
    """The shards' pieces, each with its round, by the ids of its prompts; what cannot be read comes whole in the first.

    Addresses are read along, because the ids of rows without any are remembered.
    """
    for shard, table in read_files(shards, ("prompt_id", *ADDRESSES), memory.read):
        if isinstance(table, SourceError):
            yield shard, 0
            continue
        ids = [id_text(record["prompt_id"]) or "" for record in image_records(table)]
        yield from ((piece.shard, piece.round) for piece in _cut(shard, [round_of(prompt_id) for prompt_id in ids]))


def cut_prompts(table: pa.Table, shards: Sequence[Shard], round_of: RoundOf) -> PromptTables:
    """The shards' pieces with their prompts, round after round; `table` (schema PROMPTS) has the shards' one after the
    other.
    """
    starts = accumulate((shard.rows for shard in shards), initial=0)
    pieces: list[tuple[int, Shard, pa.Table]] = []
    for shard, start in zip(shards, starts, strict=False):
        prompts = table.slice(start, shard.rows)
        for piece in _cut(shard, [round_of(prompt_id) for prompt_id in prompts.column("prompt_id").to_pylist()]):
            rows = prompts.take(pa.array(piece.rows))
            pieces.append((piece.round, replace(piece.shard, prompts=digest(sorted(pairs_of(rows)))), rows))
    pieces.sort(key=lambda piece: piece[0])
    tables = [rows for _, _, rows in pieces]
    return PromptTables(pa.concat_tables(tables), [shard for _, shard, _ in pieces], tables)


def _cut(shard: Shard, rounds: Sequence[int]) -> Iterator[Piece]:
    """The shard's rows of each round; one that is all in one round stays as it is."""
    of_row = np.asarray(rounds)
    for round in np.unique(of_row[of_row != LEFT_OUT]):
        rows = np.flatnonzero(of_row == round)
        whole = len(rows) == len(of_row)
        picked = [shard.picked[row] for row in rows] if shard.picked else rows.tolist()
        piece = replace(shard, name=f"{shard.name}+w{round:02d}", rows=len(rows), picked=tuple(picked))
        yield Piece(shard if whole else piece, int(round), rows)

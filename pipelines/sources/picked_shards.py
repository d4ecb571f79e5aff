"""Divides shards by the prompts of their rows: some of a benchmark's prompts, and their images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base.errors import SourceError
from plumbline.operators.images.rows import ADDRESSES, id_text, image_records
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.prompts import PromptTables, pairs_of, read_files
from plumbline.pipelines.store.cells import Shard, digest

LEFT_OUT = -1
"""Round of rows that are in no shard."""
RoundOf = Callable[[str], int]
"""Returns the round of a prompt's rows, from 0, or LEFT_OUT. The id is empty for a row without a prompt."""


class Piece(NamedTuple):
    """The rows of a shard that belong to one round, as a shard."""

    shard: Shard
    round: int
    rows: NDArray[np.intp]
    """Numbers of the rows in the original shard."""


def split_images(shards: Sequence[Shard], round_of: RoundOf, memory: FileMemory) -> Iterator[tuple[Shard, int]]:
    """Yield the parts of images' shards with their rounds; a shard that cannot be read is in the first round.

    Addresses are read too, because ids are remembered only for rows without addresses.
    """
    for shard, table in read_files(shards, ("prompt_id", *ADDRESSES), memory.read):
        if isinstance(table, SourceError):
            yield shard, 0
            continue
        ids = [id_text(record["prompt_id"]) or "" for record in image_records(table)]
        yield from (
            (piece.shard, piece.round) for piece in _split_shard(shard, [round_of(prompt_id) for prompt_id in ids])
        )


def split_prompts(table: pa.Table, shards: Sequence[Shard], round_of: RoundOf) -> PromptTables:
    """Return the parts of prompts' shards with their prompts, sorted by round.

    The `table` has the prompts of the shards one after the other (schema PROMPTS).
    """
    starts = accumulate((shard.rows for shard in shards), initial=0)
    pieces: list[tuple[int, Shard, pa.Table]] = []
    for shard, start in zip(shards, starts, strict=False):
        prompts = table.slice(start, shard.rows)
        for piece in _split_shard(
            shard, [round_of(prompt_id) for prompt_id in prompts.column("prompt_id").to_pylist()]
        ):
            rows = prompts.take(pa.array(piece.rows))
            pieces.append((piece.round, replace(piece.shard, prompts=digest(sorted(pairs_of(rows)))), rows))
    pieces.sort(key=lambda piece: piece[0])
    tables = [rows for _, _, rows in pieces]
    return PromptTables(pa.concat_tables(tables), [shard for _, shard, _ in pieces], tables)


def _split_shard(shard: Shard, rounds: Sequence[int]) -> Iterator[Piece]:
    """Yield the rows of each round as a shard; a shard whose rows are all in one round is unchanged."""
    of_row = np.asarray(rounds)
    for round in np.unique(of_row[of_row != LEFT_OUT]):
        rows = np.flatnonzero(of_row == round)
        whole = len(rows) == len(of_row)
        picked = [shard.picked[row] for row in rows] if shard.picked else rows.tolist()
        piece = replace(shard, name=f"{shard.name}+w{round:02d}", rows=len(rows), picked=tuple(picked))
        yield Piece(shard if whole else piece, int(round), rows)

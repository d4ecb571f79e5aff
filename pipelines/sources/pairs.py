"""Pairs of images that two generators made for the same prompt, found in the shards of both and read together."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import combinations
from typing import NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import SourceError
from plumbline.operators.images.rows import (
    ADDRESS_COLUMNS,
    ORIGINAL_COLUMNS,
    SOURCE_COLUMNS,
    format_id,
    list_image_records,
)
from plumbline.pipelines.sources.edit_columns import append_edit_columns
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.prompts import read_files
from plumbline.pipelines.sources.shards import read_shard
from plumbline.pipelines.store.cells import PIECE_SUFFIX_PATTERN, Shard

ID_COLUMNS = ("image_id", "prompt_id")

GeneratorPair = tuple[str, str]
"""Two generators in alphabetical order."""
NumberedPrompt = tuple[str, int]
"""A prompt id, and the number k of an image among a generator's images of this prompt; the image is compared with the
k-th image of another generator.
"""


class PairIndex(NamedTuple):
    """The rows of each shard of images, for finding the pairs of any two generators."""

    rows: Mapping[Shard, Mapping[NumberedPrompt, int]]
    """For each shard, the row number of each image, by prompt and number among the generator's images of the prompt."""

    @property
    def generators(self) -> list[str]:
        return sorted({shard.group for shard in self.rows})

    def list_rows(self, generator: str) -> set[NumberedPrompt]:
        return {row for shard, rows in self.rows.items() if shard.group == generator for row in rows}

    def count_pairs(self) -> dict[GeneratorPair, int]:
        """Return the number of image pairs for each pair of generators; 0 if they have no prompt in common."""
        rows = {generator: self.list_rows(generator) for generator in self.generators}
        return {(one, other): len(rows[one] & rows[other]) for one, other in combinations(rows, 2)}

    def make_shards(self, compared: Iterable[GeneratorPair]) -> dict[Shard, tuple[Shard, Shard]]:
        """Return a shard of pairs for every two shards whose generators are compared and that share a prompt.

        The result maps each shard of pairs to the two shards of images that it consists of.
        """
        shards_of: dict[str, list[Shard]] = defaultdict(list)
        holders: dict[str, dict[NumberedPrompt, Shard]] = defaultdict(dict)
        for shard, rows in self.rows.items():
            shards_of[shard.group].append(shard)
            holders[shard.group] |= dict.fromkeys(rows, shard)
        pairs = {}
        for first, second in compared:
            for shard in shards_of[second]:
                of_opponent: dict[Shard, list[NumberedPrompt]] = defaultdict(list)
                for row in self.rows[shard]:
                    if row in holders[first]:
                        of_opponent[holders[first][row]].append(row)
                for opponent, common in of_opponent.items():
                    pairs[self._make_pair_shard(shard, opponent, common)] = (opponent, shard)
        return pairs

    def _make_pair_shard(self, shard: Shard, opponent: Shard, common: Sequence[NumberedPrompt]) -> Shard:
        """Return the shard of the pairs in `common`; its name depends only on the names of the two shards of images."""
        named = sha256(f"{opponent.group}\0{PIECE_SUFFIX_PATTERN.sub('', opponent.name)}".encode()).hexdigest()[:8]
        second, first = (_select_rows(each, [self.rows[each][row] for row in common]) for each in (shard, opponent))
        return replace(second, name=f"{named}~{shard.name}", opponent=first)


def _select_rows(shard: Shard, numbers: Sequence[int]) -> Shard:
    if len(numbers) == shard.rows:
        return shard
    picked = tuple(sorted(shard.picked[number] if shard.picked else number for number in numbers))
    return replace(shard, rows=len(picked), picked=picked)


def index_pairs(images: Sequence[Shard], cache: ImageFileCache) -> PairIndex:
    """Read the prompt ids of images, and number each generator's images of the same prompt.

    Rows without a prompt, and shards that cannot be read, are left out.
    """
    numbered: dict[str, Counter[str]] = defaultdict(Counter)
    rows: dict[Shard, Mapping[NumberedPrompt, int]] = {}
    # addresses are read too, because the cache keeps ids only of rows without addresses
    for shard, table in read_files(images, ("prompt_id", *ADDRESS_COLUMNS), cache.read):
        if isinstance(table, SourceError):
            continue
        of_shard: dict[NumberedPrompt, int] = {}
        for number, record in enumerate(list_image_records(table.select(["prompt_id"]))):
            if prompt_id := format_id(record["prompt_id"]):
                of_shard[prompt_id, numbered[shard.group][prompt_id]] = number
                numbered[shard.group][prompt_id] += 1
        rows[shard] = of_shard
    return PairIndex(rows)


def read_pairs(pair: Shard, columns: Sequence[str], *, edited_from: Sequence[Shard] | None = None) -> pa.Table:
    """Return the rows of a shard of pairs; the columns for the source of an edit contain the opponent's image.

    `other_image_id` is null if the opponent's rows have no ids. If the prompts' shards are given as `edited_from`, the
    images are edits, and their own sources are in the columns `original` and `original_uri`.
    """
    assert pair.opponent is not None, "a shard of pairs has an opponent"
    images, others = read_shard(pair, columns), read_shard(pair.opponent, columns)
    if edited_from is not None:
        edits = append_edit_columns(read_shard(pair, (*columns, *SOURCE_COLUMNS)), edited_from)
        for original, source in zip(ORIGINAL_COLUMNS, SOURCE_COLUMNS, strict=True):
            if source in edits.column_names:
                images = images.append_column(original, edits.column(source))
    rows_of: dict[str | None, list[int]] = defaultdict(list)
    for row, prompt_id in enumerate(_list_ids(others)):
        rows_of[prompt_id].append(row)
    matched = [rows_of[prompt_id].pop(0) if rows_of[prompt_id] else None for prompt_id in _list_ids(images)]
    others = others.take(pa.array(matched, pa.int64()))
    for name, source in zip(("image", "uri"), SOURCE_COLUMNS, strict=True):
        if name in others.column_names:
            images = images.append_column(source, others.column(name))
    ids = others.column("image_id") if "image_id" in others.column_names else pa.nulls(len(images), pa.string())
    images = images.append_column("other_image_id", ids)
    return images.append_column("other_generator", pa.array([pair.opponent.group] * len(images), pa.string()))


def _list_ids(images: pa.Table) -> list[str | None]:
    return [format_id(record["prompt_id"]) for record in list_image_records(images.select(["prompt_id"]))]


def read_ids(shard: Shard, columns: Sequence[str]) -> pa.Table:
    """Return the ids of a shard's rows; if image ids are missing, return all `columns`, from which ids can be made."""
    ids = read_shard(shard, ID_COLUMNS)
    has_ids = "image_id" in ids.column_names and not ids.column("image_id").null_count
    return ids if has_ids else read_shard(shard, columns)

"""Sources, masks and captions of edits in a prompts file, which the images of all generators share."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.images.rows import ADDRESSES, CAPTIONS, MASKS, SOURCES, id_text, image_records
from plumbline.pipelines.sources.prompts import PromptTables, prompt_records
from plumbline.pipelines.sources.shards import where
from plumbline.pipelines.sources.uris import LocateImage, StoredObjects
from plumbline.pipelines.store.cells import Shard, digest


def digest_edit_columns(prompts: PromptTables, locate: LocateImage) -> PromptTables:
    """Return the prompts with a digest of their sources, masks and captions, for the keys of stages that read these.

    Addresses are looked up, and images or captions in the file change with the file: no image is read. Raises
    ConfigError for an address that is not text.
    """
    objects = StoredObjects(locate)

    def stored(shard: Shard) -> Shard:
        addresses = [name for name in shard.beside if name in ADDRESSES]
        records = read_edit_columns(shard, addresses) if addresses else []
        named = [[record["prompt_id"], *(objects.identity(record[name]) for name in addresses)] for record in records]
        embedded = len(addresses) < len(shard.beside)
        file = [shard.url, shard.size, shard.etag, shard.row_groups] if embedded else []
        return replace(shard, sources=digest([named, file])) if shard.beside else shard

    try:
        return prompts._replace(shards=[stored(shard) for shard in prompts.shards])
    except SourceError as error:
        raise ConfigError(f"benchmark.prompts: {error}") from error


def append_edit_columns(images: pa.Table, prompts: Sequence[Shard]) -> pa.Table:
    """Return the images with the sources, masks and captions of their prompts, unless their own table has such columns.

    Only the ids and the needed row groups of the prompts' files are read.
    """
    holders = tuple(shard for shard in prompts if shard.beside and not shard.holds_prompts)
    alike = (SOURCES, MASKS, *((name,) for name in CAPTIONS))
    absent = [names for names in alike if not {*names} & {*images.column_names}]
    held = {name for shard in holders for name in shard.beside}
    names = [name for names in absent for name in names if name in held]
    if not names:
        return images
    prompt_ids = [id_text(record["prompt_id"]) or "" for record in image_records(images.select(["prompt_id"]))]
    pictures = _edits_of_prompts(holders, set(prompt_ids))
    for name in names:
        images = images.append_column(name, _column([pictures.get(each, {}).get(name) for each in prompt_ids]))
    return images


def _column(values: Sequence[Any]) -> pa.Array:
    """Return the values as one column, of lists if any value is a list."""
    listed = any(isinstance(value, list) for value in values)
    return pa.array([[value] if listed and not isinstance(value, list) else value for value in values])


def _edits_of_prompts(holders: tuple[Shard, ...], prompt_ids: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Return the sources, masks and captions of each prompt."""
    holder_of = _shard_numbers(holders)
    numbers = {holder_of[prompt_id] for prompt_id in prompt_ids if prompt_id in holder_of}
    read = (
        record for number in sorted(numbers) for record in read_edit_columns(holders[number], holders[number].beside)
    )
    return {record["prompt_id"]: record for record in read if record["prompt_id"] in prompt_ids}


@lru_cache(maxsize=1)
def _shard_numbers(holders: tuple[Shard, ...]) -> dict[str, int]:
    """Return the number of the shard that contains each prompt."""
    return {
        record["prompt_id"]: number for number, shard in enumerate(holders) for record in read_edit_columns(shard, ())
    }


def read_edit_columns(shard: Shard, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the ids of a shard's prompts with these columns; relative addresses start from their file's folder."""
    folder = shard.place.parent.url
    records = prompt_records(shard, ("prompt_id", *columns))
    for row, record in enumerate(records):
        record["prompt_id"] = id_text(record["prompt_id"]) or ""
        for name in ADDRESSES:
            if record.get(name):
                record[name] = _make_absolute(record[name], folder, shard, row)
    return records


def _make_absolute(address: Any, folder: str, shard: Shard, row: int) -> Any:
    if isinstance(address, list):
        return [_make_absolute(each, folder, shard, row) for each in address]
    if not isinstance(address, str):
        found = type(address).__name__
        raise SourceError(f"{where(shard, row)}: expected the address of an image as text, found {found}")
    return address if address.startswith("/") or "://" in address else f"{folder}/{address}"

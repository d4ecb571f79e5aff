"""What a prompts file holds beside prompts, sources, masks and captions: once, for the images of all generators."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.images.rows import ADDRESSES, CAPTIONS, MASKS, SOURCES, id_text, image_records
from plumbline.pipelines.cells.cells import Shard, digest
from plumbline.pipelines.sources.prompts import PromptTables, prompt_records
from plumbline.pipelines.sources.shards import where
from plumbline.pipelines.sources.uris import LocateImage, StoredObjects


def with_stored_pictures(prompts: PromptTables, locate: LocateImage) -> PromptTables:
    """The prompts with the digest of what they have beside, for the keys of what looks at these.

    It is of what addresses name now, and where images or captions are in the file, of the file: none of them is read.
    Raises ConfigError for an address that is no text.
    """
    objects = StoredObjects(locate)

    def stored(shard: Shard) -> Shard:
        addresses = [name for name in shard.beside if name in ADDRESSES]
        records = picture_records(shard, addresses) if addresses else []
        named = [[record["prompt_id"], *(objects.identity(record[name]) for name in addresses)] for record in records]
        embedded = len(addresses) < len(shard.beside)
        file = [shard.url, shard.size, shard.etag, shard.row_groups] if embedded else []
        return replace(shard, sources=digest([named, file])) if shard.beside else shard

    try:
        return prompts._replace(shards=[stored(shard) for shard in prompts.shards])
    except SourceError as error:
        raise ConfigError(f"benchmark.prompts: {error}") from error


def with_pictures(images: pa.Table, prompts: Sequence[Shard]) -> pa.Table:
    """The images beside the sources, masks and captions of their prompts, where their own table has no such column.

    Of the prompts' files no more is read than ids, and the row groups that are wanted.
    """
    holders = tuple(shard for shard in prompts if shard.beside and not shard.holds_prompts)
    alike = (SOURCES, MASKS, *((name,) for name in CAPTIONS))
    absent = [names for names in alike if not {*names} & {*images.column_names}]
    held = {name for shard in holders for name in shard.beside}
    names = [name for names in absent for name in names if name in held]
    if not names:
        return images
    prompt_ids = [id_text(record["prompt_id"]) or "" for record in image_records(images.select(["prompt_id"]))]
    pictures = _pictures_of(holders, set(prompt_ids))
    for name in names:
        images = images.append_column(name, _column([pictures.get(each, {}).get(name) for each in prompt_ids]))
    return images


def _column(values: Sequence[Any]) -> pa.Array:
    """The values as one column, of lists where any is one."""
    listed = any(isinstance(value, list) for value in values)
    return pa.array([[value] if listed and not isinstance(value, list) else value for value in values])


def _pictures_of(holders: tuple[Shard, ...], prompt_ids: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """By prompt, its columns of sources, masks and captions."""
    holder_of = _holder_of_prompt(holders)
    numbers = {holder_of[prompt_id] for prompt_id in prompt_ids if prompt_id in holder_of}
    read = (record for number in sorted(numbers) for record in picture_records(holders[number], holders[number].beside))
    return {record["prompt_id"]: record for record in read if record["prompt_id"] in prompt_ids}


@lru_cache(maxsize=1)
def _holder_of_prompt(holders: tuple[Shard, ...]) -> dict[str, int]:
    """By prompt, the number of the shard that has it."""
    return {
        record["prompt_id"]: number for number, shard in enumerate(holders) for record in picture_records(shard, ())
    }


def picture_records(shard: Shard, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The ids of a shard's prompts with these columns; a relative address starts from the folder of their file."""
    folder = shard.place.parent.url
    records = prompt_records(shard, ("prompt_id", *columns))
    for row, record in enumerate(records):
        record["prompt_id"] = id_text(record["prompt_id"]) or ""
        for name in ADDRESSES:
            if record.get(name):
                record[name] = _absolute(record[name], folder, shard, row)
    return records


def _absolute(address: Any, folder: str, shard: Shard, row: int) -> Any:
    if isinstance(address, list):
        return [_absolute(each, folder, shard, row) for each in address]
    if not isinstance(address, str):
        found = type(address).__name__
        raise SourceError(f"{where(shard, row)}: expected the address of an image as text, found {found}")
    return address if address.startswith("/") or "://" in address else f"{folder}/{address}"

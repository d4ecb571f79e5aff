"""Sources, masks and captions of edits that are in the prompts file, and are therefore shared by all generators."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.images.rows import (
    ADDRESS_COLUMNS,
    CAPTION_COLUMNS,
    MASK_COLUMNS,
    SOURCE_COLUMNS,
    format_id,
    list_image_records,
)
from plumbline.pipelines.sources.prompts import PromptTables, read_prompt_records
from plumbline.pipelines.sources.shards import describe_row
from plumbline.pipelines.sources.uris import ImageFileDigester, LocateImage
from plumbline.pipelines.store.cells import Shard, digest


def digest_edit_columns(prompts: PromptTables, locate: LocateImage) -> PromptTables:
    """Return the prompts with a digest of each shard's source images, masks and captions.

    The digest becomes part of the keys of stages that use edits. No image is read. Files at addresses are identified by
    size and ETag or modification time; embedded images and captions are identified by the prompts file that contains
    them. Raise ConfigError if an address is not a string.
    """
    objects, shards = ImageFileDigester(locate), list[Shard]()
    for shard in prompts.shards:
        if not shard.edit_columns:
            shards.append(shard)
            continue
        addresses = [name for name in shard.edit_columns if name in ADDRESS_COLUMNS]
        try:
            records = read_edit_columns(shard, addresses) if addresses else []
        except SourceError as error:
            raise ConfigError(f"benchmark.prompts: {error}") from error
        named = [[record["prompt_id"], *(objects.identify(record[name]) for name in addresses)] for record in records]
        is_embedded = len(addresses) < len(shard.edit_columns)
        file = [shard.url, shard.size, shard.etag, shard.row_groups] if is_embedded else []
        shards.append(replace(shard, sources=digest([named, file])))
    return prompts._replace(shards=shards)


def append_edit_columns(images: pa.Table, prompts: Sequence[Shard]) -> pa.Table:
    """Return the images with the sources, masks and captions of their prompts, unless the table has these columns.

    From the prompts files, only the ids and the row groups with these prompts are read.
    """
    shards = tuple(shard for shard in prompts if shard.edit_columns and not shard.contains_prompts)
    kinds = (SOURCE_COLUMNS, MASK_COLUMNS, *((name,) for name in CAPTION_COLUMNS))
    wanted = [name for kind in kinds if not {*kind} & {*images.column_names} for name in kind]
    available = {name for shard in shards for name in shard.edit_columns}
    names = [name for name in wanted if name in available]
    if not names:
        return images
    prompt_ids = [format_id(record["prompt_id"]) or "" for record in list_image_records(images.select(["prompt_id"]))]
    shard_of, found = _number_shards(shards), dict[str, dict[str, Any]]()
    for number in sorted({shard_of[prompt_id] for prompt_id in prompt_ids if prompt_id in shard_of}):
        records = read_edit_columns(shards[number], shards[number].edit_columns)
        found |= {record["prompt_id"]: record for record in records}
    for name in names:
        values = [found.get(prompt_id, {}).get(name) for prompt_id in prompt_ids]
        if any(isinstance(value, list) for value in values):  # a column has either lists or single values
            values = [value if isinstance(value, list) else [value] for value in values]
        images = images.append_column(name, pa.array(values))
    return images


@lru_cache(maxsize=1)
def _number_shards(shards: tuple[Shard, ...]) -> dict[str, int]:
    return {
        record["prompt_id"]: number for number, shard in enumerate(shards) for record in read_edit_columns(shard, ())
    }


def read_edit_columns(shard: Shard, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the ids and given columns of a shard's prompts; relative addresses are resolved against its folder."""
    folder = shard.place.parent.url
    records = read_prompt_records(shard, ("prompt_id", *columns))
    for row, record in enumerate(records):
        record["prompt_id"] = format_id(record["prompt_id"]) or ""
        for name in ADDRESS_COLUMNS:
            if record.get(name):
                record[name] = _make_absolute(record[name], folder, shard, row)
    return records


def _make_absolute(address: Any, folder: str, shard: Shard, row: int) -> Any:
    if isinstance(address, list):
        return [_make_absolute(each, folder, shard, row) for each in address]
    if not isinstance(address, str):
        found = type(address).__name__
        raise SourceError(
            f"{describe_row(shard, row)}: expected the address of an image as text, found {found}; write it as text"
        )
    return address if address.startswith("/") or "://" in address else f"{folder}/{address}"

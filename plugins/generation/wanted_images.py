"""Tables of the images to generate. Each table is a shard, and an image always stays in the same table."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, count

import pyarrow as pa

from plumbline.pipelines.store.store import Store, StoreError
from plumbline.plugins.generation.pictures import PictureName

PromptByImage = Mapping[str, str]
"""Prompts by image_id, in the order of the images."""


def list_wanted_images(prompts: pa.Table, seeds: int) -> PromptByImage:
    """Return prompts by image_id, with `seeds` images for each prompt in the table (schema PROMPTS)."""
    pairs = zip(*(prompts.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True)
    return {PictureName(prompt_id, number).image_id: text or "" for prompt_id, text in pairs for number in range(seeds)}


def write_wanted_images(store: Store, folder: str, wanted: PromptByImage, rows: int) -> None:
    """Rewrite a folder's tables so that together they list exactly the wanted images.

    Existing images stay in their table, and new images go into new tables of at most `rows` rows. So a shard keeps its
    cell unless images are removed from it or their texts change. Images from a damaged table count as new, and new
    images first go into tables with the damaged tables' names. So if the images of a damaged table are still wanted,
    with the same texts, and no other images are new, the table is replaced by an identical shard.
    """
    earlier = {path: _read_prompts(store, path) for path in store.files(folder)}
    left = dict(wanted)
    tables = {path: {image: left.pop(image) for image in texts if image in left} for path, texts in earlier.items()}
    free = [path for path, texts in earlier.items() if not texts]
    first = max((int(path.rpartition("/")[2].removesuffix(".parquet")) + 1 for path in tables), default=0)
    new = list(left.items())
    parts = [dict(new[start : start + rows]) for start in range(0, len(new), rows)]
    names = chain(free, (f"{folder}/{number:05d}.parquet" for number in count(first)))
    tables |= dict(zip(names, parts, strict=False))
    for path, texts in tables.items():
        if texts and texts != earlier.get(path):
            store.write_table(path, pa.table({"prompt_id": list(texts), "text": list(texts.values())}))
    store.remove_all([path for path, texts in tables.items() if not texts])


def _read_prompts(store: Store, path: str) -> PromptByImage:
    with suppress(StoreError, KeyError, ValueError):
        table = store.read_file(path)
        return dict(zip(*(table.column(key).to_pylist() for key in ("prompt_id", "text")), strict=True))
    return {}

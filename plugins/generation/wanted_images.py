"""Tables of the images that a generator must draw. Each table is a shard, and images stay in their table."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, count

import pyarrow as pa

from plumbline.pipelines.store.store import Store, StoreError
from plumbline.plugins.generation.pictures import PictureName

Texts = Mapping[str, str]
"""Prompts by image_id, in order."""


def list_pictures(prompts: pa.Table, seeds: int) -> Texts:
    """Return the prompt of each wanted image: `seeds` images of each prompt (schema PROMPTS)."""
    pairs = zip(*(prompts.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True)
    return {PictureName(prompt_id, number).image_id: text or "" for prompt_id, text in pairs for number in range(seeds)}


def write_wanted(store: Store, folder: str, wanted: Texts, rows: int) -> None:
    """Make the tables of a folder list exactly the wanted images.

    An image stays in its table, and new images go into new tables of at most `rows` rows, so that a shard that loses
    nothing keeps its cell. Images of a damaged table count as new, and go into a table of the same name. This table
    lists the same images, and so is the same shard, unless others were removed.
    """
    earlier = {path: _read(store, path) for path in store.files(folder)}
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


def _read(store: Store, path: str) -> Texts:
    """Return the prompts that a table lists, by image_id; empty if the table is damaged."""
    with suppress(StoreError, KeyError, ValueError):
        table = store.read_file(path)
        return dict(zip(*(table.column(key).to_pylist() for key in ("prompt_id", "text")), strict=True))
    return {}

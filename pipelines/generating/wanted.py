"""The pictures that are wanted of a generator, in tables that keep their places: each table is a shard."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, count

import pyarrow as pa

from plumbline.operators.pictures import PictureName
from plumbline.pipelines.cells.store import Store, StoreError

Texts = Mapping[str, str]
"""By image_id, the prompt; in order."""


def wanted_pictures(prompts: pa.Table, seeds: int) -> Texts:
    """So many pictures of each prompt (schema PROMPTS)."""
    pairs = zip(*(prompts.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True)
    return {PictureName(prompt_id, number).image_id: text or "" for prompt_id, text in pairs for number in range(seeds)}


def write_wanted(store: Store, folder: str, wanted: Texts, rows: int) -> None:
    """Makes the tables of a folder those of the pictures that are wanted.

    A picture stays in its table, and new ones come into new tables of at most so many rows: so a shard that loses
    nothing keeps its cell. What a damaged table listed is new, and comes into a table of the same name: the same
    pictures, unless others were removed, and so the same shard.
    """
    earlier = {path: _read(store, path) for path in store.files(folder)}
    left = dict(wanted)
    tables = {path: {one: left.pop(one) for one in held if one in left} for path, held in earlier.items()}
    free = [path for path, held in earlier.items() if not held]
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
    """What a table lists; nothing where it is damaged."""
    with suppress(StoreError, KeyError, ValueError):
        table = store.read_file(path)
        return dict(zip(*(table.column(key).to_pylist() for key in ("prompt_id", "text")), strict=True))
    return {}

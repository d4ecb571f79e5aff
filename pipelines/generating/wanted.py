"""The pictures that are wanted of a generator, in tables that keep their places: each table is a shard."""

import io
from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.pictures import PictureName
from plumbline.pipelines.base.storage import Place, readable_errors

Texts = Mapping[str, str]
"""By image_id, the prompt; in order."""


def wanted_pictures(prompts: pa.Table, seeds: int) -> Texts:
    """So many pictures of each prompt (schema PROMPTS)."""
    pairs = zip(*(prompts.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True)
    return {PictureName(prompt_id, number).image_id: text or "" for prompt_id, text in pairs for number in range(seeds)}


def write_wanted(folder: Place, wanted: Texts, rows: int) -> None:
    """Makes the tables of a folder those of the pictures that are wanted.

    A picture stays in its table, and new ones come into new tables of at most so many rows: so a shard that loses
    nothing keeps its cell.
    """
    earlier = _read(folder)
    left = dict(wanted)
    tables = {name: {one: left.pop(one) for one in held if one in left} for name, held in sorted(earlier.items())}
    first = max((int(name.removesuffix(".parquet")) + 1 for name in tables), default=0)
    new = list(left.items())
    parts = (dict(new[start : start + rows]) for start in range(0, len(new), rows))
    tables |= {f"{number:05d}.parquet": part for number, part in enumerate(parts, first)}
    for name, texts in tables.items():
        if texts and texts != earlier.get(name):
            (folder / name).write_table(pa.table({"prompt_id": list(texts), "text": list(texts.values())}))
    folder.remove_below([name for name, texts in tables.items() if not texts])


def _read(folder: Place) -> dict[str, Texts]:
    """By name what the tables hold; one that is damaged is written anew."""
    tables: dict[str, Texts] = {}
    with readable_errors(folder, "images"), suppress(FileNotFoundError):
        for name in folder.list():
            with suppress(pa.ArrowException, KeyError, ValueError):
                table = pq.read_table(io.BytesIO((folder / name).read()))
                tables[name] = dict(zip(*(table.column(key).to_pylist() for key in ("prompt_id", "text")), strict=True))
    return tables

"""Folders with a metadata.jsonl or metadata.csv: Hugging Face's image folders, and GenEval's folder per prompt.

A row that names its file is of that image (`file_name`, as Hugging Face's `imagefolder` has it); a row that names none
is of all images at and below its folder, as GenEval writes its `metadata.jsonl` beside `samples/`.
"""

from collections.abc import Iterator, Mapping, Set
from pathlib import PurePosixPath
from typing import Any

from pipelines.ingest.layouts.layout import Folder, Layout, Told
from pipelines.ingest.rows import DEFAULT_NAMES
from pipelines.ingest.tables import opened_table
from pipelines.tables import Refused, Rejection, Row, Rows, is_json_lines, open_csv, read_json_lines

NAMES = ("metadata.jsonl", "metadata.csv")


def _tables(folder: Folder) -> list[str]:
    return [name for name in folder.names if PurePosixPath(name).name in NAMES]


def _read(folder: Folder) -> Iterator[Told | Rejection]:
    images = set(folder.images)
    told: set[str] = set()
    for table in _tables(folder):
        for row in _rows(folder, table):
            if isinstance(row, Rejection):
                yield row
                continue
            of_row = _images(row, table, images)
            if not of_row:
                message = "it names no image, and there is none in its folder; generate the image"
                yield Refused("missing_image", message).at(folder.at(table), row.line)
            told.update(of_row)
            yield from (Told(image, _values(row.values)) for image in of_row)
    for image in sorted(images - told):
        yield Refused("empty_prompt", "no metadata file tells its prompt; add a row").at(folder.at(image))


def _rows(folder: Folder, table: str) -> Rows:
    location = folder.location.below(table)
    with opened_table(location) as stream:
        if is_json_lines(location.path):
            yield from read_json_lines(stream, location.url)
        else:
            yield from open_csv(stream, location.url).rows


def _images(row: Row, table: str, images: Set[str]) -> list[str]:
    """The image that a row names, whether it is there or not, or those of its folder."""
    base = table.rpartition("/")[0]
    named = next((row.values[name] for name in DEFAULT_NAMES["image"] if row.values.get(name)), None)
    if named is not None:
        return [f"{base}/{named}".lstrip("/")]
    return sorted(image for image in images if image.startswith(f"{base}/" if base else ""))


def _values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """GenEval calls a prompt's skill its tag."""
    return values if "skills" in values or not values.get("tag") else {**values, "skills": [values["tag"]]}


LAYOUT = Layout(
    looks="a metadata.jsonl or metadata.csv, with the names of image files or beside those of one prompt",
    recognises=lambda folder: bool(_tables(folder)),
    read=_read,
)

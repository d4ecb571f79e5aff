"""Folders with tables of their images: Hugging Face's image folders, GenEval's folder per prompt, and scripts' CSVs.

A row that names its file is of that image (`file_name`, as Hugging Face's `imagefolder` has it); a row of a metadata
file that names none is of all images at and below its folder, as GenEval writes its `metadata.jsonl` beside `samples/`.
"""

from collections.abc import Iterator, Mapping, Set
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from plumbline.operators.errors import ConfigError
from plumbline.pipelines.base.tables import (
    JSON_LINES,
    SEPARATORS,
    Refused,
    Rejection,
    Row,
    Rows,
    is_json_lines,
    open_csv,
    read_json_lines,
)
from plumbline.pipelines.ingest.input_rows import find_names
from plumbline.pipelines.ingest.layouts.layout import DescribedImage, Folder, Layout
from plumbline.pipelines.ingest.typed_tables import opened_table

NAMES = ("metadata.jsonl", "metadata.csv")
FIRST_ROWS = 8


def column_names(folder: Folder, table: str) -> list[str]:
    """The columns of a table, of JSON Lines the fields of its first rows; raises ConfigError for what is no table."""
    place = folder.place / table
    with opened_table(place) as stream:
        if not is_json_lines(place.path):
            return open_csv(stream, place.url).names
        first = islice(read_json_lines(stream, place.url), FIRST_ROWS)
        return list(dict.fromkeys(name for row in first if isinstance(row, Row) for name in row.values))


def all_tables(folder: Folder) -> list[str]:
    """The CSVs and JSON Lines files of a folder."""
    return [name for name in folder.names if name.lower().endswith((*SEPARATORS, *JSON_LINES))]


def _tables(folder: Folder) -> list[str]:
    """Those that tell of images: metadata files, and others whose columns name image files and their prompts."""
    return [name for name in all_tables(folder) if PurePosixPath(name).name in NAMES or _tells_of_images(folder, name)]


def _tells_of_images(folder: Folder, table: str) -> bool:
    try:
        names = find_names(column_names(folder, table), folder.columns)
    except ConfigError:  # told where nothing else tells the prompts
        return False
    return names.image is not None and (names.prompt or names.prompt_id) is not None


def _read(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    images = set(folder.images)
    told: set[str] = set()
    tables = _tables(folder)
    for table in tables:
        for row in _rows(folder, table):
            if isinstance(row, Rejection):
                yield row
                continue
            of_row = _images(folder, row, table, images)
            if not of_row:
                message = "it names no image, and there is none in its folder; generate the image"
                yield Refused("missing_image", message).at(folder.at(table), row.line)
            told.update(of_row)
            source = PurePosixPath(table).name
            yield from (DescribedImage(image, _values(row.values), source, named=True) for image in of_row)
    for image in sorted(images - told):
        message = f"no row of {PurePosixPath(tables[0]).name} tells its prompt; add one"
        yield Refused("empty_prompt", message).at(folder.at(image))


def _rows(folder: Folder, table: str) -> Rows:
    place = folder.place / table
    with opened_table(place) as stream:
        if is_json_lines(place.path):
            yield from read_json_lines(stream, place.url)
        else:
            yield from open_csv(stream, place.url).rows


def _images(folder: Folder, row: Row, table: str, images: Set[str]) -> list[str]:
    """The image that a row names, whether it is there or not, or those of its folder.

    Its path starts from the table's folder, from the folder of images, or from where that one lies.
    """
    base, _, name = table.rpartition("/")
    column = find_names(row.values, folder.columns).image
    if column is None and name in NAMES:
        return sorted(image for image in images if image.startswith(f"{base}/" if base else ""))
    value = row.values[column] if column is not None else None
    if not isinstance(value, str) or not value:
        return [""]
    named = value.removeprefix(f"{folder.place.url.rstrip('/')}/")
    below = str(PurePosixPath(named))
    own_name = PurePosixPath(folder.place.path).name
    paths = (str(PurePosixPath(base) / named), below, below.removeprefix(f"{own_name}/"))
    return [next((path for path in paths if path in images), paths[0])]


def _values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """GenEval calls a prompt's skill its tag."""
    return values if "skills" in values or not values.get("tag") else {**values, "skills": [values["tag"]]}


LAYOUT = Layout(
    name="tables",
    looks="a metadata.jsonl or metadata.csv, with the names of image files or beside those of one prompt, or another "
    "CSV or JSON Lines file with columns file and prompt",
    files=_tables,
    read=_read,
)

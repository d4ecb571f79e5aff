"""CSV and JSON tables of image files: their rows, and the type of each column.

A table of pairs has two images and two captions per row, as in Winoground and EqBen. Each image is paired with each
caption: sample 7 has the images `7_i0` and `7_i1` and the prompts `7_c0` and `7_c1`. The protocols `winoground` and
`eqben` use these ids to judge scores. The generator `matched` has each image with its own caption, and `swapped` with
the other caption, so that every image id occurs only once per generator.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.base.rows import require_unique_columns
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.base.tables import (
    BLOCK_BYTES,
    JSON_LINES_SUFFIXES,
    SEPARATORS_BY_SUFFIX,
    Refused,
    Rejection,
    Row,
    Rows,
    Values,
    is_json_lines,
    open_csv,
    read_json,
    read_json_lines,
)
from plumbline.pipelines.ingest.draft_workers import SourceFile
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import (
    IMAGE_SUFFIXES,
    Candidate,
    describe_column_origins,
    require_input_columns,
)
from plumbline.pipelines.sources.input_columns import InputColumnsConfig
from plumbline.pipelines.sources.origins import Origins

TEXT_TABLE_SUFFIXES = (*SEPARATORS_BY_SUFFIX, *JSON_LINES_SUFFIXES, ".json")
"""Suffixes of supported tables."""
N_FIRST_ROWS = 8
"""Number of rows of a JSON file that are read to list its columns."""
MAX_JSON_LIST_BYTES = 256 * 2**20
MAX_EXACT_INTEGER = 2**53
"""Largest integer up to which floats represent every positive integer exactly."""
ARROW_TYPES = {
    "null": pa.string(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "json": pa.string(),
}
"""Arrow types by the common type of a column's values; values without a common type are kept as JSON text."""
PAIR_COLUMN_TEMPLATES = ("image_{}", "caption_{}"), ("image{}", "caption{}")
"""Column names for a row's images and captions, numbered 0 and 1: first Winoground's, then EqBen's."""
LABELLED_COLUMNS = {"image", "caption", "private_info"}
"""Columns of EqBen's labelled annotation, which has one row per pairing."""
PAIRING_TYPES = dict.fromkeys(("image", "prompt", "image_id", "prompt_id", "generator"), "text")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table with one row per image."""

    place: Place
    types: Mapping[str, str] = field(default_factory=dict)
    """Type of each column as a key of ARROW_TYPES, in file order."""

    @property
    def url(self) -> str:
        return self.place.url

    @property
    def files(self) -> list[SourceFile]:
        return [make_source_file(self.place, "table")]

    def map_columns(self, config: IngestConfig) -> InputColumnsConfig:
        """Return the table's columns by role; raise ConfigError if a required column is missing."""
        return require_input_columns(list(self.types), config.columns, config.generator, self.url)

    def describe_origins(self, config: IngestConfig) -> Origins:
        """Describe which columns contain the prompts and generators; the other columns are kept unchanged."""
        return describe_column_origins([self.map_columns(config)], list(self.types), config.generator, self.url)

    def locate_row(self, row: Row) -> tuple[str, int | None]:
        """Return the file and the line of a row."""
        return self.url, row.line

    def select_hashed_part(self, candidate: Candidate) -> Candidate:
        """Return the part of a row that is hashed into the key of its shard; by default the whole row."""
        return candidate

    def iterate_rows(self, image: str) -> Rows:
        """Yield every row; `image` is the column with the image files."""

        def is_row(values: Values) -> bool:
            return PurePosixPath(values[image].removesuffix('"')).suffix[1:].lower() in IMAGE_SUFFIXES

        return read_rows(self.place, is_row)

    def make_schema(self, names: list[str]) -> pa.Schema:
        return pa.schema([(name, ARROW_TYPES[self.types[name]]) for name in names])

    def convert_values(self, row: Row, names: list[str]) -> dict[str, Any]:
        """Return the named columns of a row, each converted to its column's type."""
        return {name: _convert_value(row.values.get(name), self.types[name]) for name in names}


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTable(Table):
    """A CSV or JSON file of pairs, read as a table with one row for each image and caption."""

    def map_columns(self, config: IngestConfig) -> InputColumnsConfig:
        """Return the column names that `iterate_rows` uses; raise ConfigError if a single generator is configured."""
        if config.generator is not None:
            raise ConfigError(
                f"generator: expected null for the table of pairs {self.url}, whose generators are called matched and "
                f"swapped, got {config.generator!r}; leave it out"
            )
        return Table.map_columns(self, config)

    def describe_origins(self, config: IngestConfig) -> Origins:
        return Origins(f"the captions of {self.url}", "whether an image's caption is its own")

    def iterate_rows(self, image: str) -> Rows:
        for number, row in enumerate(read_rows(self.place)):
            if isinstance(row, Rejection):
                yield row
                continue
            try:
                yield from [Row(row.line, values) for values in _pair_images(row.values, number)]
            except Refused as refused:
                yield refused.to_rejection(self.url, row.line)


def open_table(place: Place) -> Table:
    """Open a CSV or JSON file, inferring JSON columns from the values; raise ConfigError for any other file.

    Return a PairTable if the table has the columns of a table of image pairs.
    """
    if not place.path.lower().endswith(TEXT_TABLE_SUFFIXES):
        known = ", ".join(TEXT_TABLE_SUFFIXES)
        raise ConfigError(f"table {place.url}: expected a file that ends in {known}; rename or convert it")
    types: dict[str, str] = {}
    if _is_csv(place):
        with open_file(place) as stream:
            names = open_csv(stream, place.url).names
            require_unique_columns(names, names, place.url)
        types = dict.fromkeys(names, "text")
    else:
        for row in read_rows(place):
            for name, value in row.values.items() if isinstance(row, Row) else ():
                types[name] = _find_common_type(types.get(name, "null"), _find_type(value))
    numbered = ({name.format(number) for name in names for number in (0, 1)} for names in PAIR_COLUMN_TEMPLATES)
    if any(names <= types.keys() for names in (*numbered, LABELLED_COLUMNS)):
        return PairTable(place=place, types=PAIRING_TYPES)
    return Table(place=place, types=types)


def _is_csv(place: Place) -> bool:
    return place.path.lower().endswith(tuple(SEPARATORS_BY_SUFFIX))


def read_rows(place: Place, is_row: Callable[[Values], bool] = lambda values: False) -> Rows:
    """Yield the rows of a CSV file, a JSON Lines file or a JSON list of objects; see open_csv for `is_row`."""
    with open_file(place) as stream:
        if is_json_lines(place.path):
            yield from read_json_lines(stream, place.url)
        elif _is_csv(place):
            yield from open_csv(stream, place.url, is_row).rows
        else:
            yield from _read_json_list(stream.read(MAX_JSON_LIST_BYTES + 1), place.url)


def _read_json_list(content: bytes, url: str) -> Rows:
    if len(content) > MAX_JSON_LIST_BYTES:
        raise SourceError(
            f"{url}: expected a JSON list of at most {MAX_JSON_LIST_BYTES >> 20} MiB, found more; use JSON Lines"
        )
    values = read_json(content, url)
    if not isinstance(values, list):
        raise SourceError(
            f"{url}: expected a list of objects, found {type(values).__name__}; check that it is a table of images"
        )
    for number, value in enumerate(values, 1):
        if isinstance(value, dict):
            yield Row(number, value)
        else:
            problem = f"expected an object, found {type(value).__name__}; correct or remove it"
            yield Refused("unreadable_json", problem).to_rejection(url, number)


def read_column_names(place: Place) -> list[str]:
    """Return a CSV's columns, or the fields in a JSON file's first rows; raise ConfigError for any other file."""
    if _is_csv(place):
        with open_file(place) as stream:
            return open_csv(stream, place.url).names
    first = islice(read_rows(place), N_FIRST_ROWS)
    return list(dict.fromkeys(name for row in first if isinstance(row, Row) for name in row.values))


def make_source_file(place: Place, what: str) -> SourceFile:
    """Return a file with its size and ETag; raise ConfigError if it is missing; `what` names it in the message."""
    with convert_read_errors(place, what):
        entry = place.get_entry()
    return SourceFile(place.url, entry.size, entry.etag)


@contextmanager
def open_file(place: Place) -> Iterator[Any]:
    """Open a table for reading bytes; raise ConfigError if the table as a whole is unreadable."""
    try:
        with convert_read_errors(place, "table"), place.open(block_size=BLOCK_BYTES) as stream:
            yield stream
    except SourceError as error:
        raise ConfigError(f"table {error}") from error


def _find_type(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if abs(value) <= MAX_EXACT_INTEGER else "long" if -(2**63) <= value < 2**63 else "json"
    if isinstance(value, list):
        return "texts" if all(isinstance(item, str) for item in value) else "json"
    return {type(None): "null", bool: "bool", float: "float", str: "text"}.get(type(value), "json")


def _find_common_type(value_type: str, other: str) -> str:
    different = {value_type, other} - {"null"}
    if len(different) < 2:
        return next(iter(different), "null")
    return "float" if different == {"int", "float"} else "long" if different == {"int", "long"} else "json"


def _convert_value(value: Any, value_type: str) -> Any:
    if value_type == "float" and value is not None:
        return float(value)
    if value_type != "json" or value is None or isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise Refused("bad_value", "a value is nested too deeply; flatten it") from error


def _pair_images(values: Values, number: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each combination of image and caption in a sample.

    If a sample has no id, its row `number` in the table (from 0) is used. Raises Refused if an image or a caption is
    missing.
    """
    if "private_info" in values:
        label = values["private_info"]
        if not isinstance(label, dict):
            raise Refused("bad_value", f"private_info: expected an object, found {type(label).__name__}; correct it")
        name = str(label.get("name"))  # c0i1 is caption 0 with image 1
        if len(name) != len("c0i1") or name[::2] != "ci" or not {*name[1::2]} <= {"0", "1"}:
            raise Refused("bad_value", f"private_info.name: expected a name such as c0i1, found {name!r}; correct it")
        labelled = f"{label.get('dataset')}/{label.get('sample_cnt')}"
        yield _make_pairing(labelled, values.get("image"), values.get("caption"), int(name[3]), int(name[1]))
        return
    names = next((names for names in PAIR_COLUMN_TEMPLATES if names[0].format(0) in values), PAIR_COLUMN_TEMPLATES[0])
    sample = values.get("id")
    sample = number if sample in (None, "") else sample
    for caption, image in product((0, 1), (0, 1)):
        columns = names[0].format(image), names[1].format(caption)
        if missing := [column for column in columns if not values.get(column)]:
            raise Refused("bad_value", f"the sample {sample} has no {missing[0]}; fill it in or remove the row")
        yield _make_pairing(str(sample), values[columns[0]], values[columns[1]], image, caption)


def _make_pairing(sample: str, image: Any, text: Any, image_number: int, caption_number: int) -> dict[str, Any]:
    # Winoground's examples.jsonl names its images, which are .png, without an ending.
    without_ending = isinstance(image, str) and not PurePosixPath(image).suffix
    return {
        "image": f"{image}.png" if without_ending else image,
        "prompt": text,
        "image_id": f"{sample}_i{image_number}",
        "prompt_id": f"{sample}_c{caption_number}",
        "generator": "matched" if image_number == caption_number else "swapped",
    }

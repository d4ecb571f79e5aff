"""Tables of image files in CSV or JSON: their rows, and the type of each column."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.base.rows import require_once
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.base.tables import (
    BLOCK_BYTES,
    JSON_LINES,
    SEPARATORS,
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
from plumbline.pipelines.ingest.drafting import SourceFile
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import IMAGES, Candidate, column_origins, require_names
from plumbline.pipelines.sources.input_columns import InputColumnsConfig
from plumbline.pipelines.sources.origins import Origins

FIRST_ROWS = 8
MAX_LIST_BYTES = 256 * 2**20
MAX_EXACT = 2**53
"""A float represents all whole numbers up to this one."""
TYPES = {
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    place: Place
    types: Mapping[str, str] = field(default_factory=dict)
    """Type of each column, a key of TYPES, in the order of the file."""

    @property
    def url(self) -> str:
        return self.place.url

    @property
    def files(self) -> list[SourceFile]:
        return [source_file(self.place, "table")]

    def names(self, config: IngestConfig) -> InputColumnsConfig:
        """Return its columns by role; raises ConfigError if a required column is missing."""
        return require_names(list(self.types), config.columns, config.generator, self.url)

    def origins(self, config: IngestConfig) -> Origins:
        """Return the columns with the prompts and generators; the others are kept unchanged."""
        return column_origins([self.names(config)], list(self.types), config.generator, self.url)

    def source(self, row: Row) -> tuple[str, int | None]:
        """Return the file and the line of a row."""
        return self.url, row.line

    def hashed(self, candidate: Candidate) -> Candidate:
        """Return the part of a row that is in the key of its shard."""
        return candidate

    def rows(self, image: str) -> Rows:
        """Yield every row; `image` is the column of the image files."""
        return read_rows(self.place, lambda values: _names_image(values[image]))

    def schema(self, names: list[str]) -> pa.Schema:
        """Return the Arrow schema of these columns."""
        return pa.schema([(name, TYPES[self.types[name]]) for name in names])

    def values(self, row: Row, names: list[str]) -> dict[str, Any]:
        """Return these columns of a row, converted to the types of the columns."""
        return {name: _convert(row.values.get(name), self.types[name]) for name in names}


def _names_image(cell: str) -> bool:
    return PurePosixPath(cell.removesuffix('"')).suffix[1:].lower() in IMAGES


TEXT_TABLES = (*SEPARATORS, *JSON_LINES, ".json")


def open_table(place: Place) -> Table:
    """Read a CSV's header, or the types of a JSON file's values; raise ConfigError for another file."""
    if not place.path.lower().endswith(TEXT_TABLES):
        known = ", ".join(TEXT_TABLES)
        raise ConfigError(f"table {place.url}: expected a file that ends in {known}; rename or convert it")
    if is_json_lines(place.path) or _is_list(place):
        return Table(place=place, types=_types_of(read_rows(place)))
    names = column_names(place)
    with opened_table(place):
        require_once(names, names, place.url)
    return Table(place=place, types=dict.fromkeys(names, "text"))


def _is_list(place: Place) -> bool:
    return place.path.lower().endswith(".json")


def read_rows(place: Place, is_row: Callable[[Values], bool] = lambda values: False) -> Rows:
    """Yield the rows of a CSV, of JSON Lines or of a JSON list of objects; open_csv describes `is_row`."""
    with opened_table(place) as stream:
        if is_json_lines(place.path):
            yield from read_json_lines(stream, place.url)
        elif _is_list(place):
            yield from _read_list(stream.read(MAX_LIST_BYTES + 1), place.url)
        else:
            yield from open_csv(stream, place.url, is_row).rows


def _read_list(content: bytes, url: str) -> Rows:
    """Yield the objects of a JSON list, counted from 1; raise SourceError for another file."""
    if len(content) > MAX_LIST_BYTES:
        raise SourceError(f"{url}: over {MAX_LIST_BYTES >> 20} MiB, the limit of a JSON list; write JSON Lines")
    values = read_json(content, url)
    if not isinstance(values, list):
        raise SourceError(f"{url}: expected a list of objects, found {type(values).__name__}; is it a table of images?")
    for number, value in enumerate(values, 1):
        if isinstance(value, dict):
            yield Row(number, value)
        else:
            problem = f"expected an object, found {type(value).__name__}; correct or remove it"
            yield Refused("unreadable_json", problem).at(url, number)


def column_names(place: Place) -> list[str]:
    """Return a CSV's columns, or the fields of a JSON Lines file's first rows; raises ConfigError for another file."""
    with opened_table(place) as stream:
        if not is_json_lines(place.path) and not _is_list(place):
            return open_csv(stream, place.url).names
    first = islice(read_rows(place), FIRST_ROWS)
    return list(dict.fromkeys(name for row in first if isinstance(row, Row) for name in row.values))


def source_file(place: Place, what: str) -> SourceFile:
    """Return a file with its size and etag; raises ConfigError if it does not exist."""
    with readable_errors(place, what):
        entry = place.entry()
    return SourceFile(place.url, entry.size, entry.etag)


@contextmanager
def opened_table(place: Place) -> Iterator[Any]:
    """Open a table's bytes; raises ConfigError if the table as a whole cannot be read."""
    try:
        with (
            readable_errors(place, "table"),
            place.open(block_size=BLOCK_BYTES) as stream,
        ):
            yield stream
    except SourceError as error:
        raise ConfigError(f"table {error}") from error


def _types_of(rows: Iterator[Row | Rejection]) -> dict[str, str]:
    """Return the types of the columns of a JSON Lines file."""
    types: dict[str, str] = {}
    for row in rows:
        if isinstance(row, Row):
            for name, value in row.values.items():
                types[name] = _join(types.get(name, "null"), _type_of(value))
    return types


def _type_of(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if abs(value) <= MAX_EXACT else "long" if -(2**63) <= value < 2**63 else "json"
    if isinstance(value, list):
        return "texts" if all(isinstance(part, str) for part in value) else "json"
    return {type(None): "null", bool: "bool", float: "float", str: "text"}.get(type(value), "json")


def _join(value_type: str, other: str) -> str:
    """Return the common type of two types of values."""
    if value_type == other or other == "null":
        return value_type
    if value_type == "null":
        return other
    return {frozenset(("int", "float")): "float", frozenset(("int", "long")): "long"}.get(
        frozenset((value_type, other)), "json"
    )


def _convert(value: Any, value_type: str) -> Any:
    if value is None:
        return None
    if value_type == "json":
        return value if isinstance(value, str) else _json(value)
    return float(value) if value_type == "float" else value


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise Refused("bad_value", "a value is nested too deep; make it flat") from error

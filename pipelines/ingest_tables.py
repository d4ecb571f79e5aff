"""CSV and JSON Lines tables, read line by line: rows in, and a rejection for every line that is none."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

from operators.errors import ConfigError
from pipelines.ingest_rows import Refused, Rejection, require_utf8
from pipelines.storage import Location, readable_errors

BLOCK_BYTES = 4 * 2**20
LONGEST_LINE = 16 * 2**20
SEPARATORS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
TYPES = {
    "null": pa.string(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "json": pa.string(),
}
"""A column's type, by what its values have in common; what has nothing in common is kept as JSON text."""


class TableRow(NamedTuple):
    """A line that could be read."""

    line: int
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of images."""

    location: Location
    kinds: Mapping[str, str]
    """What each column holds, a key of TYPES; in the order of the file."""

    def rows(self) -> Iterator[TableRow | Rejection]:
        """Every line that is not blank."""
        return _rows(self.location)

    def schema(self, names: list[str]) -> pa.Schema:
        """These columns' types."""
        return pa.schema([(name, TYPES[self.kinds[name]]) for name in names])

    def values(self, row: TableRow, names: list[str]) -> dict[str, Any]:
        """These columns of a row, each of its column's type."""
        return {name: _fit(row.values.get(name), self.kinds[name]) for name in names}


def open_table(location: Location) -> Table:
    """Reads a CSV's header, or what the values of a JSON Lines file are; raises ConfigError where it is neither."""
    suffix = PurePosixPath(location.path).suffix.lower()
    if suffix in SEPARATORS:
        with _lines(location) as lines:
            return Table(location=location, kinds=dict.fromkeys(_header(lines, location, SEPARATORS[suffix]), "text"))
    if suffix not in JSON_LINES:
        known = ", ".join((*SEPARATORS, *JSON_LINES))
        raise ConfigError(f"table {location.url}: expected a file that ends in {known}; rename or convert it")
    kinds: dict[str, str] = {}
    for row in _rows(location):
        if isinstance(row, TableRow):
            for name, value in row.values.items():
                kinds[name] = _join(kinds.get(name, "null"), _kind(value))
    return Table(location=location, kinds=kinds)


def _rows(location: Location) -> Iterator[TableRow | Rejection]:
    suffix = PurePosixPath(location.path).suffix.lower()
    with _lines(location) as lines:
        if suffix in SEPARATORS:
            yield from _csv_rows(lines, location, SEPARATORS[suffix])
        else:
            yield from _json_rows(lines, location)


@contextmanager
def _lines(location: Location) -> Iterator[Iterator[bytes]]:
    """The lines of a file as bytes, without a byte order mark."""
    with readable_errors(location, "table"), location.fs.open(location.path, "rb", block_size=BLOCK_BYTES) as stream:
        yield _split(io.BufferedReader(stream, BLOCK_BYTES), location)


def _split(stream: io.BufferedReader, location: Location) -> Iterator[bytes]:
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
            if line.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise ConfigError(f"table {location.url}: the file is UTF-16; save it as UTF-8")
        if len(line) > LONGEST_LINE:
            raise ConfigError(f"table {location.url}: line {number} is over {LONGEST_LINE} bytes; is it a table?")
        yield line


def _header(lines: Iterator[bytes], location: Location, separator: str) -> list[str]:
    try:
        names = next(csv.reader((line.decode() for line in lines), delimiter=separator, strict=True), [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"table {location.url}: no readable header ({error}); save it as CSV in UTF-8") from error
    twice = [name for name in names if names.count(name) > 1]
    if twice or not names:
        found = f"column {twice[0]!r} twice" if twice else "nothing"
        raise ConfigError(f"table {location.url}: expected a header of column names, found {found}; correct line 1")
    return names


def _csv_rows(lines: Iterator[bytes], location: Location, separator: str) -> Iterator[TableRow | Rejection]:
    """Bytes that are not UTF-8 pass the parser as surrogates, so that only their own row is refused."""
    decoded = (line.decode(errors="surrogateescape") for line in lines)
    reader = csv.reader(decoded, delimiter=separator, strict=True)
    names = next(reader)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
            if cells is None:
                return
            if cells:
                yield TableRow(line, _named(names, cells))
        except csv.Error as error:
            message = f"lines {line} to {reader.line_num} are no CSV ({error}); correct the quotes"
            yield Rejection(location.url, line, "unreadable_line", message)
        except Refused as refused:
            yield refused.at(location.url, line)


def _named(names: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(names):
        raise Refused("wrong_columns", f"expected {len(names)} columns, found {len(cells)}; correct the line")
    require_utf8("".join(cells))
    return dict(zip(names, cells, strict=True))


def _json_rows(lines: Iterator[bytes], location: Location) -> Iterator[TableRow | Rejection]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield TableRow(number, parse_object(line))
            except Refused as refused:
                yield refused.at(location.url, number)


def parse_object(text: bytes) -> dict[str, Any]:
    """A JSON object whose texts have a UTF-8 form; raises Refused."""
    try:
        values = json.loads(text.decode())
    except UnicodeDecodeError as error:
        raise Refused("not_utf8", f"not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise Refused("unreadable_json", f"not JSON ({error}); correct or remove it") from error
    if not isinstance(values, dict):
        raise Refused("unreadable_json", f"expected a JSON object, found {type(values).__name__}; write an object")
    if b"\\u" in text:
        require_utf8(json.dumps(values, ensure_ascii=False))
    return values


def _kind(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if -(2**63) <= value < 2**63 else "json"
    if isinstance(value, list):
        return "texts" if all(isinstance(part, str) for part in value) else "json"
    return {type(None): "null", bool: "bool", float: "float", str: "text"}.get(type(value), "json")


def _join(one: str, other: str) -> str:
    """What two kinds of values have in common."""
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    return "float" if {one, other} == {"int", "float"} else "json"


def _fit(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return float(value) if kind == "float" else value

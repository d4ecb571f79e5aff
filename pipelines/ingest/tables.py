"""CSV and JSON Lines tables, read line by line: rows in, and a rejection for every line that is none."""

import csv
import io
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

from operators.errors import ConfigError
from pipelines.ingest.rows import IMAGES, Refused, Rejection, require_utf8
from pipelines.storage import Location, readable_errors

BLOCK_BYTES = 4 * 2**20
LONGEST_LINE = 16 * 2**20
SEPARATORS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
EXACT = 2**53
"""Up to here a float holds every whole number."""
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

    def rows(self, image: str | None) -> Iterator[TableRow | Rejection]:
        """Every row, by the line that it begins in; `image` is the column of the image files."""
        return _rows(self.location, image)

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
    for row in _rows(location, None):
        if isinstance(row, TableRow):
            for name, value in row.values.items():
                kinds[name] = _join(kinds.get(name, "null"), _kind(value))
    return Table(location=location, kinds=kinds)


def _rows(location: Location, image: str | None) -> Iterator[TableRow | Rejection]:
    suffix = PurePosixPath(location.path).suffix.lower()
    with _lines(location) as lines:
        if suffix in SEPARATORS:
            yield from _csv_rows(lines, location, SEPARATORS[suffix], image)
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


class _Record:
    """A CSV's lines one after the other, and those of the record that is being read."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self._again: deque[str] = deque()
        self.line = 0
        """The last that was read, counted from 1."""
        self.texts: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Bytes that are not UTF-8 pass the parser as surrogates, so that only their own row is refused."""
        text = self._again.popleft() if self._again else next(self._lines).decode(errors="surrogateescape")
        self.texts.append(text)
        self.line += 1
        return text

    def begin(self) -> int:
        """The line that the next record begins in."""
        self.texts = []
        return self.line + 1

    def give_back(self) -> None:
        """Lets every line of the record but its first be read again."""
        self._again.extendleft(reversed(self.texts[1:]))
        self.line -= len(self.texts[1:])


def _csv_rows(
    lines: Iterator[bytes], location: Location, separator: str, image: str | None
) -> Iterator[TableRow | Rejection]:
    """A quote that is not closed costs the line that it stands in, and none of those that it takes in."""
    record = _Record(lines)
    reader = csv.reader(record, delimiter=separator, strict=True)
    names = next(reader)
    while True:
        line = record.begin()
        try:
            cells = next(reader, None)
            if cells is None:
                return
            if len(record.texts) > 1 and (
                len(cells) != len(names) or _takes_in_rows(record.texts, names, separator, image)
            ):
                raise csv.Error("a quote takes in the lines after it")
            if cells:
                yield TableRow(line, _named(names, cells))
        except csv.Error as error:
            message = f"the line is no CSV ({error}); correct its quotes"
            yield Rejection(location.url, line, "unreadable_line", message)
            record.give_back()
        except Refused as refused:
            yield refused.at(location.url, line)


def _takes_in_rows(texts: Sequence[str], names: list[str], separator: str, image: str | None) -> bool:
    """Whether a line below a record's first is a row by itself: of as many cells, one of them the path of an image.

    Where a stray quote meets another one, lines below it, no CSV parser can see a mistake.
    """
    place = names.index(image) if image in names else None
    lines = [next(csv.reader([text], delimiter=separator), []) for text in texts[1:]]
    return place is not None and any(
        len(cells) == len(names) and PurePosixPath(cells[place].removesuffix('"')).suffix[1:].lower() in IMAGES
        for cells in lines
    )


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
        values = json.loads(text.decode(), object_pairs_hook=_object)
        if b"\\u" in text:
            require_utf8(json.dumps(values, ensure_ascii=False))
    except UnicodeDecodeError as error:
        raise Refused("not_utf8", f"not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise Refused("unreadable_json", f"not JSON ({error}); correct or remove it") from error
    if not isinstance(values, dict):
        raise Refused("unreadable_json", f"expected a JSON object, found {type(values).__name__}; write an object")
    return values


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises Refused where it has a field twice, of which one would be lost."""
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Refused("unreadable_json", f"it has the field {twice[:80]!r} twice; leave one of them out")
    return values


def _kind(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if abs(value) <= EXACT else "long" if -(2**63) <= value < 2**63 else "json"
    if isinstance(value, list):
        return "texts" if all(isinstance(part, str) for part in value) else "json"
    return {type(None): "null", bool: "bool", float: "float", str: "text"}.get(type(value), "json")


def _join(one: str, other: str) -> str:
    """What two kinds of values have in common."""
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    return {frozenset(("int", "float")): "float", frozenset(("int", "long")): "long"}.get(
        frozenset((one, other)), "json"
    )


def _fit(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return value if isinstance(value, str) else _json(value)
    return float(value) if kind == "float" else value


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise Refused("bad_value", "a value is nested too deep; make it flat") from error

"""Reads CSV, TSV, JSON and JSON Lines files: yields rows with line numbers, or the reason if a line is unreadable."""

import codecs
import csv
import json
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.rows import require_unique_columns

QUOTED_STRING_PATTERN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
"""Pattern for a quoted string in Python or JSON."""
WRITTEN_LIST_PATTERN = re.compile(rf"\s*\[\s*(?:(?:{QUOTED_STRING_PATTERN.pattern})[\s,]*)*\]\s*", re.DOTALL)
"""Pattern for a list of strings as printed by Python, JSON or (without commas) NumPy."""
WORKBOOK_SUFFIXES = (".xlsx", ".xls", ".ods")
"""Suffixes of spreadsheets, which are not supported."""
MAX_WRITTEN_LIST_CHARACTERS = 10_000
"""Maximum number of characters in a string that is parsed as a WRITTEN_LIST_PATTERN."""
ESCAPE_PATTERN = re.compile(r"\\(.)", re.DOTALL)
BLOCK_BYTES = 4 * 2**20
MAX_LINE_BYTES = 16 * 2**20
MAX_ROW_LINES = 100
"""Maximum number of lines in a CSV row; in a longer row, an unclosed quote has turned the next rows into text."""
SEPARATORS_BY_SUFFIX = {".csv": ",", ".tsv": "\t"}
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
SEPARATOR_NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
MAX_QUOTED_CHARACTERS = 40
"""Maximum number of characters of a text that a message quotes."""
UNREADABLE_LINE_KIND = "unreadable_line"
"""Kind of rejection for invalid quotes in a CSV."""
DOWNLOAD_AGAIN_REMEDY = "it may be truncated: download or write it again"
LINE_END_PATTERN = re.compile(r"\r\n|\n|\r")
SKIPPED_KIND = "skipped"
"""Kind for an image that is left out on purpose, such as a contact sheet; it does not count as rejected."""
DAMAGED_TAR, DAMAGED_TABLE = "damaged_tar", "damaged_table"
DAMAGED_KINDS = (DAMAGED_TAR, DAMAGED_TABLE)
"""Kinds of rejections for damaged files; the number of rows lost from these files is unknown."""
REJECTED_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("line", pa.int64()),
        ("kind", pa.string()),
        ("message", pa.string()),
        ("generator", pa.string()),
        ("prompt_id", pa.string()),
        ("image_id", pa.string()),
    ]
)
"""The columns of an ingest's `rejected.parquet`."""
NO_GENERATOR = "(unknown)"
"""Generator to record for rejected rows without a known generator, in a run with several generators."""

Values = Mapping[str, Any]


class Rejection(NamedTuple):
    """A rejected row; the fields are the columns of REJECTED_SCHEMA."""

    file: str
    """Path of the table or tar; for an entry of a tar, the entry's name."""
    line: int | None
    """The row's first line in a table, counted from 1."""
    kind: str
    """A short, stable identifier such as `missing_image`."""
    message: str
    """The reason and the remedy."""
    generator: str | None = None
    prompt_id: str | None = None
    image_id: str | None = None

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line is not None else ""
        return f"{self.file}{line}: {self.message}"


class Refused(Exception):
    """Refusal of a row, raised or passed on as a value; the message says how the user can fix the problem."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    def to_rejection(
        self,
        file: str,
        line: int | None = None,
        *,
        generator: str | None = None,
        prompt_id: str | None = None,
        image_id: str | None = None,
    ) -> Rejection:
        """Return a rejection of the row at this file and line, with the ids that are known."""
        return Rejection(escape_bytes(file), line, self.kind, escape_bytes(str(self)), generator, prompt_id, image_id)


class Row(NamedTuple):
    """A readable row with the number of its first line, counted from 1."""

    line: int
    values: Values


Rows = Iterator[Row | Rejection]


class CsvTable(NamedTuple):
    names: list[str]
    rows: Rows


class TableRecords(NamedTuple):
    names: list[str]
    rows: list[dict[str, Any]]


def read_records(stream: IO[bytes], url: str, read: Collection[str] | None = None) -> TableRecords:
    """Read all rows of a CSV, TSV or JSON Lines file.

    Raise SourceError naming the file and the first unreadable row (counted from 0, as in Parquet). Also raise it if two
    columns of a CSV or TSV have the same name, and the name is in `read` or `read` is None.
    """
    table = None if is_json_lines(url) else read_csv(stream, url)
    if table is not None:
        require_unique_columns(table.names, table.names if read is None else read, url)
    records: list[dict[str, Any]] = []
    for row in read_json_lines(stream, url) if table is None else table.rows:
        if isinstance(row, Rejection):
            raise SourceError(f"{url}, row {len(records)} (line {row.line}): {row.message}")
        records.append(dict(row.values))
    names = list(dict.fromkeys(name for record in records for name in record)) if table is None else table.names
    return TableRecords(names, records)


def is_json_lines(url: str) -> bool:
    return url.lower().endswith(JSON_LINES_SUFFIXES)


def read_json_lines(stream: IO[bytes], url: str) -> Rows:
    """Yield the JSON object on each line, skipping blank lines."""
    for number, line in enumerate(_read_lines(stream, url), start=1):
        if line.strip():
            try:
                yield Row(number, parse_object(line))
            except Refused as refused:
                yield refused.to_rejection(url, number)


def open_csv(stream: IO[bytes], url: str, is_row: Callable[[Values], bool] = lambda values: False) -> CsvTable:
    """Open a CSV or, depending on its suffix, a TSV; raise SourceError if it has no header.

    If a row seems to span several lines, `is_row` decides whether one of the later lines is a row by itself.
    """
    separator = SEPARATORS_BY_SUFFIX[PurePosixPath(url).suffix.lower()]
    lines = _CsvLineReader(stream, url)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    names = _read_header(reader, separator, url)
    return CsvTable(names, _read_csv_rows(reader, lines, names, separator, is_row))


def read_csv(stream: IO[bytes], url: str) -> CsvTable:
    """Read a complete CSV or TSV from a stream that can be read twice.

    If quotes make a row unreadable, and every line has as many cells as the header when quotes are ignored, the file is
    assumed not to use quoting, like the released PartiPrompts.tsv. Quotes are then read as ordinary characters.
    """
    table = open_csv(stream, url)
    rows = list(table.rows)
    if any(isinstance(row, Rejection) and row.kind == UNREADABLE_LINE_KIND for row in rows):
        stream.seek(0)
        rows = _split_unquoted_rows(stream, url, table.names) or rows
    return CsvTable(table.names, iter(rows))


def _split_unquoted_rows(stream: IO[bytes], url: str, names: list[str]) -> list[Row | Rejection]:
    """Return the rows below the header, split at every separator.

    Return an empty list if a line is not UTF-8, contains a quoted cell, or has a different number of cells than the
    header.
    """
    separator = SEPARATORS_BY_SUFFIX[PurePosixPath(url).suffix.lower()]
    rows: list[Row | Rejection] = []
    for number, line in enumerate(_read_lines(stream, url), start=1):
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            return []
        cells = text.split(separator)
        starts = [cell for cell in cells if cell.startswith('"')]
        is_quoted = any(cell.endswith('"') or cell.count('"') % 2 == 1 for cell in starts) or "\r" in text
        if text and (len(cells) != len(names) or is_quoted):
            return []
        if text and number > 1:
            rows.append(Row(number, dict(zip(names, cells, strict=True))))
    return rows


def _read_lines(stream: IO[bytes], url: str) -> Iterator[bytes]:
    for number, line in enumerate(_read_raw_lines(stream), start=1):
        if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise SourceError(f"{url}: the file is UTF-16; save it as UTF-8")
        if len(line) > MAX_LINE_BYTES:
            raise SourceError(f"{url}: line {number} is over {MAX_LINE_BYTES} bytes; check that the file is a table")
        yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def _read_raw_lines(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while len(rest) <= MAX_LINE_BYTES and (block := stream.read(BLOCK_BYTES)):
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


class _CsvLineReader:
    """The lines of a CSV: an iterator that remembers the lines of the current record."""

    def __init__(self, stream: IO[bytes], url: str) -> None:
        self.url = url
        self._lines = _read_lines(stream, url)
        self._unread: deque[str] = deque()
        self.line = 0
        """Number of the last line read, counted from 1."""
        self.texts: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        # bytes that are not UTF-8 pass the parser as surrogates, so that only their own row is refused
        text = self._unread.popleft() if self._unread else next(self._lines).decode(errors="surrogateescape")
        self.texts.append(text)
        self.line += 1
        return text

    def begin_record(self) -> int:
        self.texts = []
        return self.line + 1

    def unread_following_lines(self) -> None:
        self._unread.extendleft(reversed(self.texts[1:]))
        self.line -= len(self.texts[1:])


def _read_header(reader: Iterator[list[str]], separator: str, url: str) -> list[str]:
    try:
        names = next(reader, None)
        require_utf8("".join(names or ()))
    except (csv.Error, Refused) as error:
        raise SourceError(
            f"{url}, line 1: no readable header ({error}); save it as CSV in UTF-8, with the usual line endings"
        ) from error
    if names is None:
        raise SourceError(f"{url}: the file is empty; {DOWNLOAD_AGAIN_REMEDY}")
    if not names:
        raise SourceError(f"{url}, line 1: expected a header with column names, found nothing; add one")
    others = [name for mark, name in SEPARATOR_NAMES.items() if mark != separator and mark in names[0]]
    if len(names) == 1 and others:
        raise SourceError(
            f"{url}, line 1: fields are separated by {others[0]}, expected {SEPARATOR_NAMES[separator]}; save it with "
            "commas and decimal points as .csv, or with tabs as .tsv"
        )
    return names


def _read_csv_rows(
    reader: Iterator[list[str]],
    lines: _CsvLineReader,
    names: list[str],
    separator: str,
    is_row: Callable[[Values], bool],
) -> Rows:
    """Yield the rows; an unclosed quote makes only its own line unreadable, not the lines after it."""
    while True:
        line = lines.begin_record()
        try:
            cells = next(reader, None)
            if cells is None:
                return
            if len(lines.texts) > 1 and (
                len(cells) != len(names)
                or len(lines.texts) > MAX_ROW_LINES
                or any(is_row(values) for values in _parse_single_lines(lines.texts[1:], names, separator))
            ):
                raise csv.Error("a quote is not closed, so the lines after it would belong to the same field")
            if cells and len(cells) != len(names):
                problem = f"expected {len(names)} fields, found {len(cells)}"
                remedy = "correct its commas and quotes, or download it again if it is the last row"
                raise Refused("wrong_columns", f"{problem}; {remedy}")
            if cells:
                require_utf8("".join(cells))
                yield Row(line, dict(zip(names, cells, strict=True)))
        except csv.Error as error:
            yield Rejection(lines.url, line, UNREADABLE_LINE_KIND, f"not CSV ({error}); correct its quotes")
            lines.unread_following_lines()
        except Refused as refused:
            yield refused.to_rejection(lines.url, line)


def _parse_single_lines(texts: Sequence[str], names: list[str], separator: str) -> Iterator[Values]:
    """Yield the values of each of a record's lines that could be a row by itself.

    A CSV parser does not notice a stray quote if another stray quote, some lines below, closes it.
    """
    for text in texts:
        cells = next(csv.reader([text], delimiter=separator), [])
        if len(cells) == len(names):
            yield dict(zip(names, cells, strict=True))


def require_utf8(text: str) -> None:
    """Raise Refused if a string was not valid UTF-8, or contains half of a JSON surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        before = text[max(0, error.start - MAX_QUOTED_CHARACTERS) : error.start]
        raise Refused("not_utf8", f"not UTF-8 after {before!r}; save the file as UTF-8") from error


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise Refused if it is invalid or contains strings that cannot be encoded as UTF-8."""
    try:
        values = parse_json(text.decode())
    except UnicodeDecodeError as error:
        raise Refused("not_utf8", f"not UTF-8 at byte {error.start}; save the file as UTF-8") from error
    if not isinstance(values, dict):
        raise Refused("unreadable_json", f"expected a JSON object, found {type(values).__name__}; write an object")
    return values


def parse_json(text: str, remedy: str = "correct or remove it") -> Any:
    """Parse JSON, including NaN; raise Refused for invalid JSON, a duplicate field, or half of a surrogate pair."""
    try:
        values = json.loads(text, object_pairs_hook=_make_object)
        if "\\u" in text:
            require_utf8(json.dumps(values, ensure_ascii=False))
    except (ValueError, RecursionError) as error:
        raise Refused("unreadable_json", f"not JSON ({error}); {remedy}") from error
    return values


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise Refused for a duplicate field, because all but one of its values would be lost."""
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Refused("unreadable_json", f"the field {twice[:80]!r} occurs twice; remove one of them")
    return values


def escape_bytes(text: str) -> str:
    r"""Return the text with each byte that is not UTF-8 written as \xff, so that it can be stored and printed."""
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:  # half of a JSON surrogate pair, which encodes no byte
        return text.encode(errors="backslashreplace").decode()


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text without their line endings.

    Only \n, \r\n and \r end a line. str.splitlines also splits at U+2028, form feeds and five other characters, which
    occur in prompts.
    """
    lines = LINE_END_PATTERN.split(text)
    return lines if lines[-1] else lines[:-1]


def convert_to_list(value: Any) -> Any:
    """Parse text that represents a list in a CSV; return any value that is not text unchanged.

    The items are separated by semicolons, or quoted in brackets, as pandas writes lists and arrays.
    """
    if not isinstance(value, str):
        return value
    if len(value) <= MAX_WRITTEN_LIST_CHARACTERS and WRITTEN_LIST_PATTERN.fullmatch(value):
        quoted = (item[1:-1].strip() for item in QUOTED_STRING_PATTERN.findall(value))
        return [ESCAPE_PATTERN.sub(r"\1", item) for item in quoted if item]
    return [item.strip() for item in value.split(";") if item.strip()]


def read_json(content: bytes, url: str) -> Any:
    """Parse a JSON file; raise SourceError naming the file if it is invalid."""
    try:
        return parse_json(read_text(content, url), DOWNLOAD_AGAIN_REMEDY)
    except Refused as error:
        raise SourceError(f"{url}: {error}") from error


def read_text(content: bytes, url: str) -> str:
    """Decode a UTF-8 file and drop any byte order mark; raise SourceError if it is empty or not UTF-8."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        utf_16 = ", which marks UTF-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else ""
        found = f"found the byte {content[error.start]:#04x}{utf_16}"
        raise SourceError(f"{url}, line {line}: expected UTF-8 text, {found}; save the file as UTF-8") from error
    if not text.strip():
        raise SourceError(f"{url}: the file is empty; {DOWNLOAD_AGAIN_REMEDY}")
    return text


def require_object(value: Any, where: str) -> dict[str, Any]:
    """Return the value if it is a JSON object; raise SourceError otherwise."""
    if not isinstance(value, dict):
        raise SourceError(f"{where}: expected an object, found {type(value).__name__}; {DOWNLOAD_AGAIN_REMEDY}")
    return value

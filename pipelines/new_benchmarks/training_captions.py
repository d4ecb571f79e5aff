"""The captions of a training set, read one after the other: tables, lists of texts, and WebDataset tars."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.errors import ConfigError, SourceError
from plumbline.operators.new_benchmarks.leaks import Caption
from plumbline.pipelines.base.storage import Place, first_line, readable_errors
from plumbline.pipelines.base.tables import (
    BLOCK_BYTES,
    JSON_LINES,
    SEPARATORS,
    Refused,
    Rejection,
    open_csv,
    parse_object,
    read_json_lines,
)
from plumbline.pipelines.ingest.sample_files import SampleFile
from plumbline.pipelines.ingest.tars import ENDINGS as TARS
from plumbline.pipelines.ingest.tars import Damage, read_members

USUAL = ("caption", "text", "prompt", "TEXT", "captions")
"""What columns of captions are called; the first that is there is taken."""
ROWS_AT_ONCE = 4096
LIST = ".txt"
NOTHING_ELSE = 0
"""Bytes of an image that are read of a tar."""


class CaptionFile(NamedTuple):
    """A file of captions, as the listing shows it."""

    place: Place
    size: int
    etag: str
    column: str | None
    """The captions' column or field; null takes a usual one."""


Captions = Iterator[Caption | Rejection]


def list_files(place: Place, column: str | None) -> list[CaptionFile]:
    """The file, those below a folder, or those that a pattern with * matches, by name; raises ConfigError for none."""
    with readable_errors(place, "captions"):
        if "*" in place.path:
            entries = dict(place.glob())
        else:
            entries = {place / path if path else place: entry for path, entry in place.files()}
    found = [
        CaptionFile(file, entry.size, entry.etag, column)
        for file, entry in entries.items()
        if entry.type == "file" and file.name.lower().endswith(tuple(READERS)) and file.name[0] not in "._"
    ]
    if not found:
        raise ConfigError(f"captions={place}: no file there ends in {', '.join(READERS)}; correct the path")
    return sorted(found, key=lambda file: file.place.url)


def read_captions(file: CaptionFile) -> Captions:
    """A file's captions in order, a few thousand in memory at a time, and what cannot be read as a rejection.

    Raises ConfigError where no column is one of captions.
    """
    ending = next(ending for ending in READERS if file.place.name.lower().endswith(ending))
    with readable_errors(file.place, "captions"):
        try:
            yield from READERS[ending](file)
        except (pa.ArrowException, SourceError, UnicodeDecodeError) as error:
            yield Rejection(file.place.url, None, "damaged_table", f"{first_line(error)}; write or download it again")


def _parquet(file: CaptionFile) -> Captions:
    with file.place.open(block_size=BLOCK_BYTES) as stream, pq.ParquetFile(stream) as table:
        column = _column(table.schema_arrow.names, file)
        row = 0
        for batch in table.iter_batches(ROWS_AT_ONCE, columns=[column], use_threads=False):
            for value in batch.column(0).to_pylist():
                yield from _texts(value, file, f"row {row}")
                row += 1


def _separated(file: CaptionFile) -> Captions:
    with file.place.open(block_size=BLOCK_BYTES) as stream:
        table = open_csv(stream, file.place.url)
        column = _column(table.names, file)
        for row in table.rows:
            if isinstance(row, Rejection):
                yield row
            else:
                yield from _texts(row.values.get(column), file, f"line {row.line}")


def _json_lines(file: CaptionFile) -> Captions:
    column = file.column
    with file.place.open(block_size=BLOCK_BYTES) as stream:
        for row in read_json_lines(stream, file.place.url):
            if isinstance(row, Rejection):
                yield row
            else:
                column = column or _column(list(row.values), file)
                yield from _texts(row.values.get(column), file, f"line {row.line}")


def _list(file: CaptionFile) -> Captions:
    with file.place.open(block_size=BLOCK_BYTES) as stream:
        for number, line in enumerate(stream, start=1):
            yield from _texts(line.decode("utf-8", "replace"), file, f"line {number}")


def _tar(file: CaptionFile) -> Captions:
    """The .txt of each sample, or of its .json the field; no image is read."""
    tar = SampleFile(place=file.place, size=file.size, etag=file.etag, name=file.place.name)
    last: Caption | Rejection | None = None
    try:
        for member in read_members(tar, NOTHING_ELSE):
            if isinstance(member, Rejection):
                yield member
            elif member.suffix in ("txt", "json"):
                for caption in _member(member.suffix, member.content, file, f"sample {member.key}"):
                    if caption != last:  # a sample's .json often repeats its .txt
                        yield caption
                    last = caption
    except Damage as damage:
        yield damage.at(file.place.url)


def _member(suffix: str, content: bytes | Refused, file: CaptionFile, row: str) -> Captions:
    if isinstance(content, Refused):
        yield content.at(file.place.url)
    elif suffix == "txt":
        yield from _texts(content.decode("utf-8", "replace"), file, row)
    else:
        try:
            fields = parse_object(content)
        except Refused as refused:
            yield refused.at(file.place.url)
            return
        names = [file.column] if file.column else [name for name in USUAL if name in fields]
        yield from (caption for name in names[:1] for caption in _texts(fields.get(name), file, row))


READERS: Mapping[str, Callable[[CaptionFile], Captions]] = {
    ".parquet": _parquet,
    **dict.fromkeys(SEPARATORS, _separated),
    **dict.fromkeys(JSON_LINES, _json_lines),
    LIST: _list,
    **dict.fromkeys(TARS, _tar),
}
"""By how a file's name ends."""


def _column(names: Sequence[str], file: CaptionFile) -> str:
    wanted = (file.column,) if file.column else USUAL
    column = next((name for name in wanted if name in names), None)
    if column is None:
        raise ConfigError(
            f"{file.place}: expected a column {' or '.join(wanted)}, found {', '.join(names)}; name the captions' by "
            "column=NAME"
        )
    return column


def _texts(value: Any, file: CaptionFile, row: str) -> Iterator[Caption]:
    """The captions of a row, of which some have several; none where it has none."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and text.strip():
            yield Caption(file.place.url, row, text.strip())

"""The captions of a training set, read one after the other: tables, lists of texts, and WebDataset tars."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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
from plumbline.pipelines.ingest.tars import ENDINGS as TARS
from plumbline.plugins.benchmark_builder.leaks import Caption
from plumbline.plugins.benchmark_builder.training_files import (
    TrainingFile,
    TrainingReader,
    choose_column,
    read_parquet,
    read_tar,
)

USUAL = ("caption", "text", "prompt", "TEXT", "captions")
"""What columns of captions are called; the first that is there is taken."""
ROWS_AT_ONCE = 4096
LIST = ".txt"
NOTHING_ELSE = 0
"""Bytes of an image that are read of a tar."""


Captions = Iterator[Caption | Rejection]


def _parquet(file: TrainingFile) -> Captions:
    row = 0
    for table in read_parquet(file, lambda names: [_column(names, file)], ROWS_AT_ONCE):
        for value in table.column(0).to_pylist():
            yield from _texts(value, file, f"row {row}")
            row += 1


def _separated(file: TrainingFile) -> Captions:
    with file.place.open(block_size=BLOCK_BYTES) as stream:
        table = open_csv(stream, file.place.url)
        column = _column(table.names, file)
        for row in table.rows:
            if isinstance(row, Rejection):
                yield row
            else:
                yield from _texts(row.values.get(column), file, f"line {row.line}")


def _json_lines(file: TrainingFile) -> Captions:
    column = file.column
    with file.place.open(block_size=BLOCK_BYTES) as stream:
        for row in read_json_lines(stream, file.place.url):
            if isinstance(row, Rejection):
                yield row
            else:
                column = column or _column(list(row.values), file)
                yield from _texts(row.values.get(column), file, f"line {row.line}")


def _list(file: TrainingFile) -> Captions:
    with file.place.open(block_size=BLOCK_BYTES) as stream:
        for number, line in enumerate(stream, start=1):
            yield from _texts(line.decode("utf-8", "replace"), file, f"line {number}")


def _tar(file: TrainingFile) -> Captions:
    """The .txt of each sample, or of its .json the field; no image is read."""
    last: Caption | Rejection | None = None
    for member in read_tar(file, NOTHING_ELSE):
        if isinstance(member, Rejection):
            yield member
        elif member.suffix in ("txt", "json"):
            for caption in _member(member.suffix, member.content, file, f"sample {member.key}"):
                if caption != last:  # a sample's .json often repeats its .txt
                    yield caption
                last = caption


def _member(suffix: str, content: bytes | Refused, file: TrainingFile, row: str) -> Captions:
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


READERS: Mapping[str, Callable[[TrainingFile], Captions]] = {
    ".parquet": _parquet,
    **dict.fromkeys(SEPARATORS, _separated),
    **dict.fromkeys(JSON_LINES, _json_lines),
    LIST: _list,
    **dict.fromkeys(TARS, _tar),
}
"""By how a file's name ends."""
CAPTIONS = TrainingReader(key="captions", readers=READERS)


def _column(names: Sequence[str], file: TrainingFile) -> str:
    return choose_column(names, file, USUAL, "column")


def _texts(value: Any, file: TrainingFile, row: str) -> Iterator[Caption]:
    """The captions of a row, of which some have several; none where it has none."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and text.strip():
            yield Caption(file.place.url, row, text.strip())

"""Reads the captions of a training set from tables, text files, and WebDataset tars."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from plumbline.pipelines.base.tables import (
    BLOCK_BYTES,
    JSON_LINES_SUFFIXES,
    SEPARATORS_BY_SUFFIX,
    Refused,
    Rejection,
    open_csv,
    parse_object,
    read_json_lines,
)
from plumbline.pipelines.ingest.tars import TAR_SUFFIXES as TARS
from plumbline.plugins.benchmark_builder.leaks import Caption
from plumbline.plugins.benchmark_builder.training_files import (
    TrainingFile,
    TrainingReader,
    choose_column,
    read_parquet,
    read_tar,
)

COMMON_CAPTION_COLUMNS = ("caption", "text", "prompt", "TEXT", "captions")
"""Common names of the caption column; the first that exists is used."""
ROWS_PER_BATCH = 4096
CAPTION_LIST_SUFFIX = ".txt"
MAX_IMAGE_BYTES = 0
"""Size limit that skips all images in a tar, because only captions are needed."""


CaptionsAndRejections = Iterator[Caption | Rejection]


def _read_parquet(file: TrainingFile) -> CaptionsAndRejections:
    row = 0
    for table in read_parquet(file, lambda names: [_choose_column(names, file)], ROWS_PER_BATCH):
        for value in table.column(0).to_pylist():
            yield from _make_captions(value, file, f"row {row}")
            row += 1


def _read_csv(file: TrainingFile) -> CaptionsAndRejections:
    with file.place.open(block_size=BLOCK_BYTES) as stream:
        table = open_csv(stream, file.place.url)
        column = _choose_column(table.names, file)
        for row in table.rows:
            if isinstance(row, Rejection):
                yield row
            else:
                yield from _make_captions(row.values.get(column), file, f"line {row.line}")


def _read_json_lines(file: TrainingFile) -> CaptionsAndRejections:
    column = file.column
    with file.place.open(block_size=BLOCK_BYTES) as stream:
        for row in read_json_lines(stream, file.place.url):
            if isinstance(row, Rejection):
                yield row
            else:
                column = column or _choose_column(list(row.values), file)
                yield from _make_captions(row.values.get(column), file, f"line {row.line}")


def _read_caption_list(file: TrainingFile) -> CaptionsAndRejections:
    with file.place.open(block_size=BLOCK_BYTES) as stream:
        for number, line in enumerate(stream, start=1):
            yield from _make_captions(line.decode("utf-8", "replace"), file, f"line {number}")


def _read_tar(file: TrainingFile) -> CaptionsAndRejections:
    """Yield the .txt of each sample and the caption in its .json, skipping images."""
    last: Caption | Rejection | None = None
    for member in read_tar(file, MAX_IMAGE_BYTES):
        if isinstance(member, Rejection):
            yield member
        elif member.suffix in ("txt", "json"):
            for caption in _read_member(member.suffix, member.content, file, f"sample {member.key}"):
                if caption != last:  # a sample's .json often repeats its .txt
                    yield caption
                last = caption


def _read_member(suffix: str, content: bytes | Refused, file: TrainingFile, row: str) -> CaptionsAndRejections:
    if isinstance(content, Refused):
        yield content.to_rejection(file.place.url)
    elif suffix == "txt":
        yield from _make_captions(content.decode("utf-8", "replace"), file, row)
    else:
        try:
            fields = parse_object(content)
        except Refused as refused:
            yield refused.to_rejection(file.place.url)
            return
        names = [file.column] if file.column else [name for name in COMMON_CAPTION_COLUMNS if name in fields]
        yield from (caption for name in names[:1] for caption in _make_captions(fields.get(name), file, row))


READ_FUNCTIONS: Mapping[str, Callable[[TrainingFile], CaptionsAndRejections]] = {
    ".parquet": _read_parquet,
    **dict.fromkeys(SEPARATORS_BY_SUFFIX, _read_csv),
    **dict.fromkeys(JSON_LINES_SUFFIXES, _read_json_lines),
    CAPTION_LIST_SUFFIX: _read_caption_list,
    **dict.fromkeys(TARS, _read_tar),
}
"""Readers by file suffix."""
CAPTION_READER = TrainingReader(key="captions", readers=READ_FUNCTIONS)


def _choose_column(names: Sequence[str], file: TrainingFile) -> str:
    return choose_column(names, file, COMMON_CAPTION_COLUMNS, "column")


def _make_captions(value: Any, file: TrainingFile, row: str) -> Iterator[Caption]:
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and text.strip():
            yield Caption(file.place.url, row, text.strip())

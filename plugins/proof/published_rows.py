"""Reads public images with their prompts and published scores."""

import csv
import hashlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import SourceError
from plumbline.plugins.proof.downloads import download_bytes
from plumbline.plugins.proof.proof_config import ImageTable, PublishedRow, PublishedScores, ScoreTable

MAX_PROMPT_BYTES = 10_000
MAX_TABLE_BYTES = 1_000_000_000
"""Largest size of the rows of a Parquet file in memory."""


class PublicImage(NamedTuple):
    """A public image with its prompt and its published score."""

    name: str
    """Name of the image in the report: the last part of its address, or its row in a table."""
    content: bytes
    digest: str
    """SHA-256 of `content`."""
    prompt: str
    score: float | None
    """The published score; None if no score was published."""


def read_images(published: PublishedScores, limit: int) -> list[PublicImage]:
    """Return the listed images, or up to `limit` images of a table, evenly spaced over the rows that have a score.

    Raises SourceError if a file cannot be read, is not the expected one, or lacks a column, or if no row has a score.
    """
    if published.table is None:
        return [_read_listed_image(row) for row in published.rows]
    return [*_read_table(published.source, published.table, published.scores, limit)]


def _read_listed_image(row: PublishedRow) -> PublicImage:
    prompt = row.prompt
    if prompt is None:
        prompt = _decode(str(row.prompt_file), download_bytes(str(row.prompt_file))[: MAX_PROMPT_BYTES + 1]).strip()
    content = download_bytes(row.image)
    image = _make_image(row.image.rpartition("/")[2], content, prompt, row.score)
    if row.sha256 not in (None, image.digest):
        raise SourceError(
            f"{row.image}: expected the SHA-256 {row.sha256}, found {image.digest}; the published score is for "
            "a different file"
        )
    return image


def _read_table(source: str, table: ImageTable, scores: ScoreTable | None, limit: int) -> Iterator[PublicImage]:
    wanted = [table.prompt, table.image]
    if scores is None:
        columns = _read_columns(table.file, [*wanted, *([] if table.score is None else [table.score])])
        values: Sequence[Any] = [None] * len(columns[table.prompt]) if table.score is None else columns[table.score]
    else:
        shared = list(scores.same) if scores.key is None else [scores.key]
        columns = _read_columns(table.file, [*wanted, *shared])
        values = _match_scores(source, columns, _read_columns(scores.file, [scores.score, *shared]), scores)
    published = [_read_score(value, scores) for value in values]
    rows = [row for row, score in enumerate(published) if score is not None]
    if table.score is None and scores is None:
        rows = [*range(len(published))]
    if not rows:
        raise SourceError(f"{source}: no image in {table.file} has a published score; check the tables and columns")
    count = min(limit, len(rows))
    for row in (rows[step * len(rows) // count] for step in range(count)):
        image = columns[table.image][row]
        name, content = f"row {row}", image["bytes"] if isinstance(image, dict) else image
        if isinstance(content, str):
            _check_relative_path(table, content)
            name, content = content, download_bytes(f"{table.images}/{content}")
        if not isinstance(content, bytes):
            raise SourceError(f"{table.file}: row {row}: column {table.image!r} has no image; choose another column")
        yield _make_image(name, content, str(columns[table.prompt][row]), published[row])


def _check_relative_path(table: ImageTable, path: str) -> None:
    parts = PurePosixPath(path).parts
    if table.images is None or path.startswith("/") or ".." in parts or "://" in path:
        raise SourceError(
            f"{table.file}: column {table.image!r}: expected a path below the address in `images`, found {path!r}; "
            "set `images`, or choose another column"
        )


def _match_scores(
    source: str, images: Mapping[str, Sequence[Any]], published: Mapping[str, Sequence[Any]], scores: ScoreTable
) -> Sequence[Any]:
    """Return the published score or None for each image; raise SourceError if the rows of the tables do not match."""
    if scores.key is not None:
        by_key = dict(zip(map(str, published[scores.key]), published[scores.score], strict=True))
        return [by_key.get(str(key)) for key in images[scores.key]]
    for name in scores.same:
        if [*map(str, images[name])] != [*map(str, published[name])]:
            raise SourceError(
                f"{source}: column {name!r} differs between the table of images and {scores.file}, so their rows are "
                "not the same images; choose other revisions"
            )
    values = published[scores.score]
    count = len(next(iter(images.values())))
    if len(values) != count:
        raise SourceError(
            f"{source}: expected {count} rows in {scores.file}, found {len(values)}; choose other revisions"
        )
    return values


def _read_columns(address: str, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the columns of a CSV or Parquet file as lists; raise SourceError if the file or a column is unusable."""
    content = download_bytes(address)
    if address.endswith(".csv"):
        rows = [*csv.DictReader(io.StringIO(_decode(address, content)))]
        found, columns = {*(rows[0] if rows else ())}, {name: [row.get(name) for row in rows] for name in names}
    else:
        try:
            file = pq.ParquetFile(pa.BufferReader(content))
            groups = (file.metadata.row_group(group) for group in range(file.metadata.num_row_groups))
            if sum(group.total_byte_size for group in groups) > MAX_TABLE_BYTES:
                raise SourceError(
                    f"{address}: expected at most {MAX_TABLE_BYTES:,} bytes of rows, found more; choose another file"
                )
            table = file.read(columns=list(dict.fromkeys(names)))
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{address}: expected a CSV or Parquet file ({error}); choose another file") from error
        found, columns = {*table.column_names}, {name: table[name].to_pylist() for name in table.column_names}
    lacking = [name for name in names if name not in found]
    if lacking:
        raise SourceError(f"{address}: has no column {lacking[0]!r}; name one of its columns")
    return columns


def _decode(address: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{address}: expected text in UTF-8 ({error.reason}); choose another file") from error


def _read_score(value: Any, scores: ScoreTable | None) -> float | None:
    try:
        score = math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return None
    return None if not math.isfinite(score) or (scores is not None and score == scores.missing) else score


def _make_image(name: str, content: bytes, prompt: str, score: float | None) -> PublicImage:
    return PublicImage(name, content, hashlib.sha256(content).hexdigest(), prompt, score)

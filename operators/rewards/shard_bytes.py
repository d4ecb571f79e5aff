"""Rows to the bytes of a shard, the same every time: Parquet, a WebDataset tar, or lines of JSON."""

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.image_completeness import JPEG, PNG

ROW_GROUP_ROWS = 64
EXTENSIONS = ((PNG, "png"), (JPEG, "jpg"), (b"GIF8", "gif"), (b"BM", "bmp"), (b"II", "tiff"), (b"MM", "tiff"))
Row = Mapping[str, Any]


def to_parquet(rows: Sequence[Row], schema: pa.Schema) -> bytes:
    """The rows in row groups that a reader can hold, with page checksums."""
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema, compression="snappy", write_page_checksum=True) as writer:
        for first in range(0, len(rows), ROW_GROUP_ROWS):
            writer.write_table(
                pa.Table.from_pylist([dict(row) for row in rows[first : first + ROW_GROUP_ROWS]], schema)
            )
        if not rows:
            writer.write_table(schema.empty_table())
    return buffer.getvalue()


def to_tar(rows: Sequence[Row], keys: Sequence[str]) -> bytes:
    """A WebDataset tar: of every row a file for each of its columns, named by the row's key and the column."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key, row in zip(keys, rows, strict=True):
            for extension, content in row.items():
                entry = tarfile.TarInfo(f"{key}.{extension}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def to_lines(rows: Sequence[Row]) -> bytes:
    """A line of JSON for each row."""
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode(errors="replace")


def extension(encoded: bytes) -> str:
    """What a file with an encoded image is to be called."""
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        return "webp"
    return next((name for signature, name in EXTENSIONS if encoded.startswith(signature)), "img")

"""Drafts of shards: written to disk one row group at a time, and committed as a whole once they have a path."""

import struct
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.ingest_output import ShardFooter, read_footer
from plumbline.pipelines.ingest.input_rows import SETTINGS_FIELD, SOURCE_FIELD, Candidate
from plumbline.pipelines.sources.shards import INGEST_KEY
from plumbline.pipelines.store.checksums import encode_json

PAGE_BYTES = 16 << 10
"""Page size limit of a column in bytes. A larger image gets a page of its own and can be read separately."""


class ShardRecord(NamedTuple):
    """Description of a shard in the output, for the manifest and for progress messages."""

    path: str
    """Path relative to the output."""
    generator: str
    rows: int
    bytes: int
    key: str
    """Hash of the input and the options that the shard was made from."""
    written: bool
    """True if the shard was written in this run."""


ShardReport = Callable[[ShardRecord], None]
"""Function that is called with each shard as soon as it is in the output."""


class DraftedShard(NamedTuple):
    """A drafted shard, which has no path in the output yet."""

    generator: str
    content: str
    """Hash of the input that the draft was made from."""
    rows: Sequence[Candidate | Rejection] = ()
    """Rows in input order, with rejections in place of rows that could not be drafted. Empty if the shard may already
    be in the output.
    """


class DraftedUnit(NamedTuple):
    """The shards of one unit of the input."""

    shards: Sequence[DraftedShard]
    rejected: Sequence[Rejection]
    """Rejected rows that are not part of any shard."""


class Placement(NamedTuple):
    """Decision about a draft: its path in the output, its metadata, and the rows to leave out."""

    path: str
    """Path relative to the output."""
    content: str
    """The draft's `content`, which is compared when the draft is committed."""
    footer: ShardFooter
    refused: Collection[int]
    """Indices of drafted rows that are left out; rejections are not counted."""
    replace: bool
    """True if the draft replaces another shard."""


class ShardDraft:
    """A shard that is being filled, with at most one row group in memory."""

    def __init__(self, config: IngestConfig, output: Place, schema: pa.Schema, generator: str, content: str) -> None:
        self.config = config
        self.output = output
        self.schema = schema
        self.generator = generator
        self.content = content
        self.rows: list[Candidate | Rejection] = []
        """The rows added so far, without `extras`, which are stored only in the draft file."""
        self._group: list[Mapping[str, Any]] = []
        self._group_bytes = 0
        self._file: Path | None = None
        self._writer: pq.ParquetWriter | None = None

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self.config.shard_rows

    def add(
        self, candidate: Candidate, image: bytes | str, sources: Sequence[bytes | str], settings: Mapping[str, str]
    ) -> None:
        """Add a row with its image, the source images of an edit, and the settings that the image was generated with.

        Images are bytes, or addresses if they are not copied.
        """
        self.rows.append(candidate._replace(extras={}))
        self._write({SETTINGS_FIELD.name: dict(settings) or None, **candidate.make_row(image, sources)})
        if self.is_full:
            self._write_row_group()

    def finish(self) -> DraftedShard:
        """Write the last row group, and return the draft's rows."""
        self._write_row_group()
        return DraftedShard(self.generator, self.content, self.rows)

    def _write(self, row: Mapping[str, Any]) -> None:
        size = len(row.get("image", b"")) + sum(map(len, row.get(SOURCE_FIELD.name) or ()))
        if len(self._group) >= self.config.row_group_rows or self._group_bytes + size > self.config.row_group_bytes:
            self._write_row_group()
        self._group.append(row)
        self._group_bytes += size

    def _write_row_group(self) -> None:
        if self._group:
            table = pa.Table.from_pylist([{**row, "image": None} for row in self._group], schema=self.schema)
            if "image" in self.schema.names:
                # from_pylist would copy the bytes of all images.
                images = pa.chunked_array([_make_array_without_copy(row["image"]) for row in self._group])
                field = self.schema.field("image")
                table = table.set_column(self.schema.get_field_index("image"), field, images)
            with convert_read_errors(self.output, "output"):
                self._open_writer().write_table(table, row_group_size=len(self._group))
        self._group, self._group_bytes = [], 0

    def _open_writer(self) -> pq.ParquetWriter:
        if self._writer is None:
            flat = [name for name in self.schema.names
                    if name != "image" and not pa.types.is_nested(self.schema.field(name).type)]  # fmt: skip
            folder = (self.output / self.generator / "draft").get_draft_folder()
            self._file = folder / f".draft.parquet.{uuid.uuid4().hex}"
            self._writer = pq.ParquetWriter(
                self._file,
                self.schema,
                compression=dict.fromkeys(flat, "zstd") | {"image": "none"},
                use_dictionary=flat,
                write_statistics=flat,
                write_page_checksum=True,
                write_page_index=True,  # so that a reader of a few images need not read their whole row group
                data_page_size=PAGE_BYTES,
                write_batch_size=1,  # number of rows after which the page size is compared with the limit
            )
        return self._writer

    def commit(self, placement: Placement) -> int:
        """Commit the draft to its path without the refused rows; return the file's size in bytes.

        Raises ConfigError if another shard has been written to the path in the meantime. Also raises it if the
        draft had to be made again because its worker died, and the input had changed by then.
        """
        if placement.content != self.content:
            raise ConfigError(
                f"{self.output / placement.path}: the input changed while it was being read; run the same command again"
            )
        if placement.refused:
            self._remove_rows(placement.refused)
        self._write_row_group()
        path, footer = placement.path, placement.footer
        with convert_read_errors(self.output, "output"):
            writer = self._open_writer()
            writer.add_key_value_metadata({INGEST_KEY.decode(): encode_json(footer._asdict())})
            writer.close()
            assert self._file is not None
            size = self._file.stat().st_size
            created = commit_file(self._file, self.output / path, replace=placement.replace)
            is_ours = created or read_footer(self.output, path).key == footer.key
        if not is_ours:
            raise ConfigError(f"{self.output / path}: another ingest wrote it in the meantime; choose another output")
        return size

    def _remove_rows(self, refused: Collection[int]) -> None:
        """Rewrite the draft without these rows, with the same row groups as if the rows had never been added."""
        self._write_row_group()
        assert self._file is not None and self._writer is not None
        file, writer = self._file, self._writer
        self._file = self._writer = None
        try:
            writer.close()
            with pq.ParquetFile(file, pre_buffer=False) as draft:
                for row, batch in enumerate(draft.iter_batches(batch_size=1, use_threads=False)):
                    if row not in refused:
                        self._write(batch.to_pylist()[0])
        finally:
            file.unlink(missing_ok=True)

    def abandon(self) -> None:
        with suppress(OSError):  # if the disk is full, closing fails just as writing did
            if self._writer is not None:
                self._writer.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _make_array_without_copy(value: bytes) -> pa.Array:
    offsets = struct.pack("=2i", 0, len(value))
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(value)])


def commit_file(draft: Path, place: Place, *, replace: bool) -> bool:
    """Move a complete local file to `place`; return False if another file was there first."""
    try:
        return place.move_draft(draft, replace=replace)
    finally:
        draft.unlink(missing_ok=True)

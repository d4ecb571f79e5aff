"""Shards on their way into an output: drafted a row group at a time, and each committed whole once it has a place."""

import struct
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.cells.checksums import encode_json
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.ingest_output import Footer, read_footer
from plumbline.pipelines.ingest.input_rows import KEPT_SETTINGS, SOURCE, Candidate
from plumbline.pipelines.sources.shards import INGESTED

PAGE_BYTES = 16 << 10
"""Bytes after which a page of a column ends: a larger image has a page of its own."""


class ShardRecord(NamedTuple):
    """A shard that stands in the output."""

    path: str
    """Below the output."""
    generator: str
    rows: int
    bytes: int
    key: str
    """A hash of what it was made from, and how."""
    written: bool
    """Whether this run wrote it."""


ShardReport = Callable[[ShardRecord], None]
"""Called with every shard as it comes to stand."""


class DraftedShard(NamedTuple):
    """What a draft holds."""

    generator: str
    content: str
    """A hash of what it was made from."""
    rows: Sequence[Candidate | Rejection] = ()
    """The rows of the input in their order, those that could not be drafted as rejections; none of a shard that may
    stand already."""


class Drafted(NamedTuple):
    """What a unit of the input becomes."""

    shards: Sequence[DraftedShard]
    rejected: Sequence[Rejection]
    """Rows that are of no shard."""


class Placement(NamedTuple):
    """Where a draft goes."""

    path: str
    """Below the output."""
    content: str
    """The draft's."""
    footer: Footer
    refused: Collection[int]
    """The drafted rows, counted without rejections, that may not stand."""
    replace: bool
    """Whether it takes the place of another shard."""


class ShardDraft:
    """A shard that is being filled; at most one row group of it is in memory."""

    def __init__(self, config: IngestConfig, output: Place, schema: pa.Schema, generator: str, content: str) -> None:
        self.config = config
        self.output = output
        self.schema = schema
        self.generator = generator
        self.content = content
        self.rows: list[Candidate | Rejection] = []
        """Without what only the draft holds."""
        self._group: list[Mapping[str, Any]] = []
        self._group_bytes = 0
        self._file: Path | None = None
        self._writer: pq.ParquetWriter | None = None

    @property
    def full(self) -> bool:
        return len(self.rows) >= self.config.shard_rows

    def add(
        self,
        candidate: Candidate,
        image: bytes | str,
        sources: Sequence[bytes | str] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Takes a row with the bytes of its image and its sources, or their addresses, and what it was generated
        with.
        """
        self.rows.append(candidate._replace(extras={}))
        self._write({KEPT_SETTINGS.name: dict(settings) or None, **candidate.row(image, sources)})
        if self.full:
            self._flush()

    def drafted(self) -> DraftedShard:
        """What is to be known of the draft; its rows are on disk from now on."""
        self._flush()
        return DraftedShard(self.generator, self.content, self.rows)

    def _write(self, row: Mapping[str, Any]) -> None:
        size = len(row.get("image", b"")) + sum(map(len, row.get(SOURCE.name) or ()))
        rows, most = self.config.row_group_rows, self.config.row_group_bytes
        if len(self._group) >= rows or self._group_bytes + size > most:
            self._flush()
        self._group.append(row)
        self._group_bytes += size

    def _flush(self) -> None:
        if self._group:
            table = _table(self._group, self.schema)
            with readable_errors(self.output, "output"):
                self._open_writer().write_table(table, row_group_size=len(self._group))
        self._group, self._group_bytes = [], 0

    def _open_writer(self) -> pq.ParquetWriter:
        if self._writer is None:
            flat = [name for name in self.schema.names
                    if name != "image" and not pa.types.is_nested(self.schema.field(name).type)]  # fmt: skip
            self._file = _draft_file(self.output, self.generator)
            self._writer = pq.ParquetWriter(
                self._file,
                self.schema,
                compression=dict.fromkeys(flat, "zstd") | {"image": "none"},
                use_dictionary=flat,
                write_statistics=flat,
                write_page_checksum=True,
                write_page_index=True,  # so that a reader of a few images need not read their whole row group
                data_page_size=PAGE_BYTES,
                write_batch_size=1,  # rows between two looks at the page's size
            )
        return self._writer

    def commit(self, placement: Placement) -> int:
        """Puts the rows that may stand in their place; the file's size in bytes.

        Raises ConfigError where another shard is there by now, and where the draft is not what was placed, as when
        its worker died and the input changed meanwhile.
        """
        if placement.content != self.content:
            raise ConfigError(f"{self.output / placement.path}: the input changed while it was read; run again")
        if placement.refused:
            self._leave_out(placement.refused)
        self._flush()
        path, footer = placement.path, placement.footer
        with readable_errors(self.output, "output"):
            writer = self._open_writer()
            writer.add_key_value_metadata({INGESTED.decode(): encode_json(footer._asdict())})
            writer.close()
            assert self._file is not None
            size = self._file.stat().st_size
            created = commit_file(self._file, self.output / path, replace=placement.replace)
            stands = created or read_footer(self.output, path).key == footer.key
        if not stands:
            raise ConfigError(f"{self.output / path}: another ingest wrote it meanwhile; choose another output")
        return size

    def _leave_out(self, refused: Collection[int]) -> None:
        """Drafts the shard anew without these rows: its row groups are as if they had never been there."""
        self._flush()
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
        """Removes what was drafted."""
        with suppress(OSError):  # where the disk is full, closing fails as writing did
            if self._writer is not None:
                self._writer.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """The rows; their images are the bytes that were read, not a copy."""
    if "image" not in schema.names:
        return pa.Table.from_pylist(list(rows), schema=schema)
    images = pa.chunked_array([_in_place(row["image"]) for row in rows])
    table = pa.Table.from_pylist([{**row, "image": None} for row in rows], schema=schema)
    return table.set_column(schema.get_field_index("image"), schema.field("image"), images)


def _in_place(value: bytes) -> pa.Array:
    offsets = struct.pack("=2i", 0, len(value))
    return pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(value)])


def _draft_file(output: Place, generator: str) -> Path:
    """Where a shard is drafted."""
    return (output / generator / "draft").draft_folder() / f".draft.parquet.{uuid.uuid4().hex}"


def commit_file(draft: Path, place: Place, *, replace: bool) -> bool:
    """Puts a local file in its place whole, and removes it; False where another was first."""
    try:
        return place.put(draft, replace=replace)
    finally:
        draft.unlink(missing_ok=True)

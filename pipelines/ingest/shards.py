"""Shards on their way into an output: drafted a row group at a time, and each committed whole once it has a place."""

import json
import os
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from operators.errors import ConfigError
from pipelines.ingest.rows import Candidate
from pipelines.ingest.standing import METADATA, Footer, read_footer
from pipelines.storage import Location, readable_errors
from pipelines.tables import Rejection

UPLOAD_BYTES = 16 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSize:
    """How much goes into a shard and into each of its row groups."""

    shard_rows: int
    row_group_rows: int
    row_group_bytes: int


class SourceFile(NamedTuple):
    """A file that was read, for the manifest."""

    url: str
    bytes: int
    etag: str


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


OnChange = Literal["fail", "replace"]
Report = Callable[[ShardRecord], None]
"""Called with every shard as it comes to stand."""


class DraftedRow(NamedTuple):
    """What is to be known of a drafted row to tell whether it may stand."""

    file: str
    line: int | None
    image_id: str
    prompt_id: str
    prompt: str | None


class DraftedShard(NamedTuple):
    """What a draft holds."""

    generator: str
    content: str
    """A hash of what it was made from."""
    rows: Sequence[DraftedRow | Rejection]
    """The rows of the input in their order, those that could not be drafted as rejections."""


class Drafted(NamedTuple):
    """What a unit of the input became."""

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


class Drafts:
    """The drafts of a unit of the input, in the order in which they were begun."""

    def __init__(self, output: Location, schema: pa.Schema, size: ShardSize) -> None:
        self.output = output
        self.schema = schema
        self.size = size
        self.shards: list[ShardDraft] = []

    def begin(self, generator: str, content: str) -> "ShardDraft":
        """A draft of the generator's next shard, made from this content."""
        self.shards.append(ShardDraft(self.output, self.schema, self.size, generator, content))
        return self.shards[-1]

    def abandon(self) -> None:
        """Removes what was drafted."""
        for shard in self.shards:
            shard.abandon()


class ShardDraft:
    """A shard that is being filled; at most one row group of it is in memory."""

    def __init__(self, output: Location, schema: pa.Schema, size: ShardSize, generator: str, content: str) -> None:
        self.output = output
        self.schema = schema
        self.size = size
        self.generator = generator
        self.content = content
        self.rows: list[DraftedRow | Rejection] = []
        self._group: list[Mapping[str, Any]] = []
        self._group_bytes = 0
        self._file: Path | None = None
        self._writer: pq.ParquetWriter | None = None

    @property
    def full(self) -> bool:
        return len(self.rows) >= self.size.shard_rows

    def add(self, candidate: Candidate, image: bytes) -> None:
        """Takes a row."""
        ids = (candidate.image_id, candidate.prompt_id, candidate.prompt)
        self.rows.append(DraftedRow(candidate.file, candidate.line, *ids))
        self._write(candidate.row(image))
        if self.full:
            self._flush()

    def refuse(self, rejection: Rejection) -> None:
        """Keeps a row that cannot be taken."""
        self.rows.append(rejection)

    def drafted(self) -> DraftedShard:
        """What is to be known of the draft; its rows are on disk from now on."""
        self._flush()
        return DraftedShard(self.generator, self.content, self.rows)

    def _write(self, row: Mapping[str, Any]) -> None:
        size = len(row["image"])
        if len(self._group) >= self.size.row_group_rows or self._group_bytes + size > self.size.row_group_bytes:
            self._flush()
        self._group.append(row)
        self._group_bytes += size

    def _flush(self) -> None:
        if self._group:
            table = pa.Table.from_pylist(self._group, schema=self.schema)
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
            )
        return self._writer

    def commit(self, placement: Placement) -> int:
        """Puts the rows that may stand in their place; the file's size in bytes.

        Raises ConfigError where another shard is there by now, and where the draft is not what was placed, as when
        its worker died and the input changed meanwhile.
        """
        if placement.content != self.content:
            raise ConfigError(f"{self.output.at(placement.path)}: the input changed while it was read; run again")
        if placement.refused:
            self._leave_out(placement.refused)
        self._flush()
        path, footer = placement.path, placement.footer
        with readable_errors(self.output, "output"):
            writer = self._open_writer()
            writer.add_key_value_metadata({METADATA.decode(): json.dumps(footer._asdict())})
            writer.close()
            assert self._file is not None
            size = self._file.stat().st_size
            created = commit_file(self.output, self._file, self.output.at(path), replace=placement.replace)
            stands = created or read_footer(self.output, path).key == footer.key
        if not stands:
            raise ConfigError(f"{self.output.at(path)}: another ingest wrote it meanwhile; choose another output")
        return size

    def _leave_out(self, refused: Collection[int]) -> None:
        """Drafts the shard anew without these rows: its row groups are as if they had never been there."""
        self._flush()
        assert self._file is not None and self._writer is not None
        file, writer = self._file, self._writer
        self._file = self._writer = None
        try:
            writer.close()
            row = 0
            with pq.ParquetFile(file, pre_buffer=False) as draft:
                for batch in draft.iter_batches(batch_size=1, use_threads=False):
                    if row not in refused:
                        self._write(batch.to_pylist()[0])
                    row += 1
        finally:
            file.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Removes what was drafted."""
        with suppress(OSError):  # where the disk is full, closing fails as writing did
            if self._writer is not None:
                self._writer.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _draft_file(output: Location, generator: str) -> Path:
    """Where a shard is drafted: beside its place on a local disk, so that it can be linked there."""
    if not isinstance(output.fs, LocalFileSystem):
        descriptor, name = tempfile.mkstemp(prefix="plumbline-ingest-", suffix=".parquet")
        os.close(descriptor)
        return Path(name)
    folder = Path(output.at(generator))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f".draft.parquet.{uuid.uuid4().hex}"


def commit_file(output: Location, draft: Path, path: str, *, replace: bool) -> bool:
    """Puts a local file in its place whole, and removes it; False where another was first."""
    try:
        if not isinstance(output.fs, LocalFileSystem):
            return _upload(output, draft, path, replace=replace)
        with draft.open("rb") as file:
            os.fsync(file.fileno())  # what is committed outlives a machine that stops
        if replace:
            draft.replace(path)
        else:
            os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def _upload(output: Location, draft: Path, path: str, *, replace: bool) -> bool:
    mode = "overwrite" if replace else "create"
    try:
        output.fs.put_file(str(draft), path, mode=mode, chunksize=UPLOAD_BYTES, max_concurrency=2)
    except OSError:
        if replace or not output.fs.exists(path):  # SeaweedFS answers a lost race with errno 22
            raise
        return False
    return True

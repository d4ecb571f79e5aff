"""The output of an ingest: shards written a row group at a time, each committed whole, and those that stand already."""

import json
import os
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from operators.errors import ConfigError
from pipelines.ingest.records import Records
from pipelines.ingest.rows import Candidate, digest
from pipelines.ingest.standing import (
    METADATA,
    Footer,
    OtherText,
    damage_named,
    other_generators,
    other_texts,
    read_columns,
    read_footer,
    read_standing,
)
from pipelines.storage import Location, readable_errors
from pipelines.tables import Refused, Rejection

UPLOAD_BYTES = 16 * 2**20
OnChange = Literal["fail", "replace"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSize:
    """How much goes into a shard and into each of its row groups."""

    shard_rows: int
    row_group_rows: int
    row_group_bytes: int


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


Report = Callable[[ShardRecord], None]
"""Called with every shard as it comes to stand."""


class SourceFile(NamedTuple):
    """A file that was read, for the manifest."""

    url: str
    bytes: int
    etag: str


class Seen:
    """The ids and texts that were taken, so that none is taken twice."""

    def __init__(self, elsewhere: Mapping[str, OtherText]) -> None:
        self.images: set[bytes] = set()
        self.prompts: dict[str, str] = {}
        self.elsewhere = elsewhere

    def take(self, generator: str, image_id: str, prompt_id: str, prompt: str | None) -> None:
        """Remembers a row; raises Refused where its id was taken, or its prompt_id stands for another text.

        Raises ConfigError where it does so in another ingest: shards must not depend on what another one made.
        """
        identity = blake2b(f"{generator}\0{image_id}".encode(), digest_size=16).digest()
        if identity in self.images:
            raise Refused("duplicate_id", f"image_id {image_id!r} of {generator} was taken by a row before; rename one")
        if prompt is not None and prompt_id in self.elsewhere:
            self.elsewhere[prompt_id].check(prompt_id, prompt, f"image_id {image_id!r} of {generator}")
        if prompt is not None and self.prompts.setdefault(prompt_id, prompt) != prompt:
            raise Refused(
                "other_prompt", f"prompt_id {prompt_id!r} stands for another text in a row before; make ids unique"
            )
        self.images.add(identity)


class Shards:
    """All shards of an output that one ingest makes, and what is known of their rows."""

    def __init__(self, records: Records, schema: pa.Schema, size: ShardSize, on_change: OnChange) -> None:
        self.output = records.output
        self.forget = records.forget
        self.source = records.source
        self.schema = schema
        self.size = size
        self.on_change = on_change
        self.standing = read_standing(self.output, self.source)
        self.others = other_generators(self.standing, self.source)
        self.seen = Seen(other_texts(self.standing))
        self.records: list[ShardRecord] = []
        self.rejected: list[Rejection] = []
        self.numbers: Counter[str] = Counter()
        self.chain = ""
        self.open: list[ShardWriter] = []

    def begin(self, generator: str, content: str) -> "ShardWriter":
        """The generator's next shard, of this content; `stands` tells that it is there and needs no rows.

        Its key has the content and the keys before it, whose rows decide which of its ids were taken already.
        Raises ConfigError where another shard is in its place and `on_change` is not `replace`, and where the
        generator is another ingest's.
        """
        if generator in self.others:
            raise ConfigError(
                f"{self.output.at(generator)}: holds the images of another ingest ({self.others[generator]}); "
                "give this one's generator another name, or choose another output"
            )
        path = shard_path(generator, self.numbers[generator])
        self.numbers[generator] += 1
        self.chain = key = next_key(self.chain, content)
        footer = self._standing(path, key)
        shard = ShardWriter(self, generator=generator, path=path, key=key, stands=footer is not None)
        if footer is not None:
            shard.rows = self._restore(path, generator)
            self.rejected += footer.rejected
        self.open.append(shard)
        return shard

    def has(self, path: str, key: str) -> bool:
        """Whether a shard of this path is there and was made from the same."""
        with readable_errors(self.output, "output"):
            return self.output.fs.exists(self.output.at(path)) and read_footer(self.output, path).key == key

    def abandon(self) -> None:
        """Removes the drafts of shards that were not closed."""
        for shard in self.open:
            shard.abandon()

    def finish(self) -> None:
        """Removes this ingest's shards that its input no longer fills; raises ConfigError where that is not to be.

        A generator as a whole is never removed, nor anything that another ingest made.
        """
        known = {record.path for record in self.records}
        generators = {record.generator for record in self.records}
        for path in sorted(self.standing):
            generator = path.partition("/")[0]
            if path in known or generator in self.others:
                continue
            if generator not in generators:
                raise ConfigError(
                    f"{self.output.at(path)}: this ingest made it before, and its input has no rows of {generator!r} "
                    "now; keep both by choosing another output, or move that folder away"
                )
            if self.on_change != "replace":
                raise ConfigError(
                    f"{self.output.at(path)}: the input has fewer rows of {generator!r} than before; "
                    "on_change=replace removes this shard, or choose another output"
                )
            self.forget()
            with readable_errors(self.output, "output"):
                self.output.fs.rm_file(self.output.at(path))

    def prompts(self) -> tuple[dict[str, str], list[str]]:
        """The texts of all prompts of the output as it is now, and its shards.

        Raises ConfigError where an ingest that ran at the same time gives a prompt_id another text.
        """
        self.standing = read_standing(self.output, self.source, self.standing)
        elsewhere = other_texts(self.standing)
        for prompt_id, other in elsewhere.items():
            other.check(prompt_id, self.seen.prompts.get(prompt_id, other.text), "this ingest")
        texts = {prompt_id: other.text for prompt_id, other in elsewhere.items()} | self.seen.prompts
        return texts, list(self.standing)

    def _standing(self, path: str, key: str) -> Footer | None:
        """The footer of the shard that stands there and need not be written; None where one is to be written."""
        if path not in self.standing:
            return None
        footer = self.standing[path].footer
        if footer.key != key and self.on_change != "replace":
            raise ConfigError(
                f"{self.output.at(path)}: the shard that stands there was made from other input or by other options; "
                "on_change=replace writes it anew, or choose another output"
            )
        return footer if footer.key == key else None

    def _restore(self, path: str, generator: str) -> int:
        """Takes the ids and texts of a shard that stands, without its images; how many rows it has."""
        rows = read_columns(self.output, path, ["image_id", "prompt_id", "prompt"])
        with damage_named(self.output, path):
            for row in rows:
                self.seen.take(generator, **row)
        return len(rows)


def next_key(chain: str, content: str) -> str:
    """The key of a shard that follows the shards of the key `chain`."""
    return digest([chain, content])


def shard_path(generator: str, number: int) -> str:
    """Where a generator's shard is, below the output."""
    return f"{generator}/{number:05d}.parquet"


@dataclass(slots=True)
class ShardWriter:
    """A shard that is being filled; at most one row group of it is in memory."""

    shards: Shards
    generator: str
    path: str
    key: str
    stands: bool
    candidates: int = 0
    """How many rows it was offered, which is what fills it."""
    rows: int = 0
    _group: list[dict[str, Any]] = field(default_factory=list)
    _group_bytes: int = 0
    _rejected: list[Rejection] = field(default_factory=list)
    _draft: Path | None = None
    _writer: pq.ParquetWriter | None = None

    @property
    def full(self) -> bool:
        return self.candidates >= self.shards.size.shard_rows

    def add(self, candidate: Candidate, image: bytes) -> None:
        """Takes a row, or keeps the reason why it cannot be taken."""
        self.candidates += 1
        if self.stands:
            return
        try:
            self.shards.seen.take(candidate.generator, candidate.image_id, candidate.prompt_id, candidate.prompt)
        except Refused as refused:
            self._rejected.append(refused.at(candidate.file, candidate.line))
            return
        size = self.shards.size
        if len(self._group) >= size.row_group_rows or self._group_bytes + len(image) > size.row_group_bytes:
            self._flush()
        self._group.append(candidate.row(image))
        self._group_bytes += len(image)
        self.rows += 1

    def refuse(self, rejection: Rejection) -> None:
        """Keeps a row that cannot be taken."""
        self.candidates += 1
        if not self.stands:
            self._rejected.append(rejection)

    def _flush(self) -> None:
        if self._group:
            table = pa.Table.from_pylist(self._group, schema=self.shards.schema)
            with readable_errors(self.shards.output, "output"):
                self._open_writer().write_table(table, row_group_size=len(self._group))
        self._group, self._group_bytes = [], 0

    def _open_writer(self) -> pq.ParquetWriter:
        if self._writer is None:
            schema = self.shards.schema
            flat = [
                name for name in schema.names if name != "image" and not pa.types.is_nested(schema.field(name).type)
            ]
            self._draft = _draft_file(self.shards.output, self.path)
            self._writer = pq.ParquetWriter(
                self._draft,
                schema,
                compression=dict.fromkeys(flat, "zstd") | {"image": "none"},
                use_dictionary=flat,
                write_statistics=flat,
                write_page_checksum=True,
            )
        return self._writer

    def close(self) -> ShardRecord:
        """Commits the shard; its record."""
        if self.stands:
            size = self.shards.standing[self.path].size
        else:
            size = self._commit()
            self.shards.rejected += self._rejected
        record = ShardRecord(self.path, self.generator, self.rows, size, self.key, not self.stands)
        self.shards.open.remove(self)
        self.shards.records.append(record)
        return record

    def _commit(self) -> int:
        """The committed file's size in bytes."""
        self._flush()
        footer = Footer(self.key, self._rejected, self.shards.source)
        output, replace = self.shards.output, self.path in self.shards.standing
        with readable_errors(output, "output"):
            writer = self._open_writer()
            writer.add_key_value_metadata({METADATA.decode(): json.dumps(footer._asdict())})
            writer.close()
            assert self._draft is not None
            size = self._draft.stat().st_size
            if replace:
                self.shards.forget()
            created = commit_file(output, self._draft, output.at(self.path), replace=replace)
        if not created and not self.shards.has(self.path, self.key):
            raise ConfigError(f"{output.at(self.path)}: another ingest wrote it meanwhile; choose another output")
        return size

    def abandon(self) -> None:
        """Removes what was drafted."""
        with suppress(OSError):  # where the disk is full, closing fails as writing did
            if self._writer is not None:
                self._writer.close()
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)


def _draft_file(output: Location, path: str) -> Path:
    """Where a shard is drafted: beside its place on a local disk, so that it can be linked there."""
    if not isinstance(output.fs, LocalFileSystem):
        descriptor, name = tempfile.mkstemp(prefix="plumbline-ingest-", suffix=".parquet")
        os.close(descriptor)
        return Path(name)
    target = Path(output.at(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}")


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

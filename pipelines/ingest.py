"""From image files with a table, or WebDataset tars, to the sharded Parquet that a sweep reads."""

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from operators.errors import ConfigError
from operators.rows import table as make_table
from pipelines.ingest_files import FileSource
from pipelines.ingest_rows import DAMAGED, REJECTED, ColumnsConfig, Refused, Rejection, check_generator
from pipelines.ingest_samples import TarSource
from pipelines.ingest_shards import MANIFEST, OnChange, Report, ShardRecord, Shards, ShardSize, SourceFile
from pipelines.ingest_tables import open_table
from pipelines.ingest_tars import find_tars
from pipelines.storage import StorageConfig, locate, readable_errors, replace

VERSION = 1
"""To be raised when the same input makes other shards."""
PROMPTS = pa.schema([("prompt_id", pa.string()), ("text", pa.string())])


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestLimits:
    """What an image may cost before it is refused."""

    max_bytes: int = 64_000_000
    """Largest encoded size."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ConfigError(f"limits.max_bytes: expected at least 1, got {self.max_bytes}")


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig:
    """What is taken in, and where it goes."""

    output: str
    """Folder or s3:// prefix that the shards are written to."""
    table: str | None = None
    """CSV, TSV or JSON Lines with one row per image file; or `tars`."""
    images: str | None = None
    """Folder that the table's paths start from; the table's own by default."""
    tars: str | None = None
    """A WebDataset tar, a folder of them, or a pattern with *; or `table`."""
    link_roots: tuple[str, ...] = ()
    """Local folders, besides the input's own, that links in it may lead to."""
    generator: str | None = None
    """The generator of all rows; by default a column of the table or a field of a sample's JSON."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    shard_rows: int = 1024
    """Rows of the input that make a shard."""
    row_group_rows: int = 256
    """Rows of a row group at most: a sweep's unit of work."""
    row_group_bytes: int = 64_000_000
    """Bytes of images in a row group at most, and so in memory; a larger image is a row group of its own."""
    limits: IngestLimits = field(default_factory=IngestLimits)
    on_change: OnChange = "fail"
    """What to do with a shard that stands and was made from other input: `fail`, or `replace` it."""
    max_failed: float = 0.01
    """Share of rejected rows up to which the exit code is 2 instead of 1."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if (self.table is None) == (self.tars is None):
            raise ConfigError("expected one input: table=FILE (with images=FOLDER), or tars=FILE_OR_FOLDER")
        for name in ("shard_rows", "row_group_rows", "row_group_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 <= self.max_failed <= 1:
            raise ConfigError(f"max_failed: expected a share between 0 and 1, got {self.max_failed}")
        if any("://" in root or not root for root in self.link_roots):
            raise ConfigError(f"link_roots: expected local folders, got {', '.join(map(repr, self.link_roots))}")
        if self.generator is not None:
            _check_fixed_generator(self.generator)

    def recipe(self) -> dict[str, Any]:
        """The options that change what is in the shards."""
        names = ("generator", "columns", "shard_rows", "row_group_rows", "row_group_bytes", "limits")
        return {"version": VERSION, **{name: asdict(self)[name] for name in names}}


def _check_fixed_generator(name: str) -> None:
    try:
        check_generator(name)
    except Refused as refused:
        raise ConfigError(f"generator: {refused}") from refused


class Ingested(NamedTuple):
    """What stands in the output now."""

    url: str
    shards: list[ShardRecord]
    rejected: list[Rejection]
    prompts: int
    exit_code: int
    """0 complete, 2 with some rows rejected within `max_failed`, 1 over it or where nobody knows how many are lost."""

    @property
    def damaged(self) -> list[str]:
        """The files of which nobody knows how many rows are lost."""
        return sorted({rejection.file for rejection in self.rejected if rejection.kind == DAMAGED})

    @property
    def rows(self) -> int:
        return sum(record.rows for record in self.shards)

    @property
    def kinds(self) -> dict[str, int]:
        """The rejected rows by kind, most first."""
        return dict(Counter(rejection.kind for rejection in self.rejected).most_common())


def ingest(config: IngestConfig, report: Report) -> Ingested:
    """Writes the shards that do not stand yet, and after them the prompts, the rejected rows and the manifest.

    Raises ConfigError where a source or the output cannot be reached, or the output holds other shards.
    """
    output = locate(config.output, config.storage)
    size = ShardSize(
        shard_rows=config.shard_rows, row_group_rows=config.row_group_rows, row_group_bytes=config.row_group_bytes
    )
    source = _open_table(config) if config.table is not None else _open_tars(config)
    shards = Shards(output, source.schema, size, config.on_change)
    try:
        source.write(shards, report)
    finally:
        shards.abandon()
    return _finish(config, shards, source.files)


def _open_table(config: IngestConfig) -> FileSource:
    """The table's source; raises ConfigError where its columns do not do."""
    location = locate(str(config.table), config.storage)
    table = open_table(location)
    folder = locate(config.images or location.url.rpartition("/")[0] or "/", config.storage)
    with readable_errors(folder, "images"):
        if not folder.fs.isdir(folder.path):
            raise FileNotFoundError(folder.path)
    return FileSource(
        table=table,
        folder=folder,
        columns=config.columns,
        generator=config.generator,
        link_roots=config.link_roots,
        max_bytes=config.limits.max_bytes,
        recipe=config.recipe(),
    )


def _open_tars(config: IngestConfig) -> TarSource:
    return TarSource(
        tars=find_tars(str(config.tars), config.storage, config.link_roots),
        columns=config.columns,
        generator=config.generator,
        max_bytes=config.limits.max_bytes,
        recipe=config.recipe(),
    )


def _finish(config: IngestConfig, shards: Shards, sources: Sequence[SourceFile]) -> Ingested:
    """The tables first, the manifest last."""
    records = sorted(shards.records)
    rejected = sorted(shards.rejected, key=lambda rejection: (rejection.file, rejection.line or 0, *rejection[2:]))
    rows = sum(record.rows for record in records)
    if not rows and not rejected:
        raise ConfigError(f"{sources[0].url}: expected images, found none; check the input")
    shards.finish()
    prompts = [{"prompt_id": name, "text": text} for name, text in sorted(shards.seen.prompts.items())]
    ended = Ingested(
        url=shards.output.url,
        shards=records,
        rejected=rejected,
        prompts=len(prompts),
        exit_code=_exit_code(rows, rejected, config.max_failed),
    )
    output = shards.output
    with readable_errors(output, "output"):
        replace(output, output.at("prompts.parquet"), _encode(make_table(prompts, PROMPTS)))
        rejections = [rejection._asdict() for rejection in rejected]
        replace(output, output.at("rejected.parquet"), _encode(make_table(rejections, REJECTED)))
        text = json.dumps(_manifest(config, ended, sources), indent=1) + "\n"
        replace(output, output.at(MANIFEST), text.encode())
    return ended


def _exit_code(rows: int, rejected: Sequence[Rejection], max_failed: float) -> int:
    if not rejected:
        return 0
    uncounted = any(rejection.kind == DAMAGED for rejection in rejected)
    return 2 if len(rejected) / (rows + len(rejected)) <= max_failed and not uncounted else 1


def _encode(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _manifest(config: IngestConfig, ended: Ingested, sources: Sequence[SourceFile]) -> dict[str, Any]:
    """What was made from what: the same after an interrupted run as after an undisturbed one."""
    return {
        "recipe": config.recipe(),
        "sources": [source._asdict() for source in sources],
        "images": config.images,
        "rows_in": ended.rows + len(ended.rejected),
        "rows_written": ended.rows,
        "rejected": len(ended.rejected),
        "rejected_kinds": ended.kinds,
        "damaged": ended.damaged,
        "prompts": ended.prompts,
        "shards": [
            {name: value for name, value in record._asdict().items() if name != "written"} for record in ended.shards
        ],
    }

"""From image files with a table, or WebDataset tars, to the sharded Parquet that a sweep reads."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from operators.errors import ConfigError
from pipelines.endings import OVER_BUDGET, exit_code
from pipelines.ingest.archives import find_tars
from pipelines.ingest.drafting import Line, Source, Workers, WorkersConfig
from pipelines.ingest.files import FileSource
from pipelines.ingest.placing import Shards
from pipelines.ingest.records import Identity, Record, Records
from pipelines.ingest.rows import DAMAGED, InputColumnsConfig, check_generator
from pipelines.ingest.samples import TarSource
from pipelines.ingest.shards import OnChange, Report, ShardRecord, ShardSize, SourceFile
from pipelines.ingest.tables import open_table
from pipelines.storage import Location, StorageConfig, locate, readable_errors
from pipelines.tables import Refused, Rejection

VERSION = 2
"""To be raised when the same input makes other shards."""


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
    columns: InputColumnsConfig = field(default_factory=InputColumnsConfig)
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
    cluster: WorkersConfig = field(default_factory=WorkersConfig)
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
    unfinished: list[str]
    """The generators that other ingests have begun in the same output and not ended."""
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

    Raises ConfigError where a source or the output cannot be reached, or the output holds other shards in their place.
    """
    output = locate(config.output, config.storage)
    source: Source = _open_table(config) if config.table is not None else _open_tars(config)
    records = Records(output, _identity(config))
    shards = Shards(records, config.on_change)
    with Workers(source, config.output, config.storage, config.cluster) as workers:
        Line(source, shards, workers, report).run()
    return _finish(config, records, shards, source.files)


def _size(config: IngestConfig) -> ShardSize:
    return ShardSize(
        shard_rows=config.shard_rows, row_group_rows=config.row_group_rows, row_group_bytes=config.row_group_bytes
    )


def _identity(config: IngestConfig) -> Identity:
    """What is taken in, which says which of an output's ingests this is."""
    tars, table = (locate(url, config.storage).url if url is not None else None for url in (config.tars, config.table))
    images = _images(config).url if table is not None else None
    return {"table": table, "images": images, "tars": tars, "generator": config.generator}


def _images(config: IngestConfig) -> Location:
    """The folder that a table's paths start from."""
    table = locate(str(config.table), config.storage)
    return locate(config.images or table.url.rpartition("/")[0] or "/", config.storage)


def _open_table(config: IngestConfig) -> FileSource:
    """The table's source; raises ConfigError where its columns do not do."""
    table = open_table(locate(str(config.table), config.storage))
    folder = _images(config)
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
        size=_size(config),
        recipe=config.recipe(),
    )


def _open_tars(config: IngestConfig) -> TarSource:
    return TarSource(
        tars=find_tars(str(config.tars), config.storage, config.link_roots),
        columns=config.columns,
        generator=config.generator,
        max_bytes=config.limits.max_bytes,
        size=_size(config),
        recipe=config.recipe(),
    )


def _finish(config: IngestConfig, records: Records, shards: Shards, sources: Sequence[SourceFile]) -> Ingested:
    """The record of this ingest first, then what tells of all of them, the manifest last."""
    written = sorted(shards.records)
    rejected = sorted(shards.rejected, key=lambda rejection: (rejection.file, rejection.line or 0, *rejection[2:]))
    rows = sum(record.rows for record in written)
    if not rows and not rejected:
        raise ConfigError(f"{sources[0].url}: expected images, found none; check the input")
    shards.finish()
    uncounted = any(rejection.kind == DAMAGED for rejection in rejected)
    ended = Ingested(
        url=shards.output.url,
        shards=written,
        rejected=rejected,
        prompts=shards.ledger.count_prompts(),
        unfinished=[],
        exit_code=OVER_BUDGET if uncounted else exit_code(len(rejected), rows + len(rejected), config.max_failed),
    )
    record = Record(_manifest(config, shards.source, ended, sources), rejected)
    return ended._replace(unfinished=_publish(records, shards, record))


def _publish(records: Records, shards: Shards, record: Record) -> list[str]:
    """Writes what tells of all ingests, again if another one ended meanwhile; the generators of those that have not."""
    shards.refresh()
    records.write(record)
    while True:
        ended = records.listing()
        unfinished = records.publish(shards.ledger.prompts(), shards.standing)
        if records.listing() == ended:
            return unfinished
        shards.refresh()


def _manifest(config: IngestConfig, source: Identity, ended: Ingested, sources: Sequence[SourceFile]) -> dict[str, Any]:
    return {
        "source": source,
        "recipe": config.recipe(),
        "sources": [file._asdict() for file in sources],
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

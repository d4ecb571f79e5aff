"""Converts image files with a table, Parquet tables or WebDataset tars to the sharded Parquet that a sweep reads."""

from collections import Counter
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.rows import SOURCE_COLUMNS
from plumbline.pipelines.base.exit_codes import OVER_BUDGET, compute_exit_code
from plumbline.pipelines.base.storage import convert_read_errors
from plumbline.pipelines.base.tables import DAMAGED_KINDS, SKIPPED_KIND, Rejection
from plumbline.pipelines.ingest.draft_placement import PlacedShards
from plumbline.pipelines.ingest.draft_workers import DraftingQueue, DraftWorkerPool, Source
from plumbline.pipelines.ingest.files import FileSource
from plumbline.pipelines.ingest.image_folders import ExternalPrompts
from plumbline.pipelines.ingest.image_tables import open_image_tables
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.ingest_output import IngestRecord, IngestRecords, read_columns
from plumbline.pipelines.ingest.layouts import FolderTable
from plumbline.pipelines.ingest.shards import ShardRecord, ShardReport
from plumbline.pipelines.ingest.tars import open_tars
from plumbline.pipelines.ingest.text_tables import open_table
from plumbline.pipelines.sources.origins import ExamplePair, Origins, pick_ends_and_middle


class IngestResult(NamedTuple):
    url: str
    shards: list[ShardRecord]
    rejected: list[Rejection]
    prompts: int
    unfinished: list[str]
    """Generators that other, unfinished ingests write into the same output."""
    exit_code: int
    """0 if complete; 2 if rows were rejected, up to the fraction `max_failed`; 1 if more rows or an unknown number of
    rows were lost.
    """
    origins: Origins
    source_columns: list[str]
    """Columns in the shards that contain the source images of edits."""
    skipped: list[Rejection]
    """Images that were left out on purpose, such as contact sheets."""
    pairs: list[ExamplePair]
    """The first, the middle and the last image, with their prompts."""

    @property
    def n_found(self) -> int:
        """Number of images found, counting rows whose image is missing; each is ingested, rejected or skipped."""
        return self.rows + len(self.rejected) + len(self.skipped)

    @property
    def total_lines(self) -> list[str]:
        at_least = "at least " if self.damaged else ""
        counts = f"{self.rows} ingested + {len(self.rejected)} rejected + {len(self.skipped)} skipped"
        reasons: dict[str, list[str]] = {}
        for image in self.skipped:
            reasons.setdefault(image.message, []).append(image.file)
        skipped = [f"skipped: {len(files)} ({reason}), such as {files[0]}" for reason, files in reasons.items()]
        return [f"{at_least}{self.n_found} found = {counts}", *skipped]

    @property
    def origin_lines(self) -> list[str]:
        images: Counter[str] = Counter()
        for shard in self.shards:
            images[shard.generator] += shard.rows
        return self.origins.describe(self.prompts, images)

    @property
    def damaged(self) -> list[str]:
        """Damaged files, from which an unknown number of rows is lost."""
        return sorted({rejection.file for rejection in self.rejected if rejection.kind in DAMAGED_KINDS})

    @property
    def rows(self) -> int:
        return sum(record.rows for record in self.shards)

    @property
    def kinds(self) -> dict[str, int]:
        """Number of rejected rows by kind, the most frequent first."""
        return dict(Counter(rejection.kind for rejection in self.rejected).most_common())


def ingest(
    config: IngestConfig, report: ShardReport = lambda record: None, prompts: ExternalPrompts | None = None
) -> IngestResult:
    """Write the missing shards, then the prompts, the rejected rows and the manifest.

    Raises ConfigError if a source or the output cannot be reached, or if the output contains different shards with the
    same names.
    """
    source = _open_source(config, prompts)
    records = IngestRecords(config.storage.locate(config.output), config.addresses)
    shards = PlacedShards(records, config.on_change)
    with DraftWorkerPool(source) as workers:
        DraftingQueue(source, shards, workers, report).run()
    written = sorted(shards.records)
    left_out = sorted(shards.rejected, key=lambda each: (each.file, each.line or 0, each.kind, each.message))
    rows = sum(record.rows for record in written)
    if not rows and not left_out:
        raise ConfigError(
            f"{config.tars or config.table or config.images}: expected images, found none; check the input"
        )
    shards.finish()
    generators = {config.generator} if config.generator else {record.generator for record in written}
    only_generator = generators.pop() if len(generators) == 1 else None
    rejected = [
        each._replace(generator=each.generator or only_generator) for each in left_out if each.kind != SKIPPED_KIND
    ]
    is_damaged = any(rejection.kind in DAMAGED_KINDS for rejection in rejected)
    failed = compute_exit_code(len(rejected), rows + len(rejected), config.max_failed)
    ended = IngestResult(
        url=shards.output.url,
        shards=written,
        rejected=rejected,
        prompts=shards.ledger.count_prompts(),
        unfinished=[],
        exit_code=OVER_BUDGET if is_damaged else failed,
        origins=source.origins,
        source_columns=[name for name in SOURCE_COLUMNS if name in source.schema.names],
        skipped=[rejection for rejection in left_out if rejection.kind == SKIPPED_KIND],
        pairs=_read_example_pairs(shards, written),
    )
    return ended._replace(unfinished=_publish_record(records, shards, _make_record(source, ended)))


def _open_source(config: IngestConfig, prompts: ExternalPrompts | None) -> Source:
    if config.tars is not None:
        return open_tars(config)
    if (tables := open_image_tables(config)) is not None:
        return tables
    folder = config.folder
    if config.table is not None:
        table = open_table(config.storage.locate(config.table))
    else:
        table = FolderTable(
            place=folder,
            columns=config.columns,
            prompts_from=config.prompts_from,
            images_inside=config.images_inside,
            prompts=prompts,
        )
    with convert_read_errors(folder, "images"):
        if not folder.is_folder():
            raise FileNotFoundError(folder.path)
    return FileSource(config=config, table=table, folder=folder)


def _read_example_pairs(shards: PlacedShards, written: list[ShardRecord]) -> list[ExamplePair]:
    candidates = [(record, row) for record in written for row in pick_ends_and_middle(record.rows)]
    pairs = []
    for record, row in (candidates[number] for number in pick_ends_and_middle(len(candidates))):
        found = read_columns(shards.output, record.path, ["image_id", "prompt_id", "prompt"])[row]
        pairs.append(ExamplePair(found["image_id"], record.generator, found["prompt_id"], found["prompt"]))
    return pairs


def _publish_record(records: IngestRecords, shards: PlacedShards, record: IngestRecord) -> list[str]:
    """Write the record of this ingest, then the tables and the manifest for all ingests into the output.

    If another ingest ends in the meantime, the tables and the manifest are written again. Returns the generators of
    unfinished ingests.
    """
    shards.refresh()
    records.write(record)
    while True:
        ended = records.list_etags()
        unfinished = records.publish(shards.ledger.iterate_prompts(), shards.existing)
        if records.list_etags() == ended:
            return unfinished
        shards.refresh()


def _make_record(source: Source, ended: IngestResult) -> IngestRecord:
    """Return the record of this ingest, which is the same whether or not the ingest was interrupted and resumed."""
    shards = [record._asdict() for record in ended.shards]
    manifest = {
        "source": source.config.addresses,
        "recipe": source.config.recipe,
        "sources": [file._asdict() for file in source.files],
        "origins": ended.origins._asdict(),
        "rows_in": ended.n_found,
        "rows_written": ended.rows,
        "rejected": len(ended.rejected),
        "rejected_kinds": ended.kinds,
        "skipped": dict(Counter(image.message for image in ended.skipped)),
        "damaged": ended.damaged,
        "prompts": ended.prompts,
        "shards": [{name: shard[name] for name in shard if name != "written"} for shard in shards],
    }
    return IngestRecord(manifest, ended.rejected)

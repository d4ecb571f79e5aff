"""Exports a run's scores to a table part by part, skipping parts that are already in the table."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.store.runs import find_run, read_manifest
from plumbline.pipelines.store.store import Store, open_existing_store
from plumbline.plugins.exports.exported_rows import PartRows, RowMaker
from plumbline.plugins.exports.formats import FORMATS
from plumbline.plugins.exports.score_table import ScoreTable, StoredPart, Target, cast_to_schema

TABLE_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Options of `plumbline export`."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    format: str
    """Format of the table: iceberg or lance (plugins/exports/README.md), a name in plugins/exports/formats."""
    output: str
    """Folder or cloud prefix that contains the table. Several runs can be exported to the same table."""
    run: str = "latest"
    """Id of a run (plumbline status); `latest` selects the newest."""
    table: str = "scores"
    """Name of the table. Iceberg tables are in the namespace `plumbline`."""
    catalog: str | None = None
    """Iceberg's catalog: a database address as in SQLAlchemy (sqlite:////absolute/path.db), or the https:// address of
    a REST catalog; null uses `catalog.db` in the output folder.
    """
    columns: tuple[str, ...] | None = None
    """Extra columns of scores.parquet (benchmark.columns.extra) to export; null exports all of them."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        check_known("format", self.format, FORMATS)
        if not TABLE_NAME_PATTERN.fullmatch(self.table):
            raise ConfigError(
                f"table: expected a name of letters, digits and _, got {self.table!r}; choose another, such as "
                "table=scores"
            )


ROWS_PER_COMMIT = 1 << 18
"""Approximate number of rows per commit, and of rows in memory at a time."""


class ExportedScores(NamedTuple):
    """Result of an export."""

    run_id: str
    url: str
    rows: int
    """Number of rows in the run."""
    written: int
    """Number of rows written by this call."""
    removed: int
    """Number of removed rows for missing images. They are removed once a run has the images."""


def export_scores(config: ExportConfig, report: Callable[[int], None] = lambda written: None) -> ExportedScores:
    """Write the rows that the table lacks; after each commit, call `report` with the number of rows written so far.

    Raises ConfigError if the run or the table cannot be used, and ExportError if the table cannot be written.
    """
    store = open_existing_store(config)
    run_id = find_run(store, config.run)
    manifest = read_manifest(store, run_id)
    benchmark = str(manifest.get("benchmark", ""))
    target = Target(config.storage.locate(config.output, writable=True), config.table, config.catalog)
    maker = RowMaker(benchmark, run_id, config.columns)
    parts = _read_parts(store, run_id, maker)
    first = next(parts)
    table = FORMATS[config.format](target, first.table.schema)
    writer = _Writer(table, table.list_stored_parts(benchmark), report)
    for part in chain([first], parts):
        writer.add(part)
    writer.flush()
    removed = writer.remove_stale_rows(benchmark, manifest)
    return ExportedScores(run_id, table.url, writer.rows, writer.written, removed)


def _read_parts(store: Store, run_id: str, maker: RowMaker) -> Iterator[PartRows]:
    for path in store.files(f"runs/{run_id}/scores.parquet"):
        yield maker.make(*store.read_with_digest(path))


class _Writer:
    """Writer of the parts that the table lacks. It writes several parts per commit."""

    def __init__(self, table: ScoreTable, stored_parts: Sequence[StoredPart], report: Callable[[int], None]) -> None:
        self._table, self._stored_parts, self._report = table, stored_parts, report
        self._groups = {(part.generator, part.metric) for part in stored_parts}
        self._row_counts: Counter[str] = Counter()
        for part in stored_parts:
            self._row_counts[part.part] += part.rows
        self._pending: list[pa.Table] = []
        self._run_parts: set[str] = set()
        self.rows = self.written = 0

    def add(self, part: PartRows) -> None:
        """Queue a part unless the table already has all of its rows. Write the queue once it is long enough."""
        self.rows += len(part.table)
        self._run_parts.add(part.name)
        if self._row_counts[part.name] < len(part.table):
            self._pending.append(part.table)
        if sum(map(len, self._pending)) >= ROWS_PER_COMMIT:
            self.flush()

    def flush(self) -> None:
        """Write the queue, and report the number of rows written so far after each commit.

        Parts whose pairs of generator and metric were all missing from the table at the start are written in one
        commit, and all other parts in another.
        """
        fresh = [rows for rows in self._pending if not self._groups & _list_groups(rows)]
        others = [rows for rows in self._pending if self._groups & _list_groups(rows)]
        self._pending = []
        for tables, is_fresh in ((fresh, True), (others, False)):
            if tables:
                rows = cast_to_schema(pa.concat_tables(tables), self._table.schema, self._table.url)
                self._table.write(rows, fresh=is_fresh)
                self.written += len(rows)
                self._report(self.written)

    def remove_stale_rows(self, benchmark: str, manifest: Mapping[str, Any]) -> int:
        """Remove rows for missing images if the run no longer contains these rows; return the number of removed rows.

        Only rows for this run's generators and metrics are removed.
        """
        if not any(self._is_stale(part, manifest) for part in self._stored_parts):
            return 0
        stale = [part for part in self._table.list_stored_parts(benchmark) if self._is_stale(part, manifest)]
        if stale:
            self._table.remove_missing_images(benchmark, stale)
        return sum(part.missing for part in stale)

    def _is_stale(self, part: StoredPart, manifest: Mapping[str, Any]) -> bool:
        in_run = part.generator in manifest.get("generators", ()) and part.metric in manifest.get("metrics", ())
        return bool(part.missing) and in_run and part.part not in self._run_parts


def _list_groups(rows: pa.Table) -> set[tuple[str, str]]:
    pairs = pa.TableGroupBy(rows, ["generator", "metric"], use_threads=False).aggregate([])
    return set(zip(*(column.to_pylist() for column in pairs.columns), strict=True))

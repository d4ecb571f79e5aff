"""An export of a run's scores: part by part into one table, the parts that stand in it left alone."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.cells.runs import find_run, read_manifest
from plumbline.pipelines.cells.store import Store, open_existing_store
from plumbline.plugins.exports.exported_rows import PartRows, RowMaker
from plumbline.plugins.exports.formats import FORMATS
from plumbline.plugins.exports.score_table import ScoreTable, StoredPart, Target, fit_types

TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Of which run, into which table."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    format: str
    """iceberg or lance (plugins/exports/README.md): a name of plugins/exports/formats."""
    output: str
    """Folder or cloud prefix that holds the table; several runs may be exported into one."""
    run: str = "latest"
    """A run's id (plumbline status); `latest` is the newest."""
    table: str = "scores"
    """The table's name; in Iceberg it stands in the namespace `plumbline`."""
    catalog: str | None = None
    """Iceberg's catalog, as SQLAlchemy names a database (sqlite:////absolute/path.db), or a REST catalog's https://
    address; null is `catalog.db` in the output folder."""
    columns: tuple[str, ...] | None = None
    """Of the further columns of scores.parquet (benchmark.columns.extra), those to take along; null takes all."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        check_known("format", self.format, FORMATS)
        if not TABLE_NAME.fullmatch(self.table):
            raise ConfigError(f"table: expected letters, digits and _, got {self.table!r}")


ROWS_AT_ONCE = 1 << 18
"""About as many are written by one commit, and are in memory together."""


class ExportedScores(NamedTuple):
    """A run whose scores stand in a table."""

    run_id: str
    url: str
    rows: int
    """Of the run."""
    written: int
    """Rows that this call wrote."""
    removed: int
    """Rows without an image that this call removed: the run has images where an earlier one lacked them."""


def export_scores(config: ExportConfig, report: Callable[[int], None] = lambda written: None) -> ExportedScores:
    """Writes what the table lacks of the run; `report` gets the number of rows after each commit.

    Raises ConfigError where the run or the table cannot be used, and ExportError where it cannot be written.
    """
    store = open_existing_store(config)
    run_id = find_run(store, config.run)
    manifest = read_manifest(store, run_id)
    benchmark = str(manifest.get("benchmark", ""))
    target = Target(config.storage.locate(config.output, writable=True), config.table, config.catalog)
    maker = RowMaker(benchmark, run_id, config.columns)
    parts = _parts(store, run_id, maker)
    first = next(parts)
    table = FORMATS[config.format](target, first.table.schema)
    writer = _Writer(table, table.stored_parts(benchmark), report)
    for part in chain([first], parts):
        writer.take(part)
    writer.flush()
    removed = writer.remove_stale(benchmark, manifest)
    return ExportedScores(run_id, table.url, writer.rows, writer.written, removed)


def _parts(store: Store, run_id: str, maker: RowMaker) -> Iterator[PartRows]:
    for path in store.files(f"runs/{run_id}/scores.parquet"):
        part = store.read_part(path)
        yield maker.make(part.table, part.sha256)


class _Writer:
    """Writes parts that do not stand, several by one commit."""

    def __init__(self, table: ScoreTable, stored_parts: Sequence[StoredPart], report: Callable[[int], None]) -> None:
        self._table, self._stored_parts, self._report = table, stored_parts, report
        self._groups = {(part.generator, part.metric) for part in stored_parts}
        self._rows_of: Counter[str] = Counter()
        for part in stored_parts:
            self._rows_of[part.part] += part.rows
        self._pending: list[pa.Table] = []
        self._of_run: set[str] = set()
        self.rows = self.written = 0

    def take(self, part: PartRows) -> None:
        """Writes a part at once, soon, or, where all of its rows stand, not at all."""
        self.rows += len(part.table)
        self._of_run.add(part.name)
        if self._rows_of[part.name] < len(part.table):
            self._pending.append(part.table)
        if sum(map(len, self._pending)) >= ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Writes what is waiting: what is new to the table by one commit, what may replace rows of it by another."""
        fresh = [rows for rows in self._pending if not self._groups & _groups(rows)]
        others = [rows for rows in self._pending if self._groups & _groups(rows)]
        self._pending = []
        for tables, is_fresh in ((fresh, True), (others, False)):
            if tables:
                rows = fit_types(pa.concat_tables(tables), self._table.schema, self._table.url)
                self._table.write(rows, fresh=is_fresh)
                self.written += len(rows)
                self._report(self.written)

    def remove_stale(self, benchmark: str, manifest: Mapping[str, Any]) -> int:
        """Removes what the table says is missing of the run's generators and metrics, and the run does not."""
        if not any(self._is_stale(part, manifest) for part in self._stored_parts):
            return 0
        stale = [part for part in self._table.stored_parts(benchmark) if self._is_stale(part, manifest)]
        if stale:
            self._table.remove_unnamed(benchmark, stale)
        return sum(part.unnamed for part in stale)

    def _is_stale(self, part: StoredPart, manifest: Mapping[str, Any]) -> bool:
        of_run = part.generator in manifest.get("generators", ()) and part.metric in manifest.get("metrics", ())
        return bool(part.unnamed) and of_run and part.part not in self._of_run


def _groups(rows: pa.Table) -> set[tuple[str, str]]:
    """The generators and metrics of rows."""
    pairs = pa.TableGroupBy(rows, ["generator", "metric"], use_threads=False).aggregate([])
    return set(zip(*(column.to_pylist() for column in pairs.columns), strict=True))

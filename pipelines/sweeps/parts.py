"""The parts of a run's scores: each is read from its cells, or copied from an earlier run, by a task.

The process that cuts and counts the parts (results.py) handles no rows: a task returns sums, kinds of failure and row
counts of a part.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.operators.base.failures import count_failures
from plumbline.operators.images.generation_settings import COLUMN, Known, Ways, count_settings
from plumbline.operators.images.rows import identify, image_records
from plumbline.operators.results.percentile_ranks import Sketch, sketch
from plumbline.operators.results.summary import Skills, Sums, Tally, count_each
from plumbline.operators.stages.scores import score_bases
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.sources.shards import BrokenFile, read_extra, read_own_files, read_shard
from plumbline.pipelines.store.cells import Outcome, PlannedCell, Shard, is_draft
from plumbline.pipelines.store.reused_rows import NOT_TRIED
from plumbline.pipelines.store.runs import run_ids
from plumbline.pipelines.store.store import BrokenCell, GoneCell, Store, StoreError

CELL_READERS = 16
MAX_SEARCHED_RUNS = 16
"""Number of the newest runs that are searched for parts."""
COUNTED_COLUMNS = ("score", "truncated")
ERROR_COLUMNS = ("image_id", "prompt_id", "generator", "metric", "error")


class ScoresPart(NamedTuple):
    """A part of a run's scores: one metric's cells on consecutive images shards of one generator."""

    metric: str
    cells: tuple[PlannedCell, ...]
    identity: str
    """Digest of everything that its rows and its tally depend on."""
    path: str
    """Path in this run."""
    earlier: str | None = None
    """Path in an earlier run that has the same part."""

    @property
    def rows(self) -> int:
        return sum(cell.shard.rows for cell in self.cells)


class WrittenCells(NamedTuple):
    """A questions cell that scores depend on, and the entailment cell of the same prompts if the scores read one."""

    questions: PlannedCell
    entailment: PlannedCell | None

    @property
    def paths(self) -> tuple[str, str]:
        return self.questions.path, "" if self.entailment is None else self.entailment.path


class Bases(NamedTuple):
    """The expected bases of scores: a basis is a digest of the questions and entailment that a score was computed from.

    Two parallel arrays of hashes. A prompt whose questions are not in the store, as after pruning, is not in them.
    """

    prompts: NDArray[np.uint64]
    bases: NDArray[np.uint64]


class PartsOfShards(NamedTuple):
    """The parts of several metrics on the same shards. They share prompts, so counting them together is faster."""

    parts: tuple[ScoresPart, ...]
    outcomes: Mapping[str, Outcome]
    """Outcomes of the cells that they read and that are not committed."""
    untried: frozenset[PlannedCell]
    """Scores cells that were never tried, and that this sweep does not compute."""
    written: Mapping[str, tuple[WrittenCells, ...]]
    """Questions cells that the scores depend on, by metric."""


class Gathering(NamedTuple):
    """The inputs that all parts of a run share."""

    store: Store
    skills: Skills
    extra: pa.Schema
    """Schema of the further columns."""
    settings: Mapping[str, Ways] = {}
    """Rules that find generation settings; they fill the column of settings."""
    counting: str = ""
    """Metric whose rows the images' settings are counted in; rows of other metrics are about the same images."""
    bases: Mapping[tuple[str, str], Bases] = {}
    """Expected bases, by the paths of WrittenCells."""


class CountedPart(NamedTuple):
    """The counts of a part that is in the run's folder."""

    sums: Mapping[tuple[str, str], Sums]
    """Sums by generator and metric, for a tally."""
    failures: pa.Table
    """Kinds of failure (schema FAILURES)."""
    rows: int
    n_null: int
    n_truncated: int
    scores: Sketch
    """Sketch of the distribution of the scores."""
    settings: Known
    """Number of its images by generation setting, if it is a part of the metric that is counted."""
    cell_rows: NDArray[np.int32]
    """Number of rows of each of its cells, in order."""
    lost: Mapping[Shard, BrokenFile] = {}
    """Shards whose ids cannot be read."""
    broken: frozenset[str] = frozenset()
    """Paths of cells that are damaged, or were computed from questions that have been written again since."""


class _RowPlace(NamedTuple):
    """The file and row of a row without a score."""

    file: str | None = None
    row: int | None = None
    """Row of a Parquet file, from 0, or line of a table that was ingested, from 1."""
    image_id: str | None = None


class MissingRows(NamedTuple):
    """Rows that no cell has, although a metric and generator should have them."""

    metric: str
    generator: str
    errors: pa.Array
    """One error for each row, or a single one for all (schema ERROR)."""
    prompts: pa.Array
    """Their prompt_ids; null if unknown."""
    rejected: Sequence[Rejection] = ()
    """The rejections of an ingest that these rows are, if any."""


class MissingPart(NamedTuple):
    """A part with rows that no cell has."""

    path: str
    rows: tuple[MissingRows, ...]


def errors_part_path(scores_part: str) -> str:
    """Return the path of the rows without a score of a part."""
    return scores_part.replace("/scores.parquet/", "/errors.parquet/")


def read_bases(store: Store, cells: tuple[WrittenCells, Mapping[str, Outcome]]) -> tuple[Bases, frozenset[str]]:
    """Read the expected bases of the scores of some prompts from their questions and entailment cells.

    Returns the bases, and the paths of the cells that cannot be used.
    """
    written, outcomes = cells
    broken: set[str] = set()

    def read(cell: PlannedCell) -> pa.Table | None:
        try:
            return store.read(cell.path, key=cell.key, draft=is_draft(cell.path, outcomes))
        except GoneCell:
            pass
        except BrokenCell as error:
            broken.add(error.path)
        except StoreError:
            pass
        return None

    asked = read(written.questions)
    entailed = None if written.entailment is None else read(written.entailment)
    absent = asked is None or (entailed is None and written.entailment is not None)
    bases = {} if absent else score_bases(asked, entailed)
    return Bases(hash_ids(list(bases)), hash_ids(list(bases.values()))), frozenset(broken)


def gather_parts(gathering: Gathering, order: PartsOfShards) -> list[CountedPart]:
    """Write parts into the run's folder: copies of an earlier run's parts if possible, else made from the cells."""
    adopted = {part.path: _adopt(gathering, part) for part in order.parts if part.earlier is not None}
    left = [part for part in order.parts if adopted.get(part.path) is None]
    made = dict(zip((part.path for part in left), PartMaker(gathering, order).make(left), strict=True))
    for part in left:
        _repair_earlier(gathering.store, part)
    return [adopted.get(part.path) or made[part.path] for part in order.parts]


def _repair_earlier(store: Store, part: ScoresPart) -> None:
    """Replace a damaged part of earlier runs by the part that was made again, if all of its rows are sound.

    The next night compares its run with an earlier run, and runs share a part's bytes by hard links.
    """
    if part.earlier is None or not store.exists(part.earlier) or store.is_sound(part.earlier):
        return
    for run_id in run_ids(store)[-MAX_SEARCHED_RUNS:]:
        for path in store.files(f"runs/{run_id}/scores.parquet"):
            if path.endswith(f"-{part.identity}.parquet") and path != part.path and not store.is_sound(path):
                store.adopt(part.path, path, [])


def _adopt(gathering: Gathering, part: ScoresPart) -> CountedPart | None:
    assert part.earlier is not None
    kept = [COLUMN] if gathering.settings and part.metric == gathering.counting else []
    adopted = gathering.store.adopt(part.earlier, part.path, (*ERROR_COLUMNS, *COUNTED_COLUMNS, *kept))
    if adopted is None:
        return None
    table, counted = adopted
    tally = Tally(gathering.skills)
    tally.merge_table(counted)
    shards = [(cell.shard, cell.shard.rows) for cell in part.cells]
    return _count_part(gathering, part.path, table, shards, tally, part.metric)


class CellRows(NamedTuple):
    """The rows of a scores cell in the run's table, in the order of the shard's rows."""

    shard: Shard
    table: pa.Table
    lost: BrokenFile | None = None
    """Set if the cell failed and not even its shard's ids can be read."""
    sound: bool = False
    """True if the table is a complete committed cell."""


class PartMaker:
    """Makes parts from their cells."""

    def __init__(self, gathering: Gathering, order: PartsOfShards) -> None:
        self.gathering, self.order = gathering, order
        self.store, self.skills, self.extra, self.bases = (
            gathering.store, gathering.skills, gathering.extra, gathering.bases
        )  # fmt: skip
        self.broken: set[str] = set()
        """Paths of the cells that turn out to be unusable."""
        self._further = lru_cache(maxsize=None)(self._read_further)

    def make(self, parts: Sequence[ScoresPart]) -> Iterator[CountedPart]:
        """Write the parts, and yield the counts of each."""
        read = [self._cells(part) for part in parts]
        tables = [pa.concat_tables([cell.table for cell in cells]).combine_chunks() for cells, _ in read]
        for part, (cells, broken), table, tally in zip(
            parts, read, tables, count_each(tables, self.skills), strict=True
        ):
            if len(table):
                sound = all(cell.sound for cell in cells)
                self.store.write_table(part.path, table, tally.to_table() if sound else None)
            shards = [(cell.shard, len(cell.table)) for cell in cells]
            counted = _count_part(self.gathering, part.path, table, shards, tally, part.metric)
            lost = {cell.shard: cell.lost for cell in cells if cell.lost is not None}
            yield counted._replace(lost=lost, broken=broken)

    def _cells(self, part: ScoresPart) -> tuple[list[CellRows], frozenset[str]]:
        """Return the rows of a part's cells, and the paths of the cells that cannot be used."""
        self.broken = set()
        bases = self._bases(part)
        with ThreadPoolExecutor(CELL_READERS) as readers:
            cells = list(readers.map(lambda cell: self._read(part.metric, cell, bases), part.cells))
        return cells, frozenset(self.broken)

    def _bases(self, part: ScoresPart) -> Bases:
        """Return the expected bases of the part's scores, sorted by the prompts' hashes."""
        of_cells = [Bases(np.zeros(0, np.uint64), np.zeros(0, np.uint64))]
        for written in self.order.written.get(part.metric, ()):
            if written.paths not in self.bases:  # the part should have been copied, but that failed
                bases, broken = read_bases(self.store, (written, self.order.outcomes))
                self.broken |= broken
                of_cells.append(bases)
            else:
                of_cells.append(self.bases[written.paths])
        prompts, hashes = (np.concatenate(column) for column in zip(*of_cells, strict=True))
        order = np.argsort(prompts, kind="stable")
        return Bases(prompts[order], hashes[order])

    def _read(self, metric: str, cell: PlannedCell, bases: Bases) -> CellRows:
        """Return a cell's rows with the shard's further columns."""
        shard = cell.shard
        if cell in self.order.untried:
            return self._nulls(metric, cell, NOT_TRIED)
        outcome = self.order.outcomes.get(cell.path)
        if outcome is not None and outcome.state == "failed":
            self.broken.update(outcome.broken)
            return self._nulls(metric, cell, RowError("shard_failed", outcome.message, retryable=True))
        draft = is_draft(cell.path, self.order.outcomes)
        try:
            scores = self.store.read(cell.path, key=cell.key, draft=draft, columns=[*schemas.SCORES.names, "basis"])
            _check_basis(cell, scores, bases)
            table = append_columns(scores.select(schemas.SCORES.names), self._further(shard), self.extra)
        except (OSError, PlumblineError) as error:
            if isinstance(error, BrokenCell):
                self.broken.add(error.path)
            return self._nulls(metric, cell, RowError("cell_unreadable", str(error), retryable=True))
        return CellRows(shard, table, sound=not draft and len(table) == shard.rows)

    def _nulls(self, metric: str, cell: PlannedCell, error: RowError) -> CellRows:
        """Return a null row per image of a shard that failed as a whole; no rows if the ids cannot be read."""
        shard = cell.shard
        try:
            records = image_records(read_shard(shard, ("image_id", "prompt_id")))
            further = self._further(shard)
        except PlumblineError:
            nothing = append_columns(schemas.SCORES.empty_table(), self.extra.empty_table(), self.extra)
            return CellRows(shard, nothing, BrokenFile(shard.group, error.message, shard.rows))
        nulls = [
            {**_identify_without_image(record, shard.group), "metric": metric, "error": rows.error_value(error)}
            for record in records
        ]
        return CellRows(shard, append_columns(rows.table(nulls, schemas.SCORES), further, self.extra))

    def _read_further(self, shard: Shard) -> pa.Table:
        """Return the shard's further columns; its file is not opened if there are none."""
        extra = self.extra
        return read_extra(shard, extra, self.gathering.settings) if extra.names else extra.empty_table()


def write_missing_part(gathering: Gathering, part: MissingPart) -> CountedPart:
    """Write a part of null rows that no cell has, possibly without rows, and return its counts."""
    tables = [schemas.SCORES.empty_table(), *map(_null_rows, part.rows)]
    table = append_columns(pa.concat_tables(tables), gathering.extra.empty_table(), gathering.extra)
    gathering.store.write_table(part.path, table)
    (tally,) = count_each([table], gathering.skills)
    places = [place for rows in part.rows for place in _missing_places(rows)]
    return _count_part(gathering, part.path, table, [], tally, places=places)


def _missing_places(missing: MissingRows) -> list[_RowPlace]:
    """Return where each row is in the input; empty unless an ingest rejected the row."""
    if missing.rejected:
        return [_RowPlace(row.file, row.line, row.image_id) for row in missing.rejected]
    return [_RowPlace()] * len(missing.prompts)


def _null_rows(missing: MissingRows) -> pa.Table:
    count = len(missing.prompts)
    columns = {
        "prompt_id": missing.prompts,
        "generator": pa.repeat(missing.generator, count),
        "metric": pa.repeat(missing.metric, count),
        "error": pa.repeat(missing.errors[0], count) if len(missing.errors) == 1 else missing.errors,
    }
    absent = {field.name: pa.nulls(count, field.type) for field in schemas.SCORES if field.name not in columns}
    return pa.table(columns | absent, schema=schemas.SCORES)


def _count_part(
    gathering: Gathering,
    path: str,
    table: pa.Table,
    shards: Sequence[tuple[Shard, int]],
    tally: Tally,
    metric: str | None = None,
    places: Sequence[_RowPlace] = (),
) -> CountedPart:
    """Write the rows without a score of a part, and return the counts of all of its rows.

    `shards` are those of the rows, in order, with their numbers of rows; rows that are not from shards have `places`.
    """
    errors = _errors(table, shards, places)
    if len(errors):
        gathering.store.write_table(errors_part_path(path), errors)
    counts = gathering.settings and metric == gathering.counting
    return CountedPart(
        sums=tally.sums,
        failures=count_failures(errors),
        rows=len(table),
        n_null=table.column("score").null_count,
        n_truncated=pc.sum(table.column("truncated")).as_py() or 0,
        scores=sketch(table.column("score")),
        settings=count_settings(table.column(COLUMN)) if counts else {},
        cell_rows=np.array([n_rows for _, n_rows in shards], np.int32),
    )


def _check_basis(cell: PlannedCell, scores: pa.Table, now: Bases) -> None:
    """Raise BrokenCell if a score was computed from questions that have been written again since."""
    if not len(now.prompts):
        return
    sound = scores.filter(scores.column("error").is_null())
    prompts, found = (hash_ids(sound.column(name).fill_null("").to_pylist()) for name in ("prompt_id", "basis"))
    places = np.maximum(np.searchsorted(now.prompts, prompts, side="right") - 1, 0)
    if np.any((now.prompts[places] == prompts) & (now.bases[places] != found)):
        raise BrokenCell(cell.path, f"{cell.path}: its questions have been written again since; run again")


def append_columns(scores: pa.Table, further: pa.Table, extra: pa.Schema) -> pa.Table:
    """Append the further columns of the same rows; nulls if `further` is empty, because the rows have no source."""
    if len(extra) and len(further) not in (0, len(scores)):
        raise StoreError(f"a scores cell has {len(scores)} rows, and its shard {len(further)}; delete the cell")
    for column in extra:
        values = further.column(column.name) if len(further) else pa.nulls(len(scores), column.type)
        scores = scores.append_column(column, values)
    return scores


def _identify_without_image(record: Mapping[str, Any], generator: str) -> dict[str, Any]:
    """Return the ids that are known without the image: an id made from its content is not."""
    ids = identify(record, generator)._asdict()
    return ids if record.get("image_id") is not None else {**ids, "image_id": None}


def _errors(scores: pa.Table, shards: Sequence[tuple[Shard, int]], places: Sequence[_RowPlace]) -> pa.Table:
    """Return the rows without a score, with the fields of their errors and their places in the shards' files.

    `shards` are the shards of the rows, in order, with their numbers of rows; rows without a shard have `places`.
    """
    failed = pc.indices_nonzero(pc.is_valid(scores.column("error"))).to_numpy()
    taken = scores.select(ERROR_COLUMNS).take(failed).combine_chunks()
    columns = {name: taken.column(name) for name in ERROR_COLUMNS[:-1]}
    error = taken.column("error")
    columns |= {name: pc.struct_field(error, name) for name in schemas.ERROR.names}
    found = list(_row_places(failed, shards)) if shards else [places[row] for row in failed]
    columns |= {"file": [place.file for place in found], "row": [place.row for place in found]}
    if not shards:
        columns["image_id"] = [place.image_id for place in found]
    return pa.table(columns, schema=schemas.ERRORS)


def _row_places(table_rows: NDArray[np.uint64], shards: Sequence[tuple[Shard, int]]) -> Iterator[_RowPlace]:
    """Yield each row's file and its index there; an image's own file if an ingest left the image in place."""
    first_rows = np.cumsum([0, *(n_rows for _, n_rows in shards)])
    read: tuple[Shard | None, Sequence[str]] = (None, ())
    for row, number in zip(table_rows, np.searchsorted(first_rows, table_rows, side="right") - 1, strict=True):
        shard, _ = shards[number]
        if read[0] is not shard:
            read = (shard, read_own_files(shard))
        place = int(row - first_rows[number])
        yield _RowPlace(read[1][place]) if place < len(read[1]) else _RowPlace(shard.url, shard.row_in_file(place))

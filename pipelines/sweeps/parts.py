"""The parts of a run's scores. A task makes each part from its cells, or copies it from an earlier run.

The process that splits the scores into parts (results.py) does not handle rows: for each part, a task returns sums,
kinds of failure and row counts.
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
from plumbline.operators.images.generation_settings import (
    SETTINGS_COLUMN,
    ColumnAlternatives,
    SettingCounts,
    count_settings,
)
from plumbline.operators.images.rows import list_image_records, read_image_row
from plumbline.operators.results.percentile_ranks import Sketch, make_sketch
from plumbline.operators.results.summary import ScoreSums, Skills, Tally, tally_tables
from plumbline.operators.stages.scores import digest_score_inputs
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.sources.shards import BrokenFile, read_extra_columns, read_image_addresses, read_shard
from plumbline.pipelines.store.cells import Outcome, PlannedCell, Shard, is_draft
from plumbline.pipelines.store.reused_rows import NOT_TRIED_ERROR
from plumbline.pipelines.store.runs import N_READERS, list_run_ids
from plumbline.pipelines.store.store import BrokenCellError, MissingCellError, Store, StoreError

MAX_SEARCHED_RUNS = 16
"""Maximum number of recent runs that are searched for parts."""
COUNTED_COLUMNS = ("score", "truncated")
ERROR_COLUMNS = ("image_id", "prompt_id", "generator", "metric", "error")


class ScoresPart(NamedTuple):
    """Part of a run's scores: the rows of one metric for consecutive image shards of one generator."""

    metric: str
    cells: tuple[PlannedCell, ...]
    key: str
    """Digest of everything that the rows of the part, and their tally, depend on."""
    path: str
    earlier: str | None = None
    """Path of the same part in an earlier run; None if no earlier run has the part."""

    @property
    def generator(self) -> str:
        return self.cells[0].shard.group

    @property
    def rows(self) -> int:
        return sum(cell.shard.rows for cell in self.cells)


class QuestionCells(NamedTuple):
    """A questions cell that scores depend on, and the entailment cell of the same prompts if scores use it."""

    questions: PlannedCell
    entailment: PlannedCell | None

    @property
    def paths(self) -> tuple[str, str]:
        return self.questions.path, "" if self.entailment is None else self.entailment.path


class InputDigests(NamedTuple):
    """Digests of the current questions about each prompt, and of their entailment by the prompt.

    A score is outdated if it was computed from inputs with a different digest.

    The prompts and their digests are two parallel arrays of hashes. Prompts are left out if their questions are no
    longer in the store, for example after pruning.
    """

    prompts: NDArray[np.uint64]
    digests: NDArray[np.uint64]


class PartsTask(NamedTuple):
    """Parts of several metrics for the same shards, which are counted together because they share prompts."""

    parts: tuple[ScoresPart, ...]
    outcomes: Mapping[str, Outcome]
    """Outcomes of the uncommitted cells that the parts read."""
    untried: frozenset[PlannedCell]
    """Scores cells that were never tried and that this sweep does not compute."""
    questions: Mapping[str, tuple[QuestionCells, ...]]
    """Questions cells that the scores depend on, by metric."""


class SharedInputs(NamedTuple):
    """Inputs shared by all parts of a run."""

    store: Store
    skills: Skills
    extra: pa.Schema
    settings: Mapping[str, ColumnAlternatives]
    """Rules for finding the generation settings of an image, which go into the settings column."""
    counted_metric: str
    """Metric in whose rows image settings are counted; one is enough, because all metrics score the same images."""
    digests: Mapping[tuple[str, str], InputDigests]
    """Digests of the questions and entailment behind the scores, by `QuestionCells.paths`."""

    def counts_settings(self, metric: str | None) -> bool:
        return bool(self.settings) and metric == self.counted_metric


class CountedPart(NamedTuple):
    """A part that has been written, with counts of its rows."""

    sums: Mapping[tuple[str, str], ScoreSums]
    """Sums by generator and metric, to be merged into a tally."""
    failures: pa.Table
    """Failures by kind (schema FAILURES)."""
    rows: int
    n_null: int
    n_truncated: int
    scores: Sketch
    """Sketch of the score distribution."""
    settings: SettingCounts
    """Number of images by generation setting; only set for parts of the counted metric."""
    cell_rows: NDArray[np.int32]
    """Number of rows of each of the part's cells, in order."""
    lost: Mapping[Shard, BrokenFile] = {}
    """Broken files of shards whose ids cannot be read."""
    broken: frozenset[str] = frozenset()
    """Paths of cells that are damaged, or were computed from questions that have been rewritten since."""


class _RowLocation(NamedTuple):
    file: str | None = None
    row: int | None = None
    """Row in a Parquet file (starting at 0), or line in an ingested table (starting at 1)."""
    image_id: str | None = None


class MissingRows(NamedTuple):
    """Rows that should exist for a metric and generator, but are not in any cell."""

    metric: str
    generator: str
    errors: pa.Array
    """One error per row, or a single error for all rows (schema ERROR)."""
    prompts: pa.Array
    """Prompt ids of the rows; null if unknown."""
    rejected: Sequence[Rejection] = ()
    """Ingest rejections that caused the missing rows, if any."""


def make_errors_part_path(scores_part: str) -> str:
    """Return the path of the file that lists a part's rows without a score."""
    return scores_part.replace("/scores.parquet/", "/errors.parquet/")


def read_input_digests(
    store: Store, cells: tuple[QuestionCells, Mapping[str, Outcome]]
) -> tuple[InputDigests, frozenset[str]]:
    """Compute the digests of some prompts' questions and entailment by reading their cells.

    Returns the digests, and the paths of cells that cannot be used.
    """
    pair, outcomes = cells
    broken: set[str] = set()
    tables: list[pa.Table | None] = []
    for cell in (pair.questions, pair.entailment):
        table = None
        if cell is not None:
            try:
                table = store.read(cell.path, key=cell.key, draft=is_draft(cell.path, outcomes))
            except StoreError as error:
                if isinstance(error, BrokenCellError) and not isinstance(error, MissingCellError):
                    broken.add(error.path)
        tables.append(table)
    questions, entailment = tables
    complete = questions is not None and (entailment is not None or pair.entailment is None)
    digests = digest_score_inputs(questions, entailment) if complete else {}
    return InputDigests(hash_ids(list(digests)), hash_ids(list(digests.values()))), frozenset(broken)


def write_parts(shared: SharedInputs, task: PartsTask) -> list[CountedPart]:
    """Write parts to the run's folder: copy those that an earlier run has, and build the others from their cells."""
    adopted = {part.path: _copy_earlier_part(shared, part) for part in task.parts if part.earlier is not None}
    left = [part for part in task.parts if adopted.get(part.path) is None]
    made = dict(zip((part.path for part in left), PartWriter(shared, task).write(left), strict=True))
    for part in left:
        _repair_earlier_part(shared.store, part)
    return [adopted.get(part.path) or made[part.path] for part in task.parts]


def _repair_earlier_part(store: Store, part: ScoresPart) -> None:
    """If the part in the earlier run is damaged, replace all damaged copies of it with the newly written part.

    This is necessary because the next nightly run is compared with an earlier run, and because runs share a part's
    bytes through hard links.
    """
    if part.earlier is None or not store.exists(part.earlier) or store.is_undamaged(part.earlier):
        return
    for run_id in list_run_ids(store)[-MAX_SEARCHED_RUNS:]:
        for path in store.files(f"runs/{run_id}/scores.parquet"):
            if path.endswith(f"-{part.key}.parquet") and path != part.path and not store.is_undamaged(path):
                store.copy_table(part.path, path, [])


def _copy_earlier_part(shared: SharedInputs, part: ScoresPart) -> CountedPart | None:
    """Copy a part from an earlier run and return its counts; return None if it cannot be copied."""
    assert part.earlier is not None
    settings = [SETTINGS_COLUMN] if shared.counts_settings(part.metric) else []
    adopted = shared.store.copy_table(part.earlier, part.path, (*ERROR_COLUMNS, *COUNTED_COLUMNS, *settings))
    if adopted is None:
        return None
    table, sums = adopted
    tally = Tally(shared.skills)
    tally.merge_table(sums)
    shards = [(cell.shard, cell.shard.rows) for cell in part.cells]
    return _write_errors_and_count(shared, part.path, table, shards, tally, part.metric)


class CellRows(NamedTuple):
    """Rows of a scores cell as they appear in the run's table, in the order of the shard."""

    shard: Shard
    table: pa.Table
    lost: BrokenFile | None = None
    """Broken file of the shard; set if the cell failed and even the shard's ids cannot be read."""
    sound: bool = False
    """True if the table is a complete committed cell."""


class PartWriter:
    """Assembles the parts of one task from the cells and writes them."""

    def __init__(self, shared: SharedInputs, task: PartsTask) -> None:
        self.shared, self.task, self.store = shared, task, shared.store
        self.broken: set[str] = set()
        self._read_extra = lru_cache(maxsize=None)(self._read_extra_columns)

    def write(self, parts: Sequence[ScoresPart]) -> Iterator[CountedPart]:
        """Write the parts and yield their counts."""
        read = [self._read_cells(part) for part in parts]
        tables = [pa.concat_tables([cell.table for cell in cells]).combine_chunks() for cells, _ in read]
        tallies = tally_tables(tables, self.shared.skills)
        for part, (cells, broken), table, tally in zip(parts, read, tables, tallies, strict=True):
            if len(table):
                sound = all(cell.sound for cell in cells)
                self.store.write_table(part.path, table, tally.to_table() if sound else None)
            shards = [(cell.shard, len(cell.table)) for cell in cells]
            counted = _write_errors_and_count(self.shared, part.path, table, shards, tally, part.metric)
            lost = {cell.shard: cell.lost for cell in cells if cell.lost is not None}
            yield counted._replace(lost=lost, broken=broken)

    def _read_cells(self, part: ScoresPart) -> tuple[list[CellRows], frozenset[str]]:
        """Return the rows of a part's cells, and the paths of cells that cannot be used."""
        self.broken = set()
        inputs = [InputDigests(np.zeros(0, np.uint64), np.zeros(0, np.uint64))]
        for pair in self.task.questions.get(part.metric, ()):
            if pair.paths in self.shared.digests:
                inputs.append(self.shared.digests[pair.paths])
            else:  # the part should have been copied, but that failed
                digests, broken = read_input_digests(self.store, (pair, self.task.outcomes))
                self.broken |= broken
                inputs.append(digests)
        prompts, hashes = (np.concatenate(column) for column in zip(*inputs, strict=True))
        order = np.argsort(prompts, kind="stable")
        current = InputDigests(prompts[order], hashes[order])
        with ThreadPoolExecutor(N_READERS) as readers:
            cells = list(readers.map(lambda cell: self._read_cell(part.metric, cell, current), part.cells))
        return cells, frozenset(self.broken)

    def _read_cell(self, metric: str, cell: PlannedCell, current: InputDigests) -> CellRows:
        if cell in self.task.untried:
            return self._make_null_rows(metric, cell.shard, NOT_TRIED_ERROR)
        outcome = self.task.outcomes.get(cell.path)
        if outcome is not None and outcome.state == "failed":
            self.broken.update(outcome.broken)
            return self._make_null_rows(metric, cell.shard, RowError("shard_failed", outcome.message, retryable=True))
        draft = is_draft(cell.path, self.task.outcomes)
        try:
            scores = self.store.read(cell.path, key=cell.key, draft=draft, columns=[*schemas.SCORES.names, "basis"])
            _check_inputs(cell, scores, current)
            table = append_columns(scores.select(schemas.SCORES.names), self._read_extra(cell.shard), self.shared.extra)
        except (OSError, PlumblineError) as error:
            if isinstance(error, BrokenCellError):
                self.broken.add(error.path)
            return self._make_null_rows(metric, cell.shard, RowError("cell_unreadable", str(error), retryable=True))
        return CellRows(cell.shard, table, sound=not draft and len(table) == cell.shard.rows)

    def _make_null_rows(self, metric: str, shard: Shard, error: RowError) -> CellRows:
        extra = self.shared.extra
        try:
            records = list_image_records(read_shard(shard, ("image_id", "prompt_id")))
            further = self._read_extra(shard)
        except PlumblineError:
            nothing = append_columns(schemas.SCORES.empty_table(), extra.empty_table(), extra)
            return CellRows(shard, nothing, BrokenFile(shard.group, error.message, shard.rows))
        nulls = []
        for record in records:
            ids: dict[str, Any] = read_image_row(record, shard.group)._asdict()
            if record.get("image_id") is None:
                ids["image_id"] = None  # ids derived from the image's content are unknown without the image
            nulls.append({**ids, "metric": metric, "error": rows.error_to_dict(error)})
        return CellRows(shard, append_columns(rows.table(nulls, schemas.SCORES), further, extra))

    def _read_extra_columns(self, shard: Shard) -> pa.Table:
        extra = self.shared.extra
        return read_extra_columns(shard, extra, self.shared.settings) if extra.names else extra.empty_table()


def write_missing_part(shared: SharedInputs, part: tuple[str, Sequence[MissingRows]]) -> CountedPart:
    """Write a part, which may be empty, with null scores for rows that no cell contains; return its counts."""
    path, groups = part
    tables = [schemas.SCORES.empty_table()]
    locations: list[_RowLocation] = []
    for missing in groups:
        count = len(missing.prompts)
        columns = {
            "prompt_id": missing.prompts,
            "generator": pa.repeat(missing.generator, count),
            "metric": pa.repeat(missing.metric, count),
            "error": pa.repeat(missing.errors[0], count) if len(missing.errors) == 1 else missing.errors,
        }
        absent = {field.name: pa.nulls(count, field.type) for field in schemas.SCORES if field.name not in columns}
        tables.append(pa.table(columns | absent, schema=schemas.SCORES))
        if missing.rejected:
            locations += [_RowLocation(row.file, row.line, row.image_id) for row in missing.rejected]
        else:
            locations += [_RowLocation()] * count
    table = append_columns(pa.concat_tables(tables), shared.extra.empty_table(), shared.extra)
    shared.store.write_table(path, table)
    (tally,) = tally_tables([table], shared.skills)
    return _write_errors_and_count(shared, path, table, [], tally, locations=locations)


def _write_errors_and_count(
    shared: SharedInputs,
    path: str,
    table: pa.Table,
    shards: Sequence[tuple[Shard, int]],
    tally: Tally,
    metric: str | None = None,
    locations: Sequence[_RowLocation] = (),
) -> CountedPart:
    """Write the part's rows without a score to the error table, and return the counts of all rows of the part.

    `shards` lists the shards of the rows, in order, with their row counts. For rows that do not come from shards,
    `locations` is given instead.
    """
    errors = _select_errors(table, shards, locations)
    if len(errors):
        shared.store.write_table(make_errors_part_path(path), errors)
    return CountedPart(
        sums=tally.sums,
        failures=count_failures(errors),
        rows=len(table),
        n_null=table.column("score").null_count,
        n_truncated=pc.sum(table.column("truncated")).as_py() or 0,
        scores=make_sketch(table.column("score")),
        settings=count_settings(table.column(SETTINGS_COLUMN)) if shared.counts_settings(metric) else {},
        cell_rows=np.array([n_rows for _, n_rows in shards], np.int32),
    )


def _check_inputs(cell: PlannedCell, scores: pa.Table, current: InputDigests) -> None:
    """Raise BrokenCellError if a score was computed from questions that have been rewritten since."""
    if not len(current.prompts):
        return
    sound = scores.filter(scores.column("error").is_null())
    prompts, found = (hash_ids(sound.column(name).fill_null("").to_pylist()) for name in ("prompt_id", "basis"))
    indices = np.maximum(np.searchsorted(current.prompts, prompts, side="right") - 1, 0)
    if np.any((current.prompts[indices] == prompts) & (current.digests[indices] != found)):
        raise BrokenCellError(cell.path, f"{cell.path}: its questions have been rewritten since; run again")


def append_columns(scores: pa.Table, source: pa.Table, extra: pa.Schema) -> pa.Table:
    """Return the scores with the `extra` columns, copied row by row from `source`, or null if `source` is empty."""
    if len(extra) and len(source) not in (0, len(scores)):
        raise StoreError(f"a scores cell has {len(scores)} rows, but its shard has {len(source)}; delete the cell")
    for column in extra:
        values = source.column(column.name) if len(source) else pa.nulls(len(scores), column.type)
        scores = scores.append_column(column, values)
    return scores


def _select_errors(
    scores: pa.Table, shards: Sequence[tuple[Shard, int]], locations: Sequence[_RowLocation]
) -> pa.Table:
    failed = np.flatnonzero(scores.column("error").is_valid().to_numpy())
    selected = scores.select(ERROR_COLUMNS).take(failed).combine_chunks()
    columns = {name: selected.column(name) for name in ERROR_COLUMNS[:-1]}
    error = selected.column("error")
    columns |= {name: pc.struct_field(error, name) for name in schemas.ERROR.names}
    found = list(_locate_rows(failed, shards)) if shards else [locations[row] for row in failed]
    columns |= {"file": [location.file for location in found], "row": [location.row for location in found]}
    if not shards:
        columns["image_id"] = [location.image_id for location in found]
    return pa.table(columns, schema=schemas.ERRORS)


def _locate_rows(table_rows: NDArray[np.intp], shards: Sequence[tuple[Shard, int]]) -> Iterator[_RowLocation]:
    """Yield the file and row index of each row; if an ingest left the image in place, yield the image's own file."""
    first_rows = np.cumsum([0, *(n_rows for _, n_rows in shards)])
    last: Shard | None = None
    files: Sequence[str] = ()
    for table_row, number in zip(table_rows, np.searchsorted(first_rows, table_rows, side="right") - 1, strict=True):
        shard, _ = shards[number]
        if last is not shard:
            last, files = shard, read_image_addresses(shard)
        row = int(table_row - first_rows[number])
        yield _RowLocation(files[row]) if row < len(files) else _RowLocation(shard.url, shard.get_row_in_file(row))

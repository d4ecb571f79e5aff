"""The parts of a run's scores, made of their cells or taken over from an earlier run, by whichever process is told to.

Whoever cuts and counts them (results.py) sees no row: of a part come back sums, kinds of failure and row counts.
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
from plumbline.operators.results.summary import Skills, Sums, Tally, count_each
from plumbline.operators.results.usual_scores import Sketch, sketch
from plumbline.operators.stages.scores import score_bases
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.cells.cells import Outcome, PlannedCell, Shard, is_draft
from plumbline.pipelines.cells.reused_rows import NOT_TRIED
from plumbline.pipelines.cells.runs import run_ids
from plumbline.pipelines.cells.store import BrokenCell, GoneCell, Store, StoreError
from plumbline.pipelines.sources.shards import BrokenFile, read_extra, read_own_files, read_shard

CELL_READERS = 16
MAX_SEARCHED_RUNS = 16
"""Runs whose parts are searched, the newest first."""
COUNTED_COLUMNS = ("score", "truncated")
ERROR_COLUMNS = ("image_id", "prompt_id", "generator", "metric", "error")


class ScoresPart(NamedTuple):
    """A part of a run's scores: one metric's cells on consecutive images shards of one generator."""

    metric: str
    cells: tuple[PlannedCell, ...]
    identity: str
    """A digest of all that its rows and its tally follow from."""
    path: str
    """Where this run has it."""
    standing: str | None = None
    """Where an earlier run has it."""

    @property
    def rows(self) -> int:
        return sum(cell.shard.rows for cell in self.cells)


class WrittenCells(NamedTuple):
    """A cell of questions that scores stand on, with that of its entailment where they read any."""

    questions: PlannedCell
    entailment: PlannedCell | None

    @property
    def paths(self) -> tuple[str, str]:
        return self.questions.path, "" if self.entailment is None else self.entailment.path


class Bases(NamedTuple):
    """What scores must stand on besides the answers, as the store has it now: hashes of prompts with those of bases.

    A prompt whose questions are not there, as after pruning, is not in it.
    """

    prompts: NDArray[np.uint64]
    bases: NDArray[np.uint64]


class ReadBases(NamedTuple):
    """The bases of a cell of questions."""

    bases: Bases
    broken: frozenset[str]
    """Paths of the cells that cannot be used."""


class PartsOfShards(NamedTuple):
    """The parts of some metrics on the same shards: they share their prompts, and so most of what counting takes."""

    parts: tuple[ScoresPart, ...]
    outcomes: Mapping[str, Outcome]
    """Of the cells that they read and that are not committed."""
    left: frozenset[PlannedCell]
    """Cells that were left out."""
    written: Mapping[str, tuple[WrittenCells, ...]]
    """By metric, the questions that the scores stand on."""


class Gathering(NamedTuple):
    """What all parts of a run share."""

    store: Store
    skills: Skills
    extra: pa.Schema
    """The further columns."""
    settings: Mapping[str, Ways] = {}
    """Where the settings are looked for of which the last of them is made."""
    counting: str = ""
    """The metric by whose rows the images' settings are counted: those of others are of the same images."""
    bases: Mapping[tuple[str, str], Bases] = {}
    """By the paths of WrittenCells."""


class CountedPart(NamedTuple):
    """What is known of a part that stands in the run's folder."""

    sums: Mapping[tuple[str, str], Sums]
    """By generator and metric, for a tally."""
    failures: pa.Table
    """Its kinds of failure (schema FAILURES)."""
    rows: int
    n_null: int
    n_truncated: int
    scores: Sketch
    """What stands for them."""
    settings: Known
    """How many of its images have which settings, where its metric is the one that counts them."""
    cell_rows: NDArray[np.int32]
    """The number of rows of each of its cells, in their order."""
    lost: Mapping[Shard, BrokenFile] = {}
    """The shards of which not even the ids can be read."""
    broken: frozenset[str] = frozenset()
    """Paths of cells that are damaged, or stand on questions that have been written anew."""


class _Place(NamedTuple):
    """The place of a row without a score."""

    file: str | None = None
    row: int | None = None
    """The row of a Parquet file, from 0, or the line of a table that an ingest read, from 1."""
    image_id: str | None = None


class MissingRows(NamedTuple):
    """Rows that one metric and generator should have and that no cell has."""

    metric: str
    generator: str
    errors: pa.Array
    """One for each row, or a single one for all (schema ERROR)."""
    prompts: pa.Array
    """Their prompt_ids; null if unknown."""
    rejected: Sequence[Rejection] = ()
    """The rejections of an ingest that they are, if they are any."""


class MissingPart(NamedTuple):
    """A part of rows that no cell has."""

    path: str
    rows: tuple[MissingRows, ...]


def errors_beside(scores_part: str) -> str:
    """Where the rows without a score of a part stand."""
    return scores_part.replace("/scores.parquet/", "/errors.parquet/")


def read_bases(store: Store, cells: tuple[WrittenCells, Mapping[str, Outcome]]) -> ReadBases:
    """What the scores of some prompts must stand on, of the cells of their questions and entailment."""
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
    return ReadBases(Bases(hash_ids(list(bases)), hash_ids(list(bases.values()))), frozenset(broken))


def bring_parts(gathering: Gathering, order: PartsOfShards) -> list[CountedPart]:
    """Puts parts into the run's folder: an earlier run's where it stands with its tally, or one made of the cells."""
    adopted = {part.path: _adopted(gathering, part) for part in order.parts if part.standing is not None}
    left = [part for part in order.parts if adopted.get(part.path) is None]
    made = dict(zip((part.path for part in left), PartMaker(gathering, order).make(left), strict=True))
    for part in left:
        _mend(gathering.store, part)
    return [adopted.get(part.path) or made[part.path] for part in order.parts]


def _mend(store: Store, part: ScoresPart) -> None:
    """Replace a damaged part of earlier runs by the part that was made again, if all of its rows are sound.

    The next night compares its run with an earlier run, and runs share a part's bytes by hard links.
    """
    if part.standing is None or not store.exists(part.standing) or store.is_sound(part.standing):
        return
    for run_id in run_ids(store)[-MAX_SEARCHED_RUNS:]:
        for path in store.files(f"runs/{run_id}/scores.parquet"):
            if path.endswith(f"-{part.identity}.parquet") and path != part.path and not store.is_sound(path):
                store.adopt(part.path, path, [])


def _adopted(gathering: Gathering, part: ScoresPart) -> CountedPart | None:
    assert part.standing is not None
    kept = [COLUMN] if gathering.settings and part.metric == gathering.counting else []
    adopted = gathering.store.adopt(part.standing, part.path, (*ERROR_COLUMNS, *COUNTED_COLUMNS, *kept))
    if adopted is None:
        return None
    tally = Tally(gathering.skills)
    tally.merge_table(adopted.counted)
    shards = [(cell.shard, cell.shard.rows) for cell in part.cells]
    return _counted(gathering, part.path, adopted.table, shards, tally, part.metric)


class CellRows(NamedTuple):
    """A scores cell's rows as a run has them, which are its shard's in their order."""

    shard: Shard
    table: pa.Table
    lost: BrokenFile | None = None
    """Where the cell failed and not even its shard's ids can be read."""
    sound: bool = False
    """Whether they are all that a committed cell holds."""


class PartMaker:
    """Makes parts of their cells."""

    def __init__(self, gathering: Gathering, order: PartsOfShards) -> None:
        self.gathering, self.order = gathering, order
        self.store, self.skills, self.extra, self.bases = (
            gathering.store, gathering.skills, gathering.extra, gathering.bases
        )  # fmt: skip
        self.broken: set[str] = set()
        """Paths of the cells that turn out not to be usable."""
        self._further = lru_cache(maxsize=None)(self._read_further)

    def make(self, parts: Sequence[ScoresPart]) -> Iterator[CountedPart]:
        """The parts with what was counted of them, once they are written."""
        read = [self._cells(part) for part in parts]
        tables = [pa.concat_tables([cell.table for cell in cells]).combine_chunks() for cells, _ in read]
        for part, (cells, broken), table, tally in zip(
            parts, read, tables, count_each(tables, self.skills), strict=True
        ):
            if len(table):
                sound = all(cell.sound for cell in cells)
                self.store.write_table(part.path, table, tally.to_table() if sound else None)
            shards = [(cell.shard, len(cell.table)) for cell in cells]
            counted = _counted(self.gathering, part.path, table, shards, tally, part.metric)
            lost = {cell.shard: cell.lost for cell in cells if cell.lost is not None}
            yield counted._replace(lost=lost, broken=broken)

    def _cells(self, part: ScoresPart) -> tuple[list[CellRows], frozenset[str]]:
        """The rows of a part's cells, and the paths of the cells that cannot be used."""
        self.broken = set()
        bases = self._bases(part)
        with ThreadPoolExecutor(CELL_READERS) as readers:
            cells = list(readers.map(lambda cell: self._read(part.metric, cell, bases), part.cells))
        return cells, frozenset(self.broken)

    def _bases(self, part: ScoresPart) -> Bases:
        """What the part's scores must stand on, by prompt, the prompts in the order of their hashes."""
        of_cells = [Bases(np.zeros(0, np.uint64), np.zeros(0, np.uint64))]
        for written in self.order.written.get(part.metric, ()):
            if written.paths not in self.bases:  # of a part that was to be taken over, and could not be
                read = read_bases(self.store, (written, self.order.outcomes))
                self.broken |= read.broken
                of_cells.append(read.bases)
            else:
                of_cells.append(self.bases[written.paths])
        prompts, bases = (np.concatenate(column) for column in zip(*of_cells, strict=True))
        order = np.argsort(prompts, kind="stable")
        return Bases(prompts[order], bases[order])

    def _read(self, metric: str, cell: PlannedCell, bases: Bases) -> CellRows:
        """A cell's rows beside the shard's further columns."""
        shard = cell.shard
        if cell in self.order.left:
            return self._nulls(metric, cell, NOT_TRIED)
        outcome = self.order.outcomes.get(cell.path)
        if outcome is not None and outcome.state == "failed":
            self.broken.update(outcome.broken)
            return self._nulls(metric, cell, RowError("shard_failed", outcome.message, retryable=True))
        draft = is_draft(cell.path, self.order.outcomes)
        try:
            scores = self.store.read(cell.path, key=cell.key, draft=draft, columns=[*schemas.SCORES.names, "basis"])
            _check_basis(cell, scores, bases)
            table = beside(scores.select(schemas.SCORES.names), self._further(shard), self.extra)
        except (OSError, PlumblineError) as error:
            if isinstance(error, BrokenCell):
                self.broken.add(error.path)
            return self._nulls(metric, cell, RowError("cell_unreadable", str(error), retryable=True))
        return CellRows(shard, table, sound=not draft and len(table) == shard.rows)

    def _nulls(self, metric: str, cell: PlannedCell, error: RowError) -> CellRows:
        """A null row per image of a shard that failed whole, where at least the ids can be read."""
        shard = cell.shard
        try:
            records = image_records(read_shard(shard, ("image_id", "prompt_id")))
            further = self._further(shard)
        except PlumblineError:
            nothing = beside(schemas.SCORES.empty_table(), self.extra.empty_table(), self.extra)
            return CellRows(shard, nothing, BrokenFile(shard.group, error.message, shard.rows))
        nulls = [
            {**_known_ids(record, shard.group), "metric": metric, "error": rows.error_value(error)}
            for record in records
        ]
        return CellRows(shard, beside(rows.table(nulls, schemas.SCORES), further, self.extra))

    def _read_further(self, shard: Shard) -> pa.Table:
        """The shard's further columns; where none are wanted, its file is not touched."""
        extra = self.extra
        return read_extra(shard, extra, self.gathering.settings) if extra.names else extra.empty_table()


def make_missing(gathering: Gathering, part: MissingPart) -> CountedPart:
    """Writes a part of null rows that no cell has; it may have none."""
    tables = [schemas.SCORES.empty_table(), *map(_null_rows, part.rows)]
    table = beside(pa.concat_tables(tables), gathering.extra.empty_table(), gathering.extra)
    gathering.store.write_table(part.path, table)
    (tally,) = count_each([table], gathering.skills)
    places = [place for rows in part.rows for place in _missing_places(rows)]
    return _counted(gathering, part.path, table, [], tally, places=places)


def _missing_places(missing: MissingRows) -> list[_Place]:
    """Return the place of each row in the input; empty unless an ingest rejected the row."""
    if missing.rejected:
        return [_Place(row.file, row.line, row.image_id) for row in missing.rejected]
    return [_Place()] * len(missing.prompts)


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


def _counted(
    gathering: Gathering,
    path: str,
    table: pa.Table,
    shards: Sequence[tuple[Shard, int]],
    tally: Tally,
    metric: str | None = None,
    places: Sequence[_Place] = (),
) -> CountedPart:
    """What is to be known of rows, of which so many are in each of the shards; writes those without a score.

    Rows of no shard have `places`.
    """
    errors = _errors(table, shards, places)
    if len(errors):
        gathering.store.write_table(errors_beside(path), errors)
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
    """Raises BrokenCell where a score stands on questions that have been written anew since."""
    if not len(now.prompts):
        return
    sound = scores.filter(scores.column("error").is_null())
    prompts, held = (hash_ids(sound.column(name).fill_null("").to_pylist()) for name in ("prompt_id", "basis"))
    places = np.maximum(np.searchsorted(now.prompts, prompts, side="right") - 1, 0)
    if np.any((now.prompts[places] == prompts) & (now.bases[places] != held)):
        raise BrokenCell(cell.path, f"{cell.path}: scores by questions that have been written anew since; run again")


def beside(scores: pa.Table, further: pa.Table, extra: pa.Schema) -> pa.Table:
    """Scores with the further columns of the same rows after their own; null for rows of no source row."""
    if len(extra) and len(further) not in (0, len(scores)):
        raise StoreError(f"a scores cell has {len(scores)} rows, and its shard {len(further)}; delete the cell")
    for column in extra:
        values = further.column(column.name) if len(further) else pa.nulls(len(scores), column.type)
        scores = scores.append_column(column, values)
    return scores


def _known_ids(record: Mapping[str, Any], generator: str) -> dict[str, Any]:
    """The ids that can be told without the image: an id made from its content cannot."""
    ids = identify(record, generator)._asdict()
    return ids if record.get("image_id") is not None else {**ids, "image_id": None}


def _errors(scores: pa.Table, shards: Sequence[tuple[Shard, int]], places: Sequence[_Place]) -> pa.Table:
    """Return the rows without a score, with their errors spread into columns, and their places in the shards' files.

    `shards` are the shards of the rows, in order, with their numbers of rows; rows without a shard have `places`.
    """
    failed = pc.indices_nonzero(pc.is_valid(scores.column("error"))).to_numpy()
    taken = scores.select(ERROR_COLUMNS).take(failed).combine_chunks()
    columns = {name: taken.column(name) for name in ERROR_COLUMNS[:-1]}
    error = taken.column("error")
    columns |= {name: pc.struct_field(error, name) for name in schemas.ERROR.names}
    found = list(_places(failed, shards)) if shards else [places[row] for row in failed]
    columns |= {"file": [place.file for place in found], "row": [place.row for place in found]}
    if not shards:
        columns["image_id"] = [place.image_id for place in found]
    return pa.table(columns, schema=schemas.ERRORS)


def _places(table_rows: NDArray[np.uint64], shards: Sequence[tuple[Shard, int]]) -> Iterator[_Place]:
    """Yield the file of each row and its row there; the image's own file if an ingest left it where it was."""
    first_rows = np.cumsum([0, *(n_rows for _, n_rows in shards)])
    read: tuple[Shard | None, Sequence[str]] = (None, ())
    for row, number in zip(table_rows, np.searchsorted(first_rows, table_rows, side="right") - 1, strict=True):
        shard, _ = shards[number]
        if read[0] is not shard:
            read = (shard, read_own_files(shard))
        place = int(row - first_rows[number])
        yield _Place(read[1][place]) if place < len(read[1]) else _Place(shard.url, shard.row_in_file(place))

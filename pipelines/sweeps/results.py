"""What a run hands to people: scores, summary and errors, with every row that should be there.

A run's scores.parquet is a folder of parts: each has one metric's rows on some images shards of one generator. A part
that an earlier run has of the same cells is taken over with what was counted of it; only the others are made of cells.
"""

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators import rows, schemas
from plumbline.operators.errors import PlumblineError, RowError
from plumbline.operators.image_rows import identify, image_records
from plumbline.operators.stages.scores import written_bases
from plumbline.operators.stages.table import STAGES
from plumbline.operators.summary import Skills, Tally
from plumbline.operators.usual_scores import OfGenerator, Sketch, sketch, usual_table
from plumbline.pipelines.cells.cells import Outcome, PlannedCell, Shard, digest, is_draft
from plumbline.pipelines.cells.reused_rows import NOT_TRIED
from plumbline.pipelines.cells.runs import run_ids
from plumbline.pipelines.cells.store import BrokenCell, Store, StoreError
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.shards import BrokenFile, read_extra, read_shard
from plumbline.pipelines.sources.sources import Sources

VERSION = 1
"""Of parts with their tallies; raised when other rows or sums are made of the same cells."""
CELL_READERS = 16
PARTS_AT_ONCE = 8
MAX_PART_ROWS = 1 << 15
"""Rows of a part, unless a single shard has more; a generator that grows changes its last part alone."""
MAX_SEARCHED_RUNS = 16
"""Runs whose parts are searched, the newest first."""
PROMPT_STAGES = tuple(stage.name for stage in STAGES.values() if stage.over == "prompts")
"""Stages over prompts, whose cells a score may depend on besides what was measured of its image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """A run's output; its scores stand in the store alone, for there may be more than memory holds."""

    store: Store
    path: str
    """Of the scores, in the store: a folder of parts."""
    parts: int
    rows: int
    n_null: int
    n_truncated: int
    summary: pa.Table
    errors: pa.Table
    usual: pa.Table = field(default_factory=schemas.USUAL_SCORES.empty_table)
    """What stands for the scores (schema USUAL_SCORES)."""
    broken: frozenset[str] = frozenset()
    """Paths of cells that are damaged, or stand on questions that have been written anew."""
    first_rows: Mapping[str, int] = field(default_factory=dict)
    """By path of a scores cell that was read, the row of the scores that its first row is."""

    def read_scores(self) -> pa.Table:
        """All scores, read from the store."""
        return self.store.read_table(self.path)

    @property
    def coverage(self) -> float:
        """Share of rows with a score; 1 where nothing was asked for."""
        return 1 - self.n_null / self.rows if self.rows else 1.0


class ScoresPart(NamedTuple):
    """A part of a run's scores: one metric's cells on consecutive images shards of one generator."""

    metric: str
    cells: tuple[PlannedCell, ...]
    identity: str
    """A digest of all that its rows and its tally follow from."""
    path: str
    """Where this run has it."""


class CountedPart(NamedTuple):
    """What is known of a part that stands in the run's folder."""

    metric: str
    tally: Tally
    errors: pa.Table
    rows: int
    n_null: int
    n_truncated: int
    scores: Sketch
    """What stands for them."""
    cell_rows: Sequence[tuple[str, int]]
    """The paths of its cells, each with the number of its rows, in their order."""
    lost: Mapping[Shard, BrokenFile]
    """The shards of which not even the ids can be read."""


def gather_results(
    plan: Plan,
    sources: Sources,
    outcomes: Mapping[str, Outcome],
    *,
    run_id: str,
    store: Store,
    benchmark: BenchmarkConfig,
) -> Results:
    """Gathers the run's scores, part by part, with a null row and its error for all that is missing, and aggregates.

    Only the parts that no earlier run has are read from their cells.
    """
    folder = f"runs/{run_id}/scores.parquet"
    parts = list(_cut_parts(plan, sources, store, folder))
    standing = _standing_parts(store, run_id, {part.identity for part in parts})
    skills = sources.skills
    total = Tally(skills)
    counted: list[CountedPart] = []
    with ThreadPoolExecutor(CELL_READERS) as readers, ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
        maker = PartMaker(plan, sources, outcomes, store, skills, standing, readers)
        for first in range(0, len(parts), CELL_READERS):
            for part in pool.map(maker.bring, parts[first : first + CELL_READERS]):
                total.merge(part.tally)
                counted.append(part._replace(tally=Tally(skills)))
    last = f"{folder}/{len(parts):05d}.parquet"
    of_cells = list(zip(parts, counted, strict=True))
    counted.append(_count_missing(plan, sources, counted, skills, benchmark, store, last))
    total.merge(counted[-1].tally)
    for path in set(store.files(folder)) - {last, *(part.path for part in parts)}:
        store.remove(path)  # gathered before some of its cells turned out to be broken
    return Results(
        store=store,
        path=folder,
        parts=sum(part.rows > 0 for part in counted) or 1,
        rows=sum(part.rows for part in counted),
        n_null=sum(part.n_null for part in counted),
        n_truncated=sum(part.n_truncated for part in counted),
        summary=total.summary(),
        errors=pa.concat_tables([part.errors for part in counted]),
        usual=usual_table((OfGenerator(part.metric, part.cells[0].shard.group), one.scores) for part, one in of_cells),
        broken=frozenset(maker.broken),
        first_rows=_first_rows(counted),
    )


def _cut_parts(plan: Plan, sources: Sources, store: Store, folder: str) -> Iterator[ScoresPart]:
    """The run's parts in the plan's order, named by their place and by what they follow from."""
    folders = {r.folder for of in plan.recipes.values() for r in of.values() if r.stage in ("scores", *PROMPT_STAGES)}
    stored = dict(entry for folder in folders for entry in store.listing(folder).items())
    labels = sources.skill_labels
    runs_of_cells = ((metric, run) for metric, cells in plan.scores.items() for run in _runs_of_cells(cells))
    for number, (metric, cells) in enumerate(runs_of_cells):
        identity = _identity(metric, cells, plan, sources, stored, labels)
        yield ScoresPart(metric, cells, identity, f"{folder}/{number:05d}-{identity}.parquet")


def _runs_of_cells(cells: Iterable[PlannedCell]) -> Iterator[tuple[PlannedCell, ...]]:
    """Consecutive cells of one generator with at most MAX_PART_ROWS rows, and at least one cell."""
    run: list[PlannedCell] = []
    n_rows = 0
    for cell in cells:
        if run and (cell.shard.group != run[0].shard.group or n_rows + cell.shard.rows > MAX_PART_ROWS):
            yield tuple(run)
            run, n_rows = [], 0
        run.append(cell)
        n_rows += cell.shard.rows
    if run:
        yield tuple(run)


def _identity(
    metric: str,
    cells: Sequence[PlannedCell],
    plan: Plan,
    sources: Sources,
    stored: Mapping[str, float],
    labels: NDArray[np.uint64],
) -> str:
    """Of cells as they stand now, of the questions that their scores stand on, of skills and of further columns.

    A cell that is written anew, by whoever, has another time of writing.
    """
    upstream = (read for cell in cells for stage, read in plan.read_by(cell).items() if stage in PROMPT_STAGES)
    written = dict.fromkeys(cell.path for of_stage in upstream for cell in of_stage)
    shards = [cell.shard for cell in cells]
    named = [sources.named[shard] for shard in shards if shard in sources.named]
    of_prompts = hashlib.sha256(b"".join(labels[numbers].tobytes() for numbers in named)).hexdigest()
    content = {
        "version": VERSION,
        "metric": metric,
        "generator": shards[0].group,
        "cells": [(cell.key, stored.get(cell.path)) for cell in cells],
        "written": [(path, stored.get(path)) for path in written],
        "skills": of_prompts,
        "extra": [str(field) for field in sources.extra],
        "files": [(shard.url, shard.etag, shard.row_groups) for shard in shards if sources.extra.names],
    }
    return digest(content)[:32]


def _standing_parts(store: Store, run_id: str, wanted: Set[str]) -> dict[str, str]:
    """By identity where a part stands: in this run's folder, which may be gathered again, or in the newest runs."""
    standing: dict[str, str] = {}
    for run in (run_id, *reversed(run_ids(store)[-MAX_SEARCHED_RUNS:])):
        if standing.keys() >= wanted:
            break
        for path in store.files(f"runs/{run}/scores.parquet"):
            standing.setdefault(path.removesuffix(".parquet").rpartition("-")[2], path)
    return {identity: path for identity, path in standing.items() if identity in wanted}


def _first_rows(counted: Iterable[CountedPart]) -> dict[str, int]:
    first_rows: dict[str, int] = {}
    row = 0
    for path, n_rows in (cell for part in counted for cell in part.cell_rows):
        first_rows[path] = row
        row += n_rows
    return first_rows


class CellRows(NamedTuple):
    """A scores cell's rows as a run has them, which are its shard's in their order."""

    shard: Shard
    path: str
    table: pa.Table
    lost: BrokenFile | None = None
    """Where the cell failed and not even its shard's ids can be read."""
    sound: bool = False
    """Whether they are all that a committed cell holds."""


class PartMaker:
    """Puts a part into the run's folder."""

    def __init__(
        self,
        plan: Plan,
        sources: Sources,
        outcomes: Mapping[str, Outcome],
        store: Store,
        skills: Skills,
        standing: Mapping[str, str],
        readers: ThreadPoolExecutor,
    ) -> None:
        """`standing` are by identity the parts of earlier runs."""
        self.plan, self.outcomes, self.store, self.skills = plan, outcomes, store, skills
        self.extra = sources.extra
        self.standing = standing
        self.readers = readers
        self.broken: set[str] = set()
        """Paths of the cells that turn out not to be usable."""
        self._lock = threading.Lock()
        self._bases_of_shard = lru_cache(maxsize=1024)(self._read_bases)

    def bring(self, part: ScoresPart) -> CountedPart:
        """An earlier run's part with its tally where both stand, or else one made of the cells."""
        adopted = self._adopted(part) if part.identity in self.standing else None
        return adopted or self._made(part)

    def _adopted(self, part: ScoresPart) -> CountedPart | None:
        adopted = self.store.adopt(self.standing[part.identity], part.path, (*ERROR_COLUMNS, *COUNTED_COLUMNS))
        if adopted is None:
            return None
        tally = Tally(self.skills)
        tally.merge_table(adopted.counted)
        counted = _counted(part.metric, adopted.table, [(cell.shard, cell.shard.rows) for cell in part.cells], tally)
        return counted._replace(cell_rows=[(cell.path, cell.shard.rows) for cell in part.cells])

    def _made(self, part: ScoresPart) -> CountedPart:
        now = self._bases(part.cells)
        read = list(self.readers.map(lambda cell: self._read(part.metric, cell, now), part.cells))
        table = pa.concat_tables([cell.table for cell in read])
        tally = Tally(self.skills)
        tally.add(table)
        if len(table):
            sound = all(cell.sound for cell in read)
            self.store.write_table(part.path, table, tally.to_table() if sound else None)
        counted = _counted(part.metric, table, [(cell.shard, len(cell.table)) for cell in read], tally)
        return counted._replace(
            cell_rows=[(cell.path, len(cell.table)) for cell in read],
            lost={cell.shard: cell.lost for cell in read if cell.lost is not None},
        )

    def _bases(self, cells: Iterable[PlannedCell]) -> dict[str, str]:
        """By prompt, what the scores of these cells are to stand on besides the answers, as the store has it now.

        A prompt whose questions are not there, as after pruning, is not in it.
        """
        pairs = dict.fromkeys(pair for cell in cells for pair in _written_cells(self.plan.read_by(cell)))
        bases: dict[str, str] = {}
        with self._lock:  # parts that are made side by side stand on the same questions: these are read once
            for of_shard in self.readers.map(lambda pair: self._bases_of_shard(*pair), pairs):
                bases |= of_shard
        return bases

    def _read_bases(self, questions: PlannedCell, entailment: PlannedCell | None) -> dict[str, str]:
        asked = self._written(questions)
        entailed = self._written(entailment) if entailment is not None else None
        if asked is None or (entailed is None and entailment is not None):
            return {}
        return written_bases(asked, entailed)

    def _written(self, cell: PlannedCell) -> pa.Table | None:
        """The rows of a cell of questions or entailment, or None where it is not there."""
        try:
            return self.store.read(cell.path, key=cell.key, draft=is_draft(cell.path, self.outcomes))
        except BrokenCell as error:
            self.broken.add(error.path)
        except StoreError:
            pass
        return None

    def _read(self, metric: str, cell: PlannedCell, now: Mapping[str, str]) -> CellRows:
        """A cell's rows beside the shard's further columns; `now` is by prompt what a score must stand on."""
        shard = cell.shard
        if cell in self.plan.left:
            return self._nulls(metric, cell, NOT_TRIED)
        outcome = self.outcomes.get(cell.path)
        if outcome is not None and outcome.state == "failed":
            self.broken.update(outcome.broken)
            return self._nulls(metric, cell, RowError("shard_failed", outcome.message, retryable=True))
        draft = is_draft(cell.path, self.outcomes)
        try:
            scores = self.store.read(cell.path, key=cell.key, draft=draft, columns=[*schemas.SCORES.names, "basis"])
            _check_basis(cell, scores, now)
            table = _beside(scores.select(schemas.SCORES.names), self._further(shard), self.extra)
        except (OSError, PlumblineError) as error:
            if isinstance(error, BrokenCell):
                self.broken.add(error.path)
            return self._nulls(metric, cell, RowError("cell_unreadable", str(error), retryable=True))
        return CellRows(shard, cell.path, table, sound=not draft and len(table) == shard.rows)

    def _nulls(self, metric: str, cell: PlannedCell, error: RowError) -> CellRows:
        """A null row per image of a shard that failed whole, where at least the ids can be read."""
        shard = cell.shard
        try:
            records = image_records(read_shard(shard, ("image_id", "prompt_id")))
            further = self._further(shard)
        except PlumblineError:
            nothing = _beside(schemas.SCORES.empty_table(), self.extra.empty_table(), self.extra)
            return CellRows(shard, cell.path, nothing, BrokenFile(shard.group, error.message, shard.rows))
        nulls = [_null_row(metric, error, **_known_ids(record, shard.group)) for record in records]
        return CellRows(shard, cell.path, _beside(rows.table(nulls, schemas.SCORES), further, self.extra))

    def _further(self, shard: Shard) -> pa.Table:
        """The shard's further columns; where none are wanted, its file is not touched."""
        return read_extra(shard, self.extra) if self.extra.names else self.extra.empty_table()


def _counted(metric: str, table: pa.Table, shards: Sequence[tuple[Shard, int]], tally: Tally) -> CountedPart:
    """What is to be known of rows, of which so many are in each of the shards."""
    return CountedPart(
        metric=metric,
        tally=tally,
        errors=_errors(table, shards),
        rows=len(table),
        n_null=table.column("score").null_count,
        n_truncated=pc.sum(table.column("truncated")).as_py() or 0,
        scores=sketch(table.column("score")),
        cell_rows=(),
        lost={},
    )


def _written_cells(
    read: Mapping[str, Sequence[PlannedCell]],
) -> Iterator[tuple[PlannedCell, PlannedCell | None]]:
    """The cells of questions that a scores cell reads, each with that of its entailment where it reads any."""
    questions = read.get("questions", ())
    entailment: Sequence[PlannedCell | None] = read.get("entailment") or [None] * len(questions)
    yield from zip(questions, entailment, strict=True)


def _check_basis(cell: PlannedCell, scores: pa.Table, now: Mapping[str, str]) -> None:
    """Raises BrokenCell where a score stands on questions that have been written anew since."""
    if not now:
        return
    sound = scores.filter(scores.column("error").is_null())
    bases = zip(*(sound.column(name).to_pylist() for name in ("prompt_id", "basis")), strict=True)
    if any(now.get(prompt_id, basis) != basis for prompt_id, basis in bases):
        raise BrokenCell(cell.path, f"{cell.path}: scores by questions that have been written anew since; run again")


def _beside(scores: pa.Table, further: pa.Table, extra: pa.Schema) -> pa.Table:
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


def _null_row(metric: str, error: RowError, **ids: Any) -> dict[str, Any]:
    return {**ids, "metric": metric, "error": rows.error_value(error)}


def _count_missing(
    plan: Plan,
    sources: Sources,
    counted: Sequence[CountedPart],
    skills: Skills,
    benchmark: BenchmarkConfig,
    store: Store,
    path: str,
) -> CountedPart:
    """The run's last part, of each metric's missing rows; it is written where it has some, or where no part has any."""
    tables = [schemas.SCORES.empty_table()]
    for metric in plan.recipes:
        lost = {shard: file for part in counted if part.metric == metric for shard, file in part.lost.items()}
        tables.append(_missing_rows(metric, sources, lost, benchmark))
    table = _beside(pa.concat_tables(tables), sources.extra.empty_table(), sources.extra)
    if len(table) or not any(part.rows for part in counted):
        store.write_table(path, table)
    tally = Tally(skills)
    tally.add(table)
    return _counted("", table, [], tally)


def _missing_rows(
    metric: str, sources: Sources, lost: Mapping[Shard, BrokenFile], benchmark: BenchmarkConfig
) -> pa.Table:
    """A null row for every prompt that a generator has no image of, with the reason if a file is broken.

    A broken file leaves at least as many as it had rows, also where no prompt can be named.
    """
    records = []
    for generator in sources.generators:
        broken = [file for file in (*sources.broken, *lost.values()) if file.generator == generator]
        absent: list[str | None] = []
        if benchmark.prompts is not None and (benchmark.require_every_prompt or broken):
            absent = _absent_prompts(generator, sources, lost.keys())
        absent += [None] * (sum(file.rows for file in broken) - len(absent))
        error = _missing_error(generator, broken)
        records += [_null_row(metric, error, generator=generator, prompt_id=prompt) for prompt in absent]
    return rows.table(records, schemas.SCORES)


def _absent_prompts(generator: str, sources: Sources, lost: Set[Shard]) -> list[str | None]:
    """The prompts that no images shard of a generator names, but for shards that are lost."""
    absent = np.ones(len(sources.prompts), bool)
    for shard, numbers in sources.named.items():
        if shard.group == generator and shard not in lost:
            absent[numbers] = False
    return list(sources.prompts.column("prompt_id").filter(pa.array(absent)).to_pylist())


def _missing_error(generator: str, broken: Sequence[BrokenFile]) -> RowError:
    if broken:
        return RowError("broken_file", broken[-1].message, retryable=True)
    remedy = "generate it, or set benchmark.require_every_prompt=false"
    return RowError("missing_image", f"generator {generator} has no image of this prompt; {remedy}", retryable=True)


COUNTED_COLUMNS = ("score", "truncated")
ERROR_COLUMNS = ("image_id", "prompt_id", "generator", "metric", "error")


def _errors(scores: pa.Table, shards: Sequence[tuple[Shard, int]]) -> pa.Table:
    """The rows without a score, with their errors spread into columns, and where they stand in the shards' files.

    `shards` are those of the rows, in their order, with the number of rows of each; none where they stand nowhere.
    """
    failed = pc.indices_nonzero(pc.is_valid(scores.column("error"))).to_numpy()
    taken = scores.select(ERROR_COLUMNS).take(failed).combine_chunks()
    columns = {name: taken.column(name) for name in ERROR_COLUMNS[:-1]}
    error = taken.column("error")
    columns |= {name: pc.struct_field(error, name) for name in schemas.ERROR.names}
    places = list(_places(failed, shards)) if shards else [(None, None)] * len(failed)
    columns |= {name: [place[at] for place in places] for at, name in enumerate(("file", "row"))}
    return pa.table(columns, schema=schemas.ERRORS)


def _places(table_rows: NDArray[np.uint64], shards: Sequence[tuple[Shard, int]]) -> Iterator[tuple[str, int]]:
    """The file of each row, and its row there."""
    first_rows = np.cumsum([0, *(n_rows for _, n_rows in shards)])
    for row, number in zip(table_rows, np.searchsorted(first_rows, table_rows, side="right") - 1, strict=True):
        shard, _ = shards[number]
        yield shard.url, shard.row_in_file(int(row - first_rows[number]))


def error_counts(errors: pa.Table) -> Iterator[tuple[str, int]]:
    """The kinds of error of a run with their number of rows, most first."""
    counts = pc.value_counts(errors.column("kind")).to_pylist()
    yield from sorted(((count["values"], count["counts"]) for count in counts), key=lambda pair: (-pair[1], pair[0]))

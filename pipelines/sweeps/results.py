"""What a run hands to people: scores, summary and errors, with every row that should be there.

A run's scores.parquet is a folder of parts: each has one metric's rows on some images shards of one generator. A part
that an earlier run has of the same cells is taken over with what was counted of it; only the others are made of cells.
Both are done by tasks (parts.py). Here parts are cut and what was counted of them is merged: no row comes by.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators.base import schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.failures import merge_failures
from plumbline.operators.base.rows import error_value
from plumbline.operators.images.generation_settings import Known, add_settings
from plumbline.operators.results.summary import Tally
from plumbline.operators.results.usual_scores import SketchKey, usual_table
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.base.tables import NO_GENERATOR, Rejection
from plumbline.pipelines.cells.cells import Outcome, PlannedCell, Shard, digest
from plumbline.pipelines.cells.run_errors import errors_path
from plumbline.pipelines.cells.runs import run_ids
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.running.tasks import Tasks, open_tasks
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.shards import BrokenFile
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.sweeps.parts import (
    MAX_SEARCHED_RUNS,
    CountedPart,
    Gathering,
    MissingPart,
    MissingRows,
    PartsOfShards,
    ReadBases,
    ScoresPart,
    WrittenCells,
    bring_parts,
    errors_beside,
    make_missing,
    read_bases,
)

VERSION = 1
"""Of parts with their tallies; raised when other rows or sums are made of the same cells."""
MAX_PART_ROWS = 1 << 15
"""Rows of a part, unless a single shard has more; a generator that grows changes its last part alone."""
MAX_TASK_ROWS = 1 << 19
"""Rows of the parts on the same shards that one task brings, unless a single part has more."""
TAKEN_OVER = 4
"""Rows taken over from an earlier run in the time in which one is made."""
PROMPT_STAGES = tuple(stage.name for stage in STAGES.values() if stage.over == "prompts")
"""Stages over prompts, whose cells a score may depend on besides what was measured of its image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """A run's output; its scores and errors stand in the store alone, for there may be more than memory holds."""

    store: Store
    path: str
    """Of the scores, in the store: a folder of parts."""
    parts: int
    rows: int
    n_null: int
    n_truncated: int
    summary: pa.Table
    failures: pa.Table
    """The kinds of failure (schema FAILURES)."""
    usual: pa.Table = field(default_factory=schemas.USUAL_SCORES.empty_table)
    """What stands for the scores (schema USUAL_SCORES)."""
    settings: Mapping[str, Known] = field(default_factory=dict)
    """By generator, how many of its images have which settings."""
    broken: frozenset[str] = frozenset()
    """Paths of cells that are damaged, or stand on questions that have been written anew."""
    first_rows: Mapping[PlannedCell, int] = field(default_factory=dict)
    """By scores cell that was read, the row of the scores that its first row is."""

    def read_scores(self) -> pa.Table:
        """All scores, read from the store."""
        return self.store.read_table(self.path)

    def read_errors(self) -> pa.Table:
        """All rows without a score (schema ERRORS), read from the store."""
        return self.store.read_table(errors_path(self.path.rpartition("/")[0]))

    @property
    def coverage(self) -> float:
        """Share of rows with a score; 1 where nothing was asked for."""
        return 1 - self.n_null / self.rows if self.rows else 1.0


def gather_results(
    plan: Plan,
    sources: Sources,
    outcomes: Mapping[str, Outcome],
    *,
    run_id: str,
    store: Store,
    benchmark: BenchmarkConfig,
    cluster: ClusterConfig,
) -> Results:
    """Gathers the run's scores, part by part, with a null row and its error for all that is missing, and aggregates.

    Only the parts that no earlier run has are read from their cells.
    """
    folder = f"runs/{run_id}/scores.parquet"
    parts = _cut_parts(plan, sources, store, run_id)
    rows = sum(part.rows // TAKEN_OVER if part.standing else part.rows for part in parts)
    with open_tasks(cluster, store, rows=rows, sources=[shard.place for shard in sources.image_shards[:1]]) as tasks:
        orders = [_order(alike, plan, outcomes) for alike in _together(parts)]
        bases = _read_bases(tasks, orders, store)
        broken = {path for read in bases.values() for path in read.broken}
        gathering = Gathering(
            store,
            sources.skills,
            sources.extra,
            settings=sources.settings,
            counting=next(iter(plan.scores), ""),
            bases={paths: read.bases for paths, read in bases.items()},
        )
        total = Tally(gathering.skills)
        counted: dict[str, CountedPart] = {}
        for order, brought in zip(orders, tasks.map(bring_parts, orders, shared=gathering), strict=True):
            for part, of_part in zip(order.parts, brought, strict=True):
                total.merge(of_part.sums)
                broken |= of_part.broken
                counted[part.path] = of_part._replace(sums={})
        of_cells = [counted[part.path] for part in parts]
        missing = list(_missing_parts(plan, sources, benchmark, parts, of_cells, folder))
        of_missing = list(tasks.map(make_missing, missing, shared=gathering))
    for of_part in of_missing:
        total.merge(of_part.sums)
    every = [*of_cells, *of_missing]
    paths = [*(part.path for part in parts), *(part.path for part in missing)]
    _leave_only(store, paths, every, folder)
    generators = (SketchKey(part.metric, part.cells[0].shard.group) for part in parts)
    return Results(
        store=store,
        path=folder,
        parts=sum(part.rows > 0 for part in every) or 1,
        rows=sum(part.rows for part in every),
        n_null=sum(part.n_null for part in every),
        n_truncated=sum(part.n_truncated for part in every),
        summary=total.summary(),
        failures=merge_failures([part.failures for part in every]),
        settings=_settings(parts, of_cells),
        usual=usual_table(zip(generators, (part.scores for part in of_cells), strict=True)),
        broken=frozenset(broken),
        first_rows=_first_rows(parts, of_cells),
    )


def _cut_parts(plan: Plan, sources: Sources, store: Store, run_id: str) -> list[ScoresPart]:
    """The run's parts in the plan's order, named by their place and by what they follow from."""
    labels, of_shards, of_prompts = sources.skill_labels, dict[tuple[str, str], str](), cache(store.listing)
    parts: list[ScoresPart] = []
    for metric, cells in plan.scores.items():
        stored = store.listing(plan.recipes[metric]["scores"].folder)
        for recipe in (recipe for stage, recipe in plan.recipes[metric].items() if stage in PROMPT_STAGES):
            stored |= of_prompts(recipe.folder)
        for run in _runs_of_cells(cells):
            shard = run[0].shard
            if (shard.group, shard.name) not in of_shards:
                of_shards[shard.group, shard.name] = _labels_digest(run, sources, labels)
            identity = _identity(metric, run, plan, sources, stored, of_shards[shard.group, shard.name])
            parts.append(
                ScoresPart(metric, run, identity, f"runs/{run_id}/scores.parquet/{len(parts):05d}-{identity}.parquet")
            )
    standing = _standing_parts(store, run_id, {part.identity for part in parts})
    return [part._replace(standing=standing.get(part.identity)) for part in parts]


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


def _labels_digest(cells: Sequence[PlannedCell], sources: Sources, labels: NDArray[np.uint64]) -> str:
    """Of the skills of the prompts of some cells' shards."""
    named = [sources.named[cell.shard] for cell in cells if cell.shard in sources.named]
    return hashlib.sha256(b"".join(labels[numbers].tobytes() for numbers in named)).hexdigest()


def _identity(
    metric: str,
    cells: Sequence[PlannedCell],
    plan: Plan,
    sources: Sources,
    stored: Mapping[str, float],
    skills: str,
) -> str:
    """Of cells as they stand now, of the questions that their scores stand on, of skills and of further columns.

    A cell that is written anew, by whoever, has another time of writing.
    """
    upstream = _upstream(plan, cells, PROMPT_STAGES)
    written = dict.fromkeys(cell.path for of_stage in upstream for cell in of_stage)
    shards = [cell.shard for cell in cells]
    content = {
        "version": VERSION,
        "metric": metric,
        "generator": shards[0].group,
        "cells": [(cell.key, stored.get(cell.path)) for cell in cells],
        "written": [(path, stored.get(path)) for path in written],
        "skills": skills,
        "extra": [str(field) for field in sources.extra],
        "files": [(shard.url, shard.etag, shard.row_groups) for shard in shards if sources.extra.names],
        **({"settings": sources.settings} if sources.settings else {}),
    }
    return digest(content)[:32]


def _upstream(plan: Plan, cells: Sequence[PlannedCell], stages: Sequence[str]) -> Iterator[Sequence[PlannedCell]]:
    """The cells of these stages that some scores cells read; cells of one metric read the same stages."""
    if any(recipe.stage in stages for recipe in cells[0].recipe.reads):
        for cell in cells:
            yield from (read for stage, read in plan.read_by(cell).items() if stage in stages)


def _standing_parts(store: Store, run_id: str, wanted: Set[str]) -> dict[str, str]:
    """By identity where a part stands: in this run's folder, which may be gathered again, or in the newest runs."""
    standing: dict[str, str] = {}
    for run in (run_id, *reversed(run_ids(store)[-MAX_SEARCHED_RUNS:])):
        if standing.keys() >= wanted:
            break
        for path in store.files(f"runs/{run}/scores.parquet"):
            standing.setdefault(path.removesuffix(".parquet").rpartition("-")[2], path)
    return {identity: path for identity, path in standing.items() if identity in wanted}


def _together(parts: Iterable[ScoresPart]) -> Iterator[tuple[ScoresPart, ...]]:
    """The parts on the same shards, which one task brings."""
    of_shards: dict[tuple[str, str], list[ScoresPart]] = {}
    for part in parts:
        of_shards.setdefault((part.cells[0].shard.group, part.cells[0].shard.name), []).append(part)
    for alike in of_shards.values():
        step = max(1, MAX_TASK_ROWS // max(1, alike[0].rows))
        yield from (tuple(alike[first : first + step]) for first in range(0, len(alike), step))


def _order(parts: tuple[ScoresPart, ...], plan: Plan, outcomes: Mapping[str, Outcome]) -> PartsOfShards:
    """What a task must know of the cells of some parts."""
    written = {part.metric: tuple(_written_cells(plan, part.cells)) for part in parts}
    scores = [cell for part in parts for cell in part.cells]
    read = [cell for cells in written.values() for both in cells for cell in both if cell is not None]
    paths = [cell.path for cell in (*scores, *read)] if outcomes else []
    return PartsOfShards(
        parts=parts,
        outcomes={path: outcomes[path] for path in paths if path in outcomes and outcomes[path].state != "committed"},
        left=plan.left.intersection(scores) if plan.left else frozenset(),
        written=written,
    )


def _written_cells(plan: Plan, cells: Sequence[PlannedCell]) -> Iterator[WrittenCells]:
    """The cells of questions that some scores cells read, each once, with that of its entailment, if any."""
    pairs = dict.fromkeys(
        WrittenCells(*pair)
        for cell in cells
        if any(recipe.stage == "questions" for recipe in cell.recipe.reads)
        for pair in _with_entailment(plan.read_by(cell))
    )
    yield from pairs


def _with_entailment(
    read: Mapping[str, Sequence[PlannedCell]],
) -> Iterator[tuple[PlannedCell, PlannedCell | None]]:
    questions = read["questions"]
    entailment: Sequence[PlannedCell | None] = read.get("entailment") or [None] * len(questions)
    yield from zip(questions, entailment, strict=True)


def _read_bases(tasks: Tasks, orders: Iterable[PartsOfShards], store: Store) -> dict[tuple[str, str], ReadBases]:
    """By the paths of the cells of questions, what the parts that are to be made must stand on.

    Generators with the same prompts stand on the same questions: these are read once.
    """
    needed = {
        written.paths: (written, order.outcomes)
        for order in orders
        for part in order.parts
        if part.standing is None
        for written in order.written[part.metric]
    }
    return dict(zip(needed, tasks.map(read_bases, needed.values(), shared=store), strict=True))


def _settings(parts: Iterable[ScoresPart], counted: Iterable[CountedPart]) -> dict[str, Known]:
    """By generator that has any."""
    settings: dict[str, Known] = {}
    for part, of_part in zip(parts, counted, strict=True):
        if of_part.settings:
            generator = part.cells[0].shard.group
            settings[generator] = add_settings(settings.get(generator, {}), of_part.settings)
    return settings


def _first_rows(parts: Iterable[ScoresPart], counted: Iterable[CountedPart]) -> dict[PlannedCell, int]:
    first_rows: dict[PlannedCell, int] = {}
    row = 0
    for part, of_part in zip(parts, counted, strict=True):
        for cell, n_rows in zip(part.cells, of_part.cell_rows.tolist(), strict=True):
            first_rows[cell] = row
            row += n_rows
    return first_rows


def _missing_parts(
    plan: Plan,
    sources: Sources,
    benchmark: BenchmarkConfig,
    parts: Sequence[ScoresPart],
    counted: Sequence[CountedPart],
    folder: str,
) -> Iterator[MissingPart]:
    """The run's last parts, of each metric's missing rows; one at least where no other part has any."""
    number, some, n_rows = len(parts), list[MissingRows](), 0
    for metric in plan.recipes:
        of_metric = (of_part.lost for part, of_part in zip(parts, counted, strict=True) if part.metric == metric)
        lost = {shard: file for of_part in of_metric for shard, file in of_part.items()}
        for rows in _missing_rows(metric, sources, lost, benchmark):
            if some and n_rows + len(rows.prompts) > MAX_PART_ROWS:
                yield MissingPart(f"{folder}/{number:05d}.parquet", tuple(some))
                number, some, n_rows = number + 1, [], 0
            some.append(rows)
            n_rows += len(rows.prompts)
    if some or not any(of_part.rows for of_part in counted):
        yield MissingPart(f"{folder}/{number:05d}.parquet", tuple(some))


def _missing_rows(
    metric: str, sources: Sources, lost: Mapping[Shard, BrokenFile], benchmark: BenchmarkConfig
) -> Iterator[MissingRows]:
    """Yield a null row for every rejected row, and for every other prompt that a generator has no image of.

    The reason is the rejection's, or that a file is broken. A broken file leaves at least as many rows as it had, also
    if no prompt can be named. No MissingRows has more rows than a part may have.
    """
    ids = sources.prompts.column("prompt_id").combine_chunks()
    for generator in sources.every_generator:
        rejected = [row for row in sources.rejected if row.generator == generator]
        places = pc.index_in(pa.array([row.prompt_id for row in rejected], ids.type), ids)
        errors = pa.array([_rejection_error(row) for row in rejected], schemas.ERROR)
        for first in range(0, len(rejected), MAX_PART_ROWS):
            part = slice(first, first + MAX_PART_ROWS)
            yield MissingRows(metric, generator, errors[part], ids.take(places[part]), rejected[part])
        broken = [file for file in (*sources.broken, *lost.values()) if file.generator == generator]
        absent = np.zeros(0, np.int64)
        if benchmark.prompts is not None and (benchmark.require_every_prompt or broken) and generator != NO_GENERATOR:
            absent = _absent_prompts(generator, sources, lost.keys(), places.drop_null().to_numpy())
        unknown = max(sum(file.rows for file in broken) - len(absent), 0)
        error = pa.array([error_value(_missing_error(generator, broken))], schemas.ERROR)
        for first in range(0, len(absent), MAX_PART_ROWS):
            yield MissingRows(metric, generator, error, ids.take(pa.array(absent[first : first + MAX_PART_ROWS])))
        for first in range(0, unknown, MAX_PART_ROWS):
            nobody = pa.nulls(min(unknown - first, MAX_PART_ROWS), ids.type)
            yield MissingRows(metric, generator, error, nobody)


def _rejection_error(row: Rejection) -> dict[str, Any] | None:
    return error_value(RowError(row.kind, row.in_words, retryable=False))


def _absent_prompts(
    generator: str, sources: Sources, lost: Set[Shard], rejected: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return the numbers of the prompts of which a generator has neither a row in a shard that is there nor a rejected
    row.
    """
    absent = np.ones(len(sources.prompts), bool)
    absent[rejected] = False
    for shard, numbers in sources.named.items():
        if shard.group == generator and shard not in lost:
            absent[numbers] = False
    return np.flatnonzero(absent)


def _missing_error(generator: str, broken: Sequence[BrokenFile]) -> RowError:
    if broken:
        return RowError("broken_file", broken[-1].message, retryable=True)
    remedy = "generate it, or set benchmark.require_every_prompt=false"
    return RowError("missing_image", f"generator {generator} has no image of this prompt; {remedy}", retryable=True)


def _leave_only(store: Store, paths: Sequence[str], counted: Sequence[CountedPart], folder: str) -> None:
    """Removes what was gathered before some cells turned out to be broken; a run without errors has an empty table."""
    failed = {errors_beside(path) for path, part in zip(paths, counted, strict=True) if len(part.failures)}
    if not failed:
        nothing = errors_beside(f"{folder}/00000.parquet")
        store.write_table(nothing, schemas.ERRORS.empty_table())
        failed = {nothing}
    of_errors = errors_path(folder.rpartition("/")[0])
    for path in {*store.files(folder), *store.files(of_errors)} - failed - set(paths):
        store.remove(path)

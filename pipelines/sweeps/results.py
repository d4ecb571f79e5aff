"""The output of a run: scores, summary and errors, with a row for everything that was asked for.

A run's scores.parquet is a folder of parts: each has one metric's rows on some images shards of one generator. If an
earlier run has a part of the same cells, it is copied with its counts; only the other parts are made from cells. Both
are done by tasks (parts.py). This module cuts the parts and merges their counts: it handles no rows.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators.base import schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.failures import merge_failures
from plumbline.operators.base.rows import error_value
from plumbline.operators.images.generation_settings import Known, add_settings
from plumbline.operators.results.percentile_ranks import SketchKey, usual_table
from plumbline.operators.results.summary import Tally
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.tables import NO_GENERATOR
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.running.tasks import Tasks, open_tasks
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.shards import BrokenFile
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.cells import Outcome, PlannedCell, Shard, digest
from plumbline.pipelines.store.run_scores import errors_path
from plumbline.pipelines.store.runs import run_ids
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.parts import (
    MAX_SEARCHED_RUNS,
    Bases,
    CountedPart,
    Gathering,
    MissingPart,
    MissingRows,
    PartsOfShards,
    ScoresPart,
    WrittenCells,
    errors_part_path,
    gather_parts,
    read_bases,
    write_missing_part,
)

VERSION = 1
"""Version of parts and their tallies; raise it when the same cells give other rows or sums."""
MAX_PART_ROWS = 1 << 15
"""Rows of a part, unless one shard has more. A generator that grows changes only its last part."""
MAX_TASK_ROWS = 1 << 19
"""Rows of the parts on the same shards that one task handles, unless a part alone has more."""
COPY_SPEED = 4
"""Speed of copying rows from an earlier run, relative to making them from cells."""
PROMPT_STAGES = tuple(stage.name for stage in STAGES.values() if stage.over == "prompts")
"""Stages over prompts, whose cells a score may depend on besides the cells over its image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """A run's output. Scores and errors are only in the store, because they may not fit into memory."""

    store: Store
    path: str
    """Path of the scores in the store: a folder of parts."""
    parts: int
    rows: int
    n_null: int
    n_truncated: int
    summary: pa.Table
    failures: pa.Table
    """Kinds of failure (schema FAILURES)."""
    usual: pa.Table = field(default_factory=schemas.USUAL_SCORES.empty_table)
    """Distribution of the scores (schema USUAL_SCORES)."""
    settings: Mapping[str, Known] = field(default_factory=dict)
    """Number of images with each generation setting, by generator."""
    broken: frozenset[str] = frozenset()
    """Paths of cells that are damaged, or were computed from questions that have been written again since."""
    first_rows: Mapping[PlannedCell, int] = field(default_factory=dict)
    """Index of each scores cell's first row within the run's scores."""

    def read_scores(self) -> pa.Table:
        return self.store.read_table(self.path)

    def read_errors(self) -> pa.Table:
        """Read all rows without a score (schema ERRORS) from the store."""
        return self.store.read_table(errors_path(self.path.rpartition("/")[0]))

    @property
    def coverage(self) -> float:
        """Fraction of rows with a score; 1 for zero rows."""
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
    """Write and aggregate the run's scores, part by part, with a null row and an error for everything that is missing.

    Cells are read only for the parts that no earlier run has.
    """
    folder = f"runs/{run_id}/scores.parquet"
    parts = _split_into_parts(plan, sources, store, run_id)
    rows = sum(part.rows // COPY_SPEED if part.earlier else part.rows for part in parts)
    with open_tasks(cluster, store, rows=rows, sources=[shard.place for shard in sources.image_shards[:1]]) as tasks:
        orders = [_order(alike, plan, outcomes) for alike in _group_by_shards(parts)]
        bases = _read_bases(tasks, orders, store)
        broken = {path for _, unusable in bases.values() for path in unusable}
        gathering = Gathering(
            store,
            sources.skills,
            sources.extra,
            settings=sources.settings,
            counting=next(iter(plan.scores), ""),
            bases={paths: read for paths, (read, _) in bases.items()},
        )
        total = Tally(gathering.skills)
        counted: dict[str, CountedPart] = {}
        for order, gathered in zip(orders, tasks.map(gather_parts, orders, shared=gathering), strict=True):
            for part, of_part in zip(order.parts, gathered, strict=True):
                total.merge(of_part.sums)
                broken |= of_part.broken
                counted[part.path] = of_part._replace(sums={})
        of_cells = [counted[part.path] for part in parts]
        missing = list(_missing_parts(plan, sources, benchmark, parts, of_cells, folder))
        of_missing = list(tasks.map(write_missing_part, missing, shared=gathering))
    for of_part in of_missing:
        total.merge(of_part.sums)
    every = [*of_cells, *of_missing]
    paths = [*(part.path for part in parts), *(part.path for part in missing)]
    _remove_others(store, paths, every, folder)
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


def _split_into_parts(plan: Plan, sources: Sources, store: Store, run_id: str) -> list[ScoresPart]:
    """Return the run's parts in the plan's order, named by their number and identity."""
    labels, of_shards, of_prompts = sources.skill_labels, dict[tuple[str, str], str](), cache(store.listing)
    parts: list[ScoresPart] = []
    for metric, cells in plan.scores.items():
        stored = store.listing(plan.recipes[metric]["scores"].folder)
        for recipe in (recipe for stage, recipe in plan.recipes[metric].items() if stage in PROMPT_STAGES):
            stored |= of_prompts(recipe.folder)
        for run in _split_cells(cells):
            shard = run[0].shard
            if (shard.group, shard.name) not in of_shards:
                of_shards[shard.group, shard.name] = _labels_digest(run, sources, labels)
            identity = _identity(metric, run, plan, sources, stored, of_shards[shard.group, shard.name])
            parts.append(
                ScoresPart(metric, run, identity, f"runs/{run_id}/scores.parquet/{len(parts):05d}-{identity}.parquet")
            )
    earlier = _earlier_parts(store, run_id, {part.identity for part in parts})
    return [part._replace(earlier=earlier.get(part.identity)) for part in parts]


def _split_cells(cells: Iterable[PlannedCell]) -> Iterator[tuple[PlannedCell, ...]]:
    """Yield consecutive cells of one generator with at most MAX_PART_ROWS rows, and at least one cell."""
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
    """Return a digest of the skills of the prompts of some cells' shards."""
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
    """Return a digest of a part's cells, the questions that their scores depend on, the skills and the further columns.

    The modification times of the cells are included, because a cell may be written again with other rows.
    """
    written: dict[str, None] = {}
    if any(recipe.stage in PROMPT_STAGES for recipe in cells[0].recipe.reads):  # the same for all cells of a metric
        for cell in cells:
            for stage, read in plan.upstream(cell).items():
                written |= dict.fromkeys(each.path for each in read if stage in PROMPT_STAGES)
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


def _earlier_parts(store: Store, run_id: str, wanted: Set[str]) -> dict[str, str]:
    """Return the paths of existing parts by identity, in this run (which may be gathered twice) or the newest runs."""
    found: dict[str, str] = {}
    for run in (run_id, *reversed(run_ids(store)[-MAX_SEARCHED_RUNS:])):
        if found.keys() >= wanted:
            break
        for path in store.files(f"runs/{run}/scores.parquet"):
            found.setdefault(path.removesuffix(".parquet").rpartition("-")[2], path)
    return {identity: path for identity, path in found.items() if identity in wanted}


def _group_by_shards(parts: Iterable[ScoresPart]) -> Iterator[tuple[ScoresPart, ...]]:
    """Yield groups of parts on the same shards, which one task handles."""
    of_shards: dict[tuple[str, str], list[ScoresPart]] = {}
    for part in parts:
        of_shards.setdefault((part.cells[0].shard.group, part.cells[0].shard.name), []).append(part)
    for alike in of_shards.values():
        step = max(1, MAX_TASK_ROWS // max(1, alike[0].rows))
        yield from (tuple(alike[first : first + step]) for first in range(0, len(alike), step))


def _order(parts: tuple[ScoresPart, ...], plan: Plan, outcomes: Mapping[str, Outcome]) -> PartsOfShards:
    """Return the order for a task: some parts, with the outcomes and questions of their cells."""
    written = {part.metric: tuple(_find_questions_cells(plan, part.cells)) for part in parts}
    scores = [cell for part in parts for cell in part.cells]
    read = [cell for cells in written.values() for both in cells for cell in both if cell is not None]
    paths = [cell.path for cell in (*scores, *read)] if outcomes else []
    return PartsOfShards(
        parts=parts,
        outcomes={path: outcomes[path] for path in paths if path in outcomes and outcomes[path].state != "committed"},
        untried=plan.untried.intersection(scores) if plan.untried else frozenset(),
        written=written,
    )


def _find_questions_cells(plan: Plan, cells: Sequence[PlannedCell]) -> Iterator[WrittenCells]:
    """Yield the questions cells that some scores cells read, each once, with its entailment cell if there is one."""
    pairs: dict[WrittenCells, None] = {}
    for cell in cells:
        if any(recipe.stage == "questions" for recipe in cell.recipe.reads):
            read = plan.upstream(cell)
            entailment: Sequence[PlannedCell | None] = read.get("entailment") or [None] * len(read["questions"])
            pairs |= dict.fromkeys(map(WrittenCells, read["questions"], entailment))
    yield from pairs


def _read_bases(
    tasks: Tasks, orders: Iterable[PartsOfShards], store: Store
) -> dict[tuple[str, str], tuple[Bases, frozenset[str]]]:
    """Return the expected bases of the parts that must be made, by the paths of the cells they are read from.

    Generators with the same prompts share questions cells, so each cell is read once.
    """
    needed = {
        written.paths: (written, order.outcomes)
        for order in orders
        for part in order.parts
        if part.earlier is None
        for written in order.written[part.metric]
    }
    return dict(zip(needed, tasks.map(read_bases, needed.values(), shared=store), strict=True))


def _settings(parts: Iterable[ScoresPart], counted: Iterable[CountedPart]) -> dict[str, Known]:
    """Return the counts of generation settings, by generator that has any."""
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
    """Yield the run's last parts, with each metric's missing rows; an empty part if the run would have no rows."""
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

    Its error is the rejection's, or that a file is broken. A broken file gives at least as many rows as it had, even if
    no prompt can be named. No MissingRows has more rows than a part may have.
    """
    ids = sources.prompts.column("prompt_id").combine_chunks()
    for generator in sources.every_generator:
        rejected = [row for row in sources.rejected if row.generator == generator]
        places = pc.index_in(pa.array([row.prompt_id for row in rejected], ids.type), ids)
        rejections = [RowError(row.kind, row.in_words, retryable=False) for row in rejected]
        errors = pa.array(map(error_value, rejections), schemas.ERROR)
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
            no_prompts = pa.nulls(min(unknown - first, MAX_PART_ROWS), ids.type)
            yield MissingRows(metric, generator, error, no_prompts)


def _absent_prompts(
    generator: str, sources: Sources, lost: Set[Shard], rejected: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return the indices of the prompts without a row in a readable shard or a rejected row of a generator."""
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


def _remove_others(store: Store, paths: Sequence[str], counted: Sequence[CountedPart], folder: str) -> None:
    """Remove the parts of an earlier round with broken cells; write an empty table if no errors remain."""
    failed = {errors_part_path(path) for path, part in zip(paths, counted, strict=True) if len(part.failures)}
    if not failed:
        nothing = errors_part_path(f"{folder}/00000.parquet")
        store.write_table(nothing, schemas.ERRORS.empty_table())
        failed = {nothing}
    of_errors = errors_path(folder.rpartition("/")[0])
    for path in {*store.files(folder), *store.files(of_errors)} - failed - set(paths):
        store.remove(path)

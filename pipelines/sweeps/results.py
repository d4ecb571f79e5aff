"""The output of a run: scores, summary and errors, with a row for every requested score.

A run's scores.parquet is a folder of parts. Each part contains the rows of one metric for some image shards of one
generator. If an earlier run has a part made from the same cells, it is copied together with its counts; only the other
parts are made from cells. Tasks do both (parts.py). This module splits the scores into parts and merges their counts;
it does not handle rows.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.failures import merge_failures
from plumbline.operators.base.rows import error_to_dict
from plumbline.operators.base.usage import Usage
from plumbline.operators.images.generation_settings import SettingCounts, add_settings
from plumbline.operators.results.percentile_ranks import SketchKey, merge_sketches
from plumbline.operators.results.summary import Tally
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.exit_codes import Ending
from plumbline.pipelines.base.tables import NO_GENERATOR
from plumbline.pipelines.plans.costs import Cost
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.running.tasks import TaskRunner, open_tasks
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.shards import BrokenFile
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.cells import Outcome, PlannedCell, Shard, digest
from plumbline.pipelines.store.reused_rows import RetryCounts
from plumbline.pipelines.store.run_scores import get_errors_path
from plumbline.pipelines.store.runs import list_run_ids
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.parts import (
    MAX_SEARCHED_RUNS,
    CountedPart,
    InputDigests,
    MissingRows,
    PartsTask,
    QuestionCells,
    ScoresPart,
    SharedInputs,
    make_errors_part_path,
    read_input_digests,
    write_missing_part,
    write_parts,
)

PARTS_VERSION = 1
"""Version of the parts and their tallies; increase it when the same cells lead to different rows or sums."""
MAX_PART_ROWS = 1 << 15
"""Maximum number of rows in a part, unless a single shard has more. If a generator grows, only its last part changes.
"""
MAX_TASK_ROWS = 1 << 19
"""Maximum number of rows in a task, unless a single part has more. All parts in a task are made from the same shards.
"""
COPY_SPEED_RATIO = 4
"""Speed of copying rows from an earlier run relative to making them from cells."""
PROMPT_STAGES = tuple(stage.name for stage in STAGES.values() if stage.row_kind == "prompts")
"""Stages over prompts. A score may depend on their cells as well as on the cells of its image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """A run's output. Scores and errors are kept only in the store, because they may not fit in memory."""

    store: Store
    path: str
    """Path of the folder with the parts of the scores, relative to the store."""
    parts: int
    rows: int
    n_null: int
    n_truncated: int
    summary: pa.Table
    failures: pa.Table
    """Failures by kind (schema FAILURES)."""
    usual: pa.Table = field(default_factory=schemas.USUAL_SCORES.empty_table)
    """Distribution of the scores (schema USUAL_SCORES)."""
    settings: Mapping[str, SettingCounts] = field(default_factory=dict)
    """Number of images for each generation setting, by generator."""
    broken: frozenset[str] = frozenset()
    """Paths of cells that are damaged, or were computed from questions that have been rewritten since."""
    first_rows: Mapping[PlannedCell, int] = field(default_factory=dict)
    """Index, within the scores of the run, of the first row of each scores cell."""

    def read_scores(self) -> pa.Table:
        return self.store.read_table(self.path)

    def read_errors(self) -> pa.Table:
        return self.store.read_table(get_errors_path(self.path.rpartition("/")[0]))

    @property
    def coverage(self) -> float:
        """Fraction of rows with a score; 1 for an empty run."""
        return 1 - self.n_null / self.rows if self.rows else 1.0


class FinishedSweep(NamedTuple):
    """A run in the store: either a new one, or an earlier run with the same inputs."""

    run_id: str
    folder: str
    """Address of the folder with the run's tables."""
    results: Results
    lower_is_better: frozenset[str]
    """Metrics for which lower scores are better."""
    ending: Ending
    """Exit code and its reason: 0 if complete, 2 if failures are within the budget, 1 if they exceed it."""
    unchanged: bool
    """True if this is an earlier run and nothing was written."""
    computed: int = 0
    """Number of cells that this sweep computed with models or arithmetic."""
    copied: int = 0
    """Number of cells, not included in `computed`, that were written without calling a model, because all of their rows
    or inputs come from earlier cells.
    """
    renewed: int = 0
    """Number of computed and copied cells that had been committed before but could not be used."""
    usage: Mapping[str, Usage] = {}
    """Tokens and calls used by this sweep, by node, if they were counted."""
    costs: Mapping[str, Cost] = {}
    """Cost of calls and GPUs by node, if prices are configured."""
    retried: RetryCounts | None = None
    """Counts of retried rows; None without `retry_failed`."""

    @property
    def exit_code(self) -> int:
        return self.ending.code


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
    """Write and aggregate a run's scores, part by part, with a null row and an error for each missing score.

    Cells are read only for parts that no earlier run has.
    """
    folder = f"runs/{run_id}/scores.parquet"
    parts = _split_into_parts(plan, sources, store, run_id)
    rows = sum(part.rows // COPY_SPEED_RATIO if part.earlier else part.rows for part in parts)
    with open_tasks(cluster, store, rows=rows, sources=[shard.place for shard in sources.image_shards[:1]]) as tasks:
        part_tasks = [_make_task(group, plan, outcomes) for group in _group_by_shards(parts)]
        read = _read_input_digests(tasks, part_tasks, store)
        broken = {path for _, unusable in read.values() for path in unusable}
        shared = SharedInputs(
            store,
            sources.skills,
            sources.extra,
            settings=sources.settings,
            counted_metric=next(iter(plan.scores), ""),
            digests={paths: digests for paths, (digests, _) in read.items()},
        )
        total = Tally(shared.skills)
        counted: dict[str, CountedPart] = {}
        for part_task, results in zip(part_tasks, tasks.map(write_parts, part_tasks, shared=shared), strict=True):
            for part, count in zip(part_task.parts, results, strict=True):
                total.merge(count.sums)
                broken |= count.broken
                counted[part.path] = count._replace(sums={})
        of_cells = [counted[part.path] for part in parts]
        missing = list(_list_missing_parts(plan, sources, benchmark, parts, of_cells, folder))
        of_missing = list(tasks.map(write_missing_part, missing, shared=shared))
    for count in of_missing:
        total.merge(count.sums)
    every = [*of_cells, *of_missing]
    paths = [*(part.path for part in parts), *(path for path, _ in missing)]
    _remove_other_parts(store, paths, every, folder)
    settings, first_rows = _combine_counts(parts, of_cells)
    return Results(
        store=store,
        path=folder,
        parts=sum(count.rows > 0 for count in every) or 1,
        rows=sum(count.rows for count in every),
        n_null=sum(count.n_null for count in every),
        n_truncated=sum(count.n_truncated for count in every),
        summary=total.make_summary(),
        failures=merge_failures([count.failures for count in every]),
        settings=settings,
        usual=merge_sketches((SketchKey(part.metric, part.generator), counted[part.path].scores) for part in parts),
        broken=frozenset(broken),
        first_rows=first_rows,
    )


def _read_input_digests(
    tasks: TaskRunner, part_tasks: Iterable[PartsTask], store: Store
) -> dict[tuple[str, str], tuple[InputDigests, frozenset[str]]]:
    """Call `read_input_digests` for the parts that must be made; return its results by `QuestionCells.paths`.

    Generators with the same prompts share questions cells, so each of these cells is read only once.
    """
    needed = {
        pair.paths: (pair, part_task.outcomes)
        for part_task in part_tasks
        for part in part_task.parts
        if part.earlier is None
        for pair in part_task.questions[part.metric]
    }
    return dict(zip(needed, tasks.map(read_input_digests, needed.values(), shared=store), strict=True))


def _combine_counts(
    parts: Iterable[ScoresPart], counts: Iterable[CountedPart]
) -> tuple[dict[str, SettingCounts], dict[PlannedCell, int]]:
    """Return the counts of generation settings by generator, and the index of each cell's first row.

    Generators without any settings are left out. An index is the position of a row among all rows of the run.
    """
    settings: dict[str, SettingCounts] = {}
    first_rows: dict[PlannedCell, int] = {}
    row = 0
    for part, count in zip(parts, counts, strict=True):
        if count.settings:
            settings[part.generator] = add_settings(settings.get(part.generator, {}), count.settings)
        for cell, n_rows in zip(part.cells, count.cell_rows.tolist(), strict=True):
            first_rows[cell] = row
            row += n_rows
    return settings, first_rows


def _split_into_parts(plan: Plan, sources: Sources, store: Store, run_id: str) -> list[ScoresPart]:
    """Return the parts of the run in plan order, each with the path of the same part in an earlier run, if any.

    A part's file name consists of a number and the part's key.
    """
    labels, labels_of, list_folder = sources.skill_labels, dict[tuple[str, str], str](), cache(store.list_files)
    parts: list[ScoresPart] = []
    for metric, cells in plan.scores.items():
        stored = store.list_files(plan.recipes[metric]["scores"].folder)
        for recipe in (recipe for stage, recipe in plan.recipes[metric].items() if stage in PROMPT_STAGES):
            stored |= list_folder(recipe.folder)
        for run in _split_cells(cells):
            shard = run[0].shard
            if (shard.group, shard.name) not in labels_of:  # the same for every metric
                named = [sources.prompt_rows[cell.shard] for cell in run if cell.shard in sources.prompt_rows]
                skills = b"".join(labels[numbers].tobytes() for numbers in named)
                labels_of[shard.group, shard.name] = hashlib.sha256(skills).hexdigest()
            key = _make_part_key(metric, run, plan, sources, stored, labels_of[shard.group, shard.name])
            path = f"runs/{run_id}/scores.parquet/{len(parts):05d}-{key}.parquet"
            parts.append(ScoresPart(metric, run, key, path))
    # the same parts may exist in the newest runs, or in this run if it is gathered twice
    wanted, earlier = {part.key for part in parts}, dict[str, str]()
    for run_name in (run_id, *reversed(list_run_ids(store)[-MAX_SEARCHED_RUNS:])):
        if earlier.keys() >= wanted:
            break
        for path in store.files(f"runs/{run_name}/scores.parquet"):
            earlier.setdefault(path.removesuffix(".parquet").rpartition("-")[2], path)
    return [part._replace(earlier=earlier.get(part.key)) for part in parts]


def _split_cells(cells: Iterable[PlannedCell]) -> Iterator[tuple[PlannedCell, ...]]:
    """Yield groups of consecutive cells of one generator, each with one cell or with at most MAX_PART_ROWS rows."""
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


def _make_part_key(
    metric: str,
    cells: Sequence[PlannedCell],
    plan: Plan,
    sources: Sources,
    stored: Mapping[str, float],
    skills: str,
) -> str:
    """Return a digest of a part's cells, the questions that its scores depend on, the skills and the extra columns.

    The digest includes the cells' modification times, because a cell may be rewritten with different rows.
    """
    written: dict[str, None] = {}
    if any(recipe.stage in PROMPT_STAGES for recipe in cells[0].recipe.reads):  # the same for all cells of a metric
        for cell in cells:
            for stage, read in plan.list_upstream_cells(cell).items():
                written |= dict.fromkeys(each.path for each in read if stage in PROMPT_STAGES)
    shards = [cell.shard for cell in cells]
    content = {
        "version": PARTS_VERSION,
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


def _group_by_shards(parts: Iterable[ScoresPart]) -> Iterator[tuple[ScoresPart, ...]]:
    of_shards: dict[tuple[str, str], list[ScoresPart]] = {}
    for part in parts:
        of_shards.setdefault((part.generator, part.cells[0].shard.name), []).append(part)
    for group in of_shards.values():
        step = max(1, MAX_TASK_ROWS // max(1, group[0].rows))
        yield from (tuple(group[first : first + step]) for first in range(0, len(group), step))


def _make_task(parts: tuple[ScoresPart, ...], plan: Plan, outcomes: Mapping[str, Outcome]) -> PartsTask:
    questions: dict[str, tuple[QuestionCells, ...]] = {}
    for part in parts:
        pairs: dict[QuestionCells, None] = {}
        for cell in part.cells:
            if any(recipe.stage == "questions" for recipe in cell.recipe.reads):
                read = plan.list_upstream_cells(cell)
                entailment: Sequence[PlannedCell | None] = read.get("entailment") or [None] * len(read["questions"])
                pairs |= dict.fromkeys(map(QuestionCells, read["questions"], entailment))
        questions[part.metric] = tuple(pairs)
    scores = [cell for part in parts for cell in part.cells]
    asked = [cell for pairs in questions.values() for pair in pairs for cell in pair if cell is not None]
    paths = [cell.path for cell in (*scores, *asked)] if outcomes else []
    return PartsTask(
        parts=parts,
        outcomes={path: outcomes[path] for path in paths if path in outcomes and outcomes[path].state != "committed"},
        untried=plan.untried.intersection(scores) if plan.untried else frozenset(),
        questions=questions,
    )


def _list_missing_parts(
    plan: Plan,
    sources: Sources,
    benchmark: BenchmarkConfig,
    parts: Sequence[ScoresPart],
    counted: Sequence[CountedPart],
    folder: str,
) -> Iterator[tuple[str, Sequence[MissingRows]]]:
    """Yield the path and the missing rows of each part that is added to the parts made from cells.

    If the run has no rows at all, yield a single empty part.
    """
    number, some, n_rows = len(parts), list[MissingRows](), 0
    for metric in plan.recipes:
        of_metric = (count.lost for part, count in zip(parts, counted, strict=True) if part.metric == metric)
        lost = {shard: file for files in of_metric for shard, file in files.items()}
        for rows in _list_missing_rows(metric, sources, lost, benchmark):
            if some and n_rows + len(rows.prompts) > MAX_PART_ROWS:
                yield f"{folder}/{number:05d}.parquet", some
                number, some, n_rows = number + 1, [], 0
            some.append(rows)
            n_rows += len(rows.prompts)
    if some or not any(count.rows for count in counted):
        yield f"{folder}/{number:05d}.parquet", some


def _list_missing_rows(
    metric: str, sources: Sources, lost: Mapping[Shard, BrokenFile], benchmark: BenchmarkConfig
) -> Iterator[MissingRows]:
    """Yield null rows for all rejected rows, and for all other prompts for which a generator has no image.

    Each row's error states the rejection, the missing image or the broken file. A broken file results in at least as
    many null rows as it had rows, even if their prompts are unknown. Each MissingRows fits into one part.
    """
    ids = sources.prompts.column("prompt_id").combine_chunks()
    for generator in sources.all_generators:
        rejected = [row for row in sources.rejected if row.generator == generator]
        numbers = pc.index_in(pa.array([row.prompt_id for row in rejected], ids.type), ids)
        rejections = [RowError(row.kind, str(row), retryable=False) for row in rejected]
        errors = pa.array(map(error_to_dict, rejections), schemas.ERROR)
        for first in range(0, len(rejected), MAX_PART_ROWS):
            rows = slice(first, first + MAX_PART_ROWS)
            yield MissingRows(metric, generator, errors[rows], ids.take(numbers[rows]), rejected[rows])
        broken = [file for file in (*sources.broken, *lost.values()) if file.generator == generator]
        absent = np.zeros(0, np.int64)
        if benchmark.prompts is not None and (benchmark.require_every_prompt or broken) and generator != NO_GENERATOR:
            # prompts that occur neither in a readable shard of the generator nor in a rejected row
            is_absent = np.ones(len(sources.prompts), bool)
            is_absent[numbers.drop_null().to_numpy()] = False
            for shard, prompts in sources.prompt_rows.items():
                if shard.group == generator and shard not in lost:
                    is_absent[prompts] = False
            absent = np.flatnonzero(is_absent)
        unknown = max(sum(file.rows for file in broken) - len(absent), 0)
        reason = RowError(
            "missing_image",
            f"generator {generator} has no image for this prompt; generate it, or set "
            "benchmark.require_every_prompt=false",
            retryable=True,
        )
        if broken:
            reason = RowError("broken_file", broken[-1].message, retryable=True)
        error = pa.array([error_to_dict(reason)], schemas.ERROR)
        for first in range(0, len(absent), MAX_PART_ROWS):
            yield MissingRows(metric, generator, error, ids.take(pa.array(absent[first : first + MAX_PART_ROWS])))
        for first in range(0, unknown, MAX_PART_ROWS):
            no_prompts = pa.nulls(min(unknown - first, MAX_PART_ROWS), ids.type)
            yield MissingRows(metric, generator, error, no_prompts)


def _remove_other_parts(store: Store, paths: Sequence[str], counted: Sequence[CountedPart], folder: str) -> None:
    """Remove the folder's parts that are not in `paths`: an earlier round with broken cells may have left some.

    Also remove the run's error tables, except those of parts with failures. If every row has a score, write an empty
    error table.
    """
    failed = {make_errors_part_path(path) for path, part in zip(paths, counted, strict=True) if len(part.failures)}
    if not failed:
        nothing = make_errors_part_path(f"{folder}/00000.parquet")
        store.write_table(nothing, schemas.ERRORS.empty_table())
        failed = {nothing}
    errors = get_errors_path(folder.rpartition("/")[0])
    for path in {*store.files(folder), *store.files(errors)} - failed - set(paths):
        store.remove(path)

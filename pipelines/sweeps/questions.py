"""Writes the questions that the metrics of a sweep ask about prompts, before there are any images."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa

from plumbline.operators.base.usage import Usage
from plumbline.operators.results.question_quality import QuestionQuality, assess_questions
from plumbline.pipelines.plans.costs import Cost, sum_costs
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.running.events import Watch
from plumbline.pipelines.store.cells import Outcome, PlannedCell, is_draft
from plumbline.pipelines.store.reused_rows import NOT_TRIED_ERROR
from plumbline.pipelines.store.store import BrokenCellError
from plumbline.pipelines.sweeps.computing import Inspection, compute_and_repair, register_sweep, sum_usage
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep

Cells = Sequence[PlannedCell]
T = TypeVar("T")


class WrittenQuestions(NamedTuple):
    """Quality and cost of the questions for a sweep's metrics, and the metrics for which writing failed."""

    quality: Mapping[str, QuestionQuality]
    """Quality of the questions, by metric."""
    cells: Mapping[str, tuple[str, ...]]
    """Paths of the questions cells, relative to the store, by metric."""
    failed: Mapping[str, str]
    """Reason why cells could not be computed, by metric."""
    usage: Mapping[str, Usage]
    """Tokens and calls used by this job, by node."""
    costs: Mapping[str, Cost]


def plan_questions(config: SweepConfig) -> PlannedSweep:
    """Plan only the question and entailment cells, like `plan_sweep`."""
    return plan_sweep(config, wanted=("questions", "entailment"))


def write_questions(planned: PlannedSweep, watch: Watch) -> WrittenQuestions:
    """Compute the missing cells and assess the questions of every metric."""
    with register_sweep(planned, watch) as (planned, watch):
        planned, outcomes, written = compute_and_repair(planned, watch, _inspect_questions)
    usage = sum_usage(planned.plan, outcomes)
    return written._replace(usage=usage, costs=sum_costs(planned.plan, usage))


def _inspect_questions(planned: PlannedSweep, outcomes: Mapping[str, Outcome]) -> Inspection[WrittenQuestions]:
    """Return an Inspection with the assessed questions, or with the paths of cells that cannot be used."""
    quality: dict[str, QuestionQuality] = {}
    failed: dict[str, str] = {}
    broken: set[str] = set()
    questions, entailment = (
        planned.plan.select_prompt_cells("questions"),
        planned.plan.select_prompt_cells("entailment"),
    )

    def assess_metric(name: str) -> QuestionQuality:
        threshold = planned.config.metrics[name].list_score_options().get("threshold")
        asked, entailed = read_cells(questions[name], planned, outcomes), entailment.get(name)
        entailments = read_cells(entailed, planned, outcomes) if entailed else None
        return assess_questions(planned.sources.prompts, asked, entailments, threshold=threshold)

    for name, asked in questions.items():
        cells = (*asked, *entailment.get(name, ()))
        inspection = read_if_complete(planned, outcomes, cells, partial(assess_metric, name))
        broken |= inspection.broken
        if inspection.result is not None:
            quality[name] = inspection.result
        else:
            failed[name] = inspection.message
    paths = {name: tuple(cell.path for cell in cells) for name, cells in questions.items()}
    return Inspection(WrittenQuestions(quality, paths, failed, {}, {}), broken)


def read_if_complete(
    planned: PlannedSweep, outcomes: Mapping[str, Outcome], cells: Cells, make: Callable[[], T]
) -> Inspection[T | None]:
    """Return an Inspection with the result of `make` if all of the cells exist, otherwise with the reason."""
    if any(cell in planned.plan.untried for cell in cells):
        return Inspection(None, message=NOT_TRIED_ERROR.message)
    computed = [outcomes[cell.path] for cell in cells if cell.path in outcomes]
    failures = [outcome for outcome in computed if outcome.state == "failed"]
    if failures:
        return Inspection(None, {path for failure in failures for path in failure.broken}, failures[0].message)
    try:
        return Inspection(make())
    except BrokenCellError as error:
        return Inspection(None, {error.path}, str(error))


def read_cells(cells: Cells, planned: PlannedSweep, outcomes: Mapping[str, Outcome]) -> pa.Table:
    tables = [planned.store.read(cell.path, draft=is_draft(cell.path, outcomes)) for cell in cells]
    return pa.concat_tables(tables, promote_options="default")

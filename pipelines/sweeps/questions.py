"""The questions of a sweep's metrics about a benchmark's prompts, written before there are images."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from plumbline.operators.base.usage import Usage
from plumbline.operators.results.question_quality import QuestionQuality, assess
from plumbline.pipelines.plans.costs import Cost, node_costs
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.running.events import Watch
from plumbline.pipelines.store.cells import Outcome, PlannedCell, is_draft
from plumbline.pipelines.store.reused_rows import NOT_TRIED
from plumbline.pipelines.store.store import BrokenCell
from plumbline.pipelines.sweeps.computing import Inspection, compute_whole, model_usage, registered_sweep
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep

Cells = Sequence[PlannedCell]
T = TypeVar("T")


class WrittenQuestions(NamedTuple):
    """The questions that are in the store."""

    quality: Mapping[str, QuestionQuality]
    """Quality of the questions, by metric."""
    cells: Mapping[str, tuple[str, ...]]
    """Paths of the questions cells relative to the store, by metric."""
    failed: Mapping[str, str]
    """Reason why some cells could not be computed, by metric."""
    usage: Mapping[str, Usage]
    """Tokens and calls of this job, by node."""
    costs: Mapping[str, Cost]
    """Their cost, by node."""


def plan_questions(config: SweepConfig) -> PlannedSweep:
    """Plan the cells of questions and entailment only, as plan_sweep does."""
    return plan_sweep(config, wanted=("questions", "entailment"))


def write_questions(planned: PlannedSweep, watch: Watch) -> WrittenQuestions:
    """Compute the missing cells and assess the questions of every metric."""
    with registered_sweep(planned, watch) as (planned, watch):
        planned, outcomes, written = compute_whole(planned, watch, _inspect)
    usage = model_usage(planned.plan, outcomes)
    return written._replace(usage=usage, costs=node_costs(planned.plan, usage))


def _inspect(planned: PlannedSweep, outcomes: Mapping[str, Outcome]) -> Inspection[WrittenQuestions]:
    """Assess the questions cells, or return the paths of unusable cells."""
    quality: dict[str, QuestionQuality] = {}
    failed: dict[str, str] = {}
    broken: set[str] = set()
    questions, entailment = planned.plan.prompt_cells("questions"), planned.plan.prompt_cells("entailment")
    for name, asked in questions.items():
        entailed = entailment.get(name, ())
        assess_metric = partial(_assess, planned, outcomes, name, asked, entailed)
        made, message, unusable = read_if_complete(planned, outcomes, (*asked, *entailed), assess_metric)
        broken |= unusable
        if made is not None:
            quality[name] = made
        else:
            failed[name] = message
    places = {name: tuple(cell.path for cell in cells) for name, cells in questions.items()}
    return Inspection(WrittenQuestions(quality, places, failed, {}, {}), broken)


def _assess(
    planned: PlannedSweep, outcomes: Mapping[str, Outcome], name: str, asked: Cells, entailed: Cells
) -> QuestionQuality:
    threshold = planned.config.metrics[name].scoring().get("threshold")
    entailments = read_cells(entailed, planned, outcomes) if entailed else None
    return assess(planned.sources.prompts, read_cells(asked, planned, outcomes), entailments, threshold=threshold)


class CellsRead(NamedTuple, Generic[T]):
    """The result of reading cells, or the reason why it is missing."""

    made: T | None
    message: str = ""
    broken: frozenset[str] = frozenset()
    """Paths of the cells that cannot be used."""


def read_if_complete(
    planned: PlannedSweep, outcomes: Mapping[str, Outcome], cells: Cells, make: Callable[[], T]
) -> CellsRead[T]:
    """Return the result of `make` if all of the cells exist, else the reason."""
    computed = [outcomes[cell.path] for cell in cells if cell.path in outcomes]
    failures = [outcome for outcome in computed if outcome.state == "failed"]
    if any(cell in planned.plan.untried for cell in cells):
        return CellsRead(None, NOT_TRIED.message)
    if failures:
        return CellsRead(None, failures[0].message, frozenset(path for one in failures for path in one.broken))
    try:
        return CellsRead(make())
    except BrokenCell as error:
        return CellsRead(None, str(error), frozenset({error.path}))


def read_cells(cells: Cells, planned: PlannedSweep, outcomes: Mapping[str, Outcome]) -> pa.Table:
    """Return the rows of all cells, including drafts."""
    tables = [planned.store.read(cell.path, draft=is_draft(cell.path, outcomes)) for cell in cells]
    return pa.concat_tables(tables, promote_options="default")

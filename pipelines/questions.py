"""Questions alone: what a sweep's metrics would ask about a benchmark's prompts, written ahead of any image."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa

from operators.metrics.gecko import GeckoConfig
from operators.models.calls import Usage
from operators.question_quality import QuestionQuality, assess
from pipelines.cells import Cell, Outcome
from pipelines.config import SweepConfig
from pipelines.progress import NodeProgress
from pipelines.sweep import PlannedSweep, compute, model_usage, plan_sweep


class WrittenQuestions(NamedTuple):
    """What stands in the store."""

    quality: Mapping[str, QuestionQuality]
    """By metric."""
    cells: Mapping[str, tuple[str, ...]]
    """By metric, where its questions stand, relative to the store."""
    failed: Mapping[str, str]
    """By metric, why some of its cells could not be computed."""
    usage: Mapping[str, Usage]


def plan_questions(config: SweepConfig) -> PlannedSweep:
    """As pipelines.sweep.plan_sweep, but what is wanted are the questions and their entailment."""
    return plan_sweep(config, wanted=("questions", "entailment"))


def write_questions(planned: PlannedSweep, report: Callable[[Mapping[str, NodeProgress]], None]) -> WrittenQuestions:
    """Computes what is missing and looks at the questions of every metric."""
    outcomes = compute(planned, report)
    metrics = {name: planned.plan.questions[name] for name in planned.config.metrics if name in planned.plan.questions}
    failed = {
        name: outcomes[cell.path].message
        for name, cells in metrics.items()
        for cell in cells
        if cell.path in outcomes and outcomes[cell.path].state == "failed"
    }
    quality = {name: _assess(planned, name, cells, outcomes) for name, cells in metrics.items() if name not in failed}
    places = {name: tuple(cell.path for cell in cells if cell.stage == "questions") for name, cells in metrics.items()}
    return WrittenQuestions(quality, places, failed, model_usage(planned.plan, outcomes))


def _assess(
    planned: PlannedSweep, name: str, cells: tuple[Cell, ...], outcomes: Mapping[str, Outcome]
) -> QuestionQuality:
    def read(stage: str) -> pa.Table | None:
        mine = [cell for cell in cells if cell.stage == stage]
        tables = [planned.store.read(cell.path, draft=_is_draft(cell, outcomes)) for cell in mine]
        return pa.concat_tables(tables, promote_options="default") if tables else None

    metric = planned.config.metrics[name]
    threshold = metric.threshold if isinstance(metric, GeckoConfig) else None
    questions = read("questions")
    assert questions is not None, "every metric in the plan has questions"
    return assess(planned.sources.prompts, questions, read("entailment"), threshold=threshold)


def _is_draft(cell: Cell, outcomes: Mapping[str, Outcome]) -> bool:
    return cell.path in outcomes and outcomes[cell.path].state == "draft"

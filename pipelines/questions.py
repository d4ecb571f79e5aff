"""Questions alone: what a sweep's metrics would ask about a benchmark's prompts, written ahead of any image."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from operators.models.calls import Usage
from operators.question_quality import QuestionQuality, assess
from pipelines.cells.cells import Outcome, is_draft
from pipelines.cells.store import BrokenCell
from pipelines.config import SweepConfig
from pipelines.running.progress import NodeProgress
from pipelines.sweep import Looked, PlannedSweep, compute_whole, model_usage, plan_sweep


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
    planned, outcomes, written = compute_whole(planned, report, _look)
    return written._replace(usage=model_usage(planned.plan, outcomes))


def _look(planned: PlannedSweep, outcomes: Mapping[str, Outcome]) -> Looked[WrittenQuestions]:
    """What the questions cells hold, and which of them cannot be used."""
    quality: dict[str, QuestionQuality] = {}
    failed: dict[str, str] = {}
    broken: set[str] = set()
    for name, of_stage in planned.plan.of_prompts.items():
        if "questions" not in of_stage:
            continue
        computed = [outcomes[path] for paths in of_stage.values() for path in paths if path in outcomes]
        failures = [outcome for outcome in computed if outcome.state == "failed"]
        try:
            if failures:
                failed[name] = failures[0].message
                broken.update(path for failure in failures for path in failure.broken)
            else:
                quality[name] = _assess(planned, name, of_stage, outcomes)
        except BrokenCell as error:
            failed[name] = str(error)
            broken.add(error.path)
    places = {
        name: of_stage["questions"] for name, of_stage in planned.plan.of_prompts.items() if "questions" in of_stage
    }
    return Looked(WrittenQuestions(quality, places, failed, {}), broken)


def _assess(
    planned: PlannedSweep, name: str, of_stage: Mapping[str, Sequence[str]], outcomes: Mapping[str, Outcome]
) -> QuestionQuality:
    def read(stage: str) -> pa.Table | None:
        tables = [planned.store.read(path, draft=is_draft(path, outcomes)) for path in of_stage.get(stage, ())]
        return pa.concat_tables(tables, promote_options="default") if tables else None

    threshold = planned.config.metrics[name].doubted_below
    questions = read("questions")
    assert questions is not None, "every metric in the plan has questions"
    return assess(planned.sources.prompts, questions, read("entailment"), threshold=threshold)

"""Content of the page that shows a study's progress."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from plumbline.operators.base.sentences import format_count, format_quantity
from plumbline.operators.statistics.options import Sampling
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.label_plan import format_pair
from plumbline.plugins.rating.progress import (
    PairProgress,
    TemplateProgress,
    find_pair_progress,
    find_template_progress,
    rank_generators,
)
from plumbline.plugins.rating.queue import Queue, QueueEvaluation
from plumbline.plugins.rating.raters import find_agreement, judge_raters

INTERVAL_SAMPLING = Sampling()


class ShownPair(NamedTuple):
    """A pair of generators as the progress page shows it."""

    template: str
    row: Sequence[str]
    """Cells of the pair's row in the table; the columns are those of jobs.labels."""
    minutes: float


def make_progress_variables(queue: Queue, answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the progress page's template variables, keyed by name; `answers` include repeats and gold questions."""
    snapshot = queue.evaluate(answers, growth=0)
    raters, confidence, metric = queue.sequencing.raters, queue.options.confidence, queue.options.metric
    templates = find_template_progress(snapshot.ratings, raters)
    pairs = find_pair_progress(snapshot.pairs, templates, raters, confidence)
    return {
        "answers": len(answers),
        "standing": _describe_progress(snapshot, templates, pairs),
        "templates": templates,
        "agreement": {row.template: row for row in find_agreement(snapshot.ratings, INTERVAL_SAMPLING)},
        "standings": rank_generators(snapshot.pairs),
        "pairs": [ShownPair(row.template, format_pair(row.pair, confidence.chance), row.minutes) for row in pairs],
        "alpha": confidence.alpha,
        "metric": None if metric is None else metric.metric,
        "raters": judge_raters(snapshot.ratings, answers),
    }


def _describe_progress(
    snapshot: QueueEvaluation, templates: Sequence[TemplateProgress], pairs: Sequence[PairProgress]
) -> str:
    answered, required = sum(row.given for row in templates), sum(row.wanted for row in templates)
    answers = f"{format_count(answered)} of {format_quantity(required, 'answer')}"
    if snapshot.finished:
        return f"Every pair of generators differs clearly, and the study is done: {answers}."
    if not pairs:
        return f"{answers}."
    decided = sum(row.pair.better is not None for row in pairs)
    n_pairs = format_quantity(len(pairs), "pair")
    return f"{decided} of {n_pairs} of generators decided; {answers}.{_describe_next_pair(pairs)}"


def _describe_next_pair(pairs: Sequence[PairProgress]) -> str:
    """Return a sentence on the pair closest to a decision and the effort it needs; empty if there is no such pair."""
    open_pairs = [row for row in pairs if row.prompts and row.minutes == row.minutes]
    if not open_pairs:
        return ""
    soonest = min(open_pairs, key=lambda row: row.minutes)
    prompts, minutes = (
        format_quantity(soonest.prompts or 0, "further prompt"),
        format_quantity(math.ceil(soonest.minutes), "minute"),
    )
    names = f"{soonest.pair.a} and {soonest.pair.b} by {soonest.template}"
    return f" Closest to a decision: {names}, {prompts} and about {minutes} of rating if the estimate is right."

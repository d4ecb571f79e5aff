"""What the page of a study's progress says."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from plumbline.operators.base.sentences import count, plural
from plumbline.operators.statistics.options import Sampling
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.label_plan import format_pair
from plumbline.plugins.rating.progress import (
    PairProgress,
    TemplateProgress,
    pair_progress,
    standings,
    template_progress,
)
from plumbline.plugins.rating.queue import Look, Queue
from plumbline.plugins.rating.raters import agreement, judge_raters

SAMPLING = Sampling()


class ShownProgress(NamedTuple):
    """A pair of generators as the page shows it."""

    template: str
    row: Sequence[str]
    """As jobs.labels shows it."""
    minutes: float


def progress_page(queue: Queue, answers: Sequence[Answer]) -> dict[str, Any]:
    """The page's content, of all answers with repeats and gold questions."""
    look = queue.look(answers, growth=0)
    raters, telling, beside = queue.sequencing.raters, queue.options.telling, queue.options.beside
    templates = template_progress(look.study, raters)
    pairs = pair_progress(look.pairs, templates, raters, telling)
    return {
        "answers": len(answers),
        "standing": standing(look, templates, pairs),
        "templates": templates,
        "agreement": {one.template: one for one in agreement(look.study, SAMPLING)},
        "standings": standings(look.pairs),
        "pairs": [ShownProgress(one.template, format_pair(one.pair, telling.chance), one.minutes) for one in pairs],
        "alpha": telling.alpha,
        "metric": None if beside is None else beside.metric,
        "raters": judge_raters(look.study, answers),
    }


def standing(look: Look, templates: Sequence[TemplateProgress], pairs: Sequence[PairProgress]) -> str:
    """How far the study has come, in a sentence or two."""
    given, wanted = (sum(getattr(one, name) for one in templates) for name in ("given", "wanted"))
    there = f"{count(given)} of {plural(wanted, 'answer')} are there"
    if look.finished:
        return f"Every pair of generators is told apart, and the study is done: {there}."
    if not pairs:
        return f"{there[0].upper()}{there[1:]}."
    told = sum(one.pair.better is not None for one in pairs)
    return f"Told apart: {told} of {plural(len(pairs), 'pair')}; {there}.{_next(pairs)}"


def _next(pairs: Sequence[PairProgress]) -> str:
    """Which pair is told apart next, and what that takes."""
    able = [one for one in pairs if one.prompts and one.minutes == one.minutes]
    if not able:
        return ""
    soonest = min(able, key=lambda one: one.minutes)
    prompts, minutes = plural(soonest.prompts or 0, "further prompt"), plural(math.ceil(soonest.minutes), "minute")
    takes = f"{prompts}, about {minutes} of rating"
    return f" Next, if they differ as it seems, {soonest.pair.a} and {soonest.pair.b} by {soonest.template}: {takes}."

"""How far a study has come: what is answered, whom people find better so far, and which tasks would tell it sooner."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd

from plumbline.operators.base.bounds import BoundsChecked, Probability
from plumbline.operators.statistics.levels import SIGNIFICANCE
from plumbline.plugins.rating.label_plan import PairLabels, estimate_pairs, pair_differences, wanted_images
from plumbline.plugins.rating.numbers import Rated, pairs_rated
from plumbline.plugins.rating.question_templates import TEMPLATES
from plumbline.plugins.rating.tasks import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Telling(BoundsChecked):
    """How surely generators are to be told apart."""

    alpha: Probability = SIGNIFICANCE
    """The probability that any interval is wrong, over all pairs and templates, however often one looks."""
    chance: Probability = 0.8
    """With which the answers that are asked for show a difference, if it is what it seems."""


class TemplateProgress(NamedTuple):
    """The answers to one template's tasks, gold questions and repeats left out."""

    template: str
    tasks: int
    wanted: int
    """Answers of all tasks."""
    given: int
    """Of those; what a task has beyond its number is not counted."""
    seconds: float
    """Median of an answer; nan of none."""


class Standing(NamedTuple):
    """A generator by one template, beside the others."""

    template: str
    generator: str
    difference: float
    """Of people's mean answers, to those about the other generators on the same prompts, mean over these generators;
    nan where none of them shares a rated prompt."""
    better_than: Sequence[str]
    """The generators from which it is told apart, as the better one."""


class PairProgress(NamedTuple):
    """Two generators by one template, and what telling them apart still takes."""

    template: str
    pair: PairLabels
    prompts: int | None
    """Further prompts to rate: 0 of a decided pair, None where all that there are would not do."""
    minutes: float
    """Of rating that these take, of all raters together, at their pace so far; nan where it is not known."""


def template_progress(study: Rated, raters: int) -> list[TemplateProgress]:
    """What is wanted and there by each template, where so many raters are wanted for each task."""
    return [
        _template_progress(template, study, raters) for template in dict.fromkeys(task.template for task in study.tasks)
    ]


def _template_progress(template: str, study: Rated, raters: int) -> TemplateProgress:
    tasks = [task for task in study.tasks if task.template == template and task.gold is None]
    answers = study.answers[study.answers["template"] == template]
    by_task = answers["task_id"].value_counts()
    given = int(np.minimum(by_task, raters).sum())
    return TemplateProgress(template, len(tasks), raters * len(tasks), given, float(answers["seconds"].median()))


def pairs_so_far(study: Rated, scores: pd.DataFrame | None, telling: Telling) -> dict[str, list[PairLabels]]:
    """Return an estimate for every two generators, by template, from people's answers and a metric's scores.

    `scores` are prompts x generators, where more is better; without them people's answers count alone. The pairs of all
    templates share alpha evenly.
    """
    rated = {
        template: pairs_rated(study, template) for template in dict.fromkeys(task.template for task in study.tasks)
    }
    every = sum(len(people.columns) for people in rated.values())
    level = 1 - telling.alpha / max(every, 1)
    return {
        template: list(estimate_pairs(people, _by_metric(people, scores), level, TEMPLATES[template].widest))
        for template, people in rated.items()
    }


def _by_metric(people: pd.DataFrame, scores: pd.DataFrame | None) -> pd.DataFrame:
    """The metric's differences on the same prompts and pairs; zeros, which say nothing, where it lacks a generator."""
    nothing = pd.DataFrame(0.0, index=people.index, columns=people.columns)
    if scores is None:
        return nothing
    differences = pair_differences(scores.reindex(index=people.index, columns=sorted(scores)))
    known = [pair for pair in people if pair in differences]
    nothing[known] = differences[known]
    return nothing


def standings(pairs: Mapping[str, Sequence[PairLabels]]) -> list[Standing]:
    """Every generator by each template, the best so far first."""
    return [one for template, of_template in pairs.items() for one in _standings(template, of_template)]


def _standings(template: str, pairs: Sequence[PairLabels]) -> list[Standing]:
    differences: dict[str, list[float]] = {name: [] for pair in pairs for name in (pair.a, pair.b)}
    better: dict[str, list[str]] = {name: [] for name in differences}
    for pair in pairs:
        if pair.rated:
            mean = float(pair.labels.mean())
            differences[pair.a].append(mean)
            differences[pair.b].append(-mean)
        if pair.better is not None:
            better[pair.better].append(pair.b if pair.better == pair.a else pair.a)
    standing = [
        Standing(template, name, fmean(of) if of else math.nan, better[name]) for name, of in differences.items()
    ]
    return sorted(standing, key=lambda one: (math.isnan(one.difference), -one.difference))


def pair_progress(
    pairs: Mapping[str, Sequence[PairLabels]], templates: Sequence[TemplateProgress], raters: int, telling: Telling
) -> list[PairProgress]:
    """What telling each pair apart still takes."""
    seconds = {one.template: one.seconds for one in templates}
    return [
        PairProgress(template, pair, prompts, _minutes(template, prompts, raters * seconds[template]))
        for template, of_template in pairs.items()
        for pair in of_template
        for prompts in [0 if pair.better else pair.needed(telling.chance)]
    ]


def _minutes(template: str, prompts: int | None, seconds: float) -> float:
    images_a_task = TEMPLATES[template].images
    return math.nan if prompts is None else prompts * (2 // images_a_task) * seconds / 60


def all_decided(pairs: Mapping[str, Sequence[PairLabels]]) -> bool:
    """Whether every pair is told apart by every template."""
    every = [pair for of_template in pairs.values() for pair in of_template]
    return bool(every) and all(pair.better is not None for pair in every)


def urgent_tasks(
    tasks: Sequence[Task],
    pairs: Mapping[str, Sequence[PairLabels]],
    rounds: Sequence[Sequence[Task]],
    begun: Collection[str],
    chance: float,
) -> set[str]:
    """The tasks that would tell generators apart soonest, by their ids.

    These are the tasks of pairs that are not decided: those that are `begun`, so that they get all their answers, and
    the next in the order of prompts, as many as are needed. Chance has drawn that order: which pairs are undecided
    says what is asked first, and nothing else of the answers does.
    """
    order = {
        prompt: place for place, prompt in enumerate(dict.fromkeys(task.prompt_id for of in rounds for task in of))
    }
    wanted = {template: _wanted(tasks, template, of_template, order, chance) for template, of_template in pairs.items()}
    undecided = {
        template: {(pair.a, pair.b) for pair in of_template if pair.better is None}
        for template, of_template in pairs.items()
    }
    return {
        task.task_id
        for task in tasks
        if task.gold is None
        and _may_tell(task, undecided.get(task.template, set()))
        and (task.task_id in begun or all((task.prompt_id, name) in wanted[task.template] for name in task.generators))
    }


def _wanted(
    tasks: Sequence[Task], template: str, pairs: Sequence[PairLabels], order: Mapping[str, int], chance: float
) -> set[tuple[str, str]]:
    prompts = sorted({task.prompt_id for task in tasks if task.template == template and task.gold is None})
    places = sorted(range(len(prompts)), key=lambda place: order[prompts[place]])
    return set(wanted_images(pairs, prompts, places, chance))


def _may_tell(task: Task, undecided: Collection[tuple[str, str]]) -> bool:
    """Whether an answer to a task says something of a pair that is not decided."""
    if len(task.generators) == 1:
        return any(task.generators[0] in pair for pair in undecided)
    return tuple(sorted(task.generators)) in undecided

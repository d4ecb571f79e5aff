"""Computes a study's progress: answers by template, estimates for pairs of generators, and the most urgent tasks."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd

from plumbline.operators.base.bounds import BoundsChecked, Probability
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.plugins.rating.label_plan import PairLabels, estimate_pairs, select_images, subtract_pairs
from plumbline.plugins.rating.numbers import StudyRatings, find_differences
from plumbline.plugins.rating.question_templates import TEMPLATES
from plumbline.plugins.rating.tasks import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorProbabilities(BoundsChecked):
    """Error probabilities of decisions about pairs of generators."""

    alpha: Probability = SIGNIFICANCE
    """Probability that any interval is wrong, over all pairs and templates, no matter how often you check."""
    chance: Probability = 0.8
    """Probability that the requested answers show a difference, assuming that it is as large as it seems."""


class TemplateProgress(NamedTuple):
    """Counts of the answers to one template's tasks, except answers to gold questions and repeats."""

    template: str
    tasks: int
    wanted: int
    """Number of answers required for all tasks together."""
    given: int
    """Number of answers received; surplus answers to a task are not counted."""
    seconds: float
    """Median time per answer; nan if there are no answers."""


class RankedGenerator(NamedTuple):
    """A generator's rank under one template."""

    template: str
    generator: str
    difference: float
    """Mean answer for this generator minus that for another generator on the same prompts, averaged over all other
    generators; nan if no rated prompt is shared.
    """
    better_than: Sequence[str]
    """Generators that are clearly worse."""


class PairProgress(NamedTuple):
    """Two generators compared under one template, and the rating that is still needed to decide between them."""

    template: str
    pair: PairLabels
    prompts: int | None
    """Number of additional prompts to rate: 0 if the pair is decided, None if even all prompts would not be enough."""
    minutes: float
    """Total rating time in minutes, over all raters, at their current pace; nan if unknown."""


def find_template_progress(ratings: StudyRatings, raters: int) -> list[TemplateProgress]:
    """Count each template's required and existing answers, given the number of raters per task."""
    rows = []
    for template in _list_templates(ratings):
        n_tasks = sum(task.template == template and task.gold is None for task in ratings.tasks)
        answers = ratings.answers[ratings.answers["template"] == template]
        given = int(np.minimum(answers["task_id"].value_counts(), raters).sum())
        seconds = float(answers["seconds"].median())
        rows.append(TemplateProgress(template, n_tasks, raters * n_tasks, given, seconds))
    return rows


def _list_templates(ratings: StudyRatings) -> list[str]:
    return list(dict.fromkeys(task.template for task in ratings.tasks))


def estimate_differences(
    ratings: StudyRatings, scores: pd.DataFrame | None, confidence: ErrorProbabilities
) -> dict[str, list[PairLabels]]:
    """Estimate the difference between each pair of generators by template, from people's answers and a metric's scores.

    `scores` has the shape prompts x generators, and higher is better; None uses only people's answers. Alpha is divided
    evenly among the pairs of all templates.
    """
    differences = {template: find_differences(ratings, template) for template in _list_templates(ratings)}
    n_pairs = sum(len(people.columns) for people in differences.values())
    level = 1 - confidence.alpha / max(n_pairs, 1)
    return {
        template: list(estimate_pairs(people, _match_metric(people, scores), level, TEMPLATES[template].max_difference))
        for template, people in differences.items()
    }


def _match_metric(people: pd.DataFrame, scores: pd.DataFrame | None) -> pd.DataFrame:
    """Return a metric's differences for the same prompts and pairs; missing differences become 0 and have no effect."""
    result = pd.DataFrame(0.0, index=people.index, columns=people.columns)
    if scores is None:
        return result
    differences = subtract_pairs(scores.reindex(index=people.index, columns=sorted(scores)))
    known = [pair for pair in people if pair in differences]
    result[known] = differences[known]
    return result


def rank_generators(pairs: Mapping[str, Sequence[PairLabels]]) -> list[RankedGenerator]:
    """Return the generators under each template, best first; within a template, those without ratings come last."""
    return [row for template, template_pairs in pairs.items() for row in _rank_by_template(template, template_pairs)]


def _rank_by_template(template: str, pairs: Sequence[PairLabels]) -> list[RankedGenerator]:
    differences: dict[str, list[float]] = {name: [] for pair in pairs for name in (pair.a, pair.b)}
    worse: dict[str, list[str]] = {name: [] for name in differences}
    for pair in pairs:
        if pair.rated:
            mean = float(pair.labels.mean())
            differences[pair.a].append(mean)
            differences[pair.b].append(-mean)
        if pair.better is not None:
            worse[pair.better].append(pair.b if pair.better == pair.a else pair.a)
    rows = [
        RankedGenerator(template, name, fmean(values) if values else math.nan, worse[name])
        for name, values in differences.items()
    ]
    return sorted(rows, key=lambda row: (math.isnan(row.difference), -row.difference))


def find_pair_progress(
    pairs: Mapping[str, Sequence[PairLabels]],
    templates: Sequence[TemplateProgress],
    raters: int,
    confidence: ErrorProbabilities,
) -> list[PairProgress]:
    """Return the prompts and minutes of rating that are still needed to decide each pair of generators, by template."""
    seconds = {row.template: row.seconds for row in templates}
    rows = []
    for template, template_pairs in pairs.items():
        tasks_per_prompt = 2 // TEMPLATES[template].images
        for pair in template_pairs:
            prompts = 0 if pair.better else pair.count_missing_prompts(confidence.chance)
            answers = math.nan if prompts is None else prompts * tasks_per_prompt * raters
            rows.append(PairProgress(template, pair, prompts, answers * seconds[template] / 60))
    return rows


def are_all_decided(pairs: Mapping[str, Sequence[PairLabels]]) -> bool:
    """Return True if every pair is decided under every template."""
    all_pairs = [pair for template_pairs in pairs.values() for pair in template_pairs]
    return bool(all_pairs) and all(pair.better is not None for pair in all_pairs)


def find_urgent_tasks(
    tasks: Sequence[Task],
    pairs: Mapping[str, Sequence[PairLabels]],
    rounds: Sequence[Sequence[Task]],
    started: Collection[str],
    chance: float,
) -> set[str]:
    """Return the ids of the tasks to ask first, so that pairs of generators are decided as early as possible.

    All of them are about undecided pairs. Tasks that already have some answers are included, so that they get all the
    answers they need. Other tasks are included if they are about one of the next prompts; the number of these prompts
    is estimated. The order of prompts is random and does not depend on the answers, so the intervals stay valid.
    """
    prompts = dict.fromkeys(task.prompt_id for part in rounds for task in part)
    order = {prompt: place for place, prompt in enumerate(prompts)}
    needed = {template: _find_needed_images(tasks, template, found, order, chance) for template, found in pairs.items()}
    undecided = {
        template: {(pair.a, pair.b) for pair in found if pair.better is None} for template, found in pairs.items()
    }
    return {
        task.task_id
        for task in tasks
        if task.gold is None
        and _compares_any_pair(task, undecided.get(task.template, set()))
        and (
            task.task_id in started or all((task.prompt_id, name) in needed[task.template] for name in task.generators)
        )
    }


def _find_needed_images(
    tasks: Sequence[Task], template: str, pairs: Sequence[PairLabels], order: Mapping[str, int], chance: float
) -> set[tuple[str, str]]:
    prompts = sorted({task.prompt_id for task in tasks if task.template == template and task.gold is None})
    places = sorted(range(len(prompts)), key=lambda place: order[prompts[place]])
    return set(select_images(pairs, prompts, places, chance))


def _compares_any_pair(task: Task, undecided: Collection[tuple[str, str]]) -> bool:
    if len(task.generators) == 1:
        return any(task.generators[0] in pair for pair in undecided)
    return tuple(sorted(task.generators)) in undecided

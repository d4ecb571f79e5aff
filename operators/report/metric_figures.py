"""What a report says of one metric, made of its rows, which are read once and those of one generator at a time."""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from plumbline.operators.base.each import Each, one_by_one
from plumbline.operators.images.generation_settings import Known
from plumbline.operators.metrics.metric import direction
from plumbline.operators.report.charts import Spread, spread_of
from plumbline.operators.report.picked_images import ImagesInView, Places, SeenImages
from plumbline.operators.report.unscored import NOTHING_UNSCORED, Unscored, UnscoredRows
from plumbline.operators.results.comparison import Duel, PromptMeans, bradley_terry, duels, mean_of_each
from plumbline.operators.results.run_scores import Hashes, RunScores, ScoreColumns, among
from plumbline.operators.results.summary import Skills
from plumbline.operators.statistics.repeats import Repeats, pooled, repeats_of


class MetricFigures(NamedTuple):
    """All that the page needs of a metric's rows; it does not grow with them."""

    spreads: Mapping[str, Spread]
    """By generator that has a score."""
    duels: Sequence[Duel] = ()
    """Of a metric that ranks images."""
    repeats: Repeats | None = None
    """How much of the noise is the seed, over the generators that have several images a prompt."""
    ratings: Mapping[str, float] = {}
    """Bradley-Terry ratings by generator, where they were asked for."""
    seen: SeenImages | None = None
    """The images that it scored."""
    unscored: Unscored = NOTHING_UNSCORED
    """The prompts that fail with every generator."""


class Question(NamedTuple):
    """What is asked of a run's metrics."""

    scores: RunScores
    skills: Skills
    places: Places
    """Of the gallery."""
    unranked: Container[str] = ()
    """Metrics by which no image is better than another."""
    falling: Container[str] = ()
    """Those by which a lower score is better."""
    baseline: str = ""
    """The generator with which the others are compared alone."""
    rated: bool = False
    settings: Mapping[str, Known] = {}
    """By generator, where they are to be compared."""


def measure_metrics(question: Question, each: Each = one_by_one) -> dict[str, MetricFigures]:
    """By metric that has rows."""
    metrics = question.scores.metrics
    return dict(zip(metrics, each(measure, metrics, shared=question), strict=True))


def measure(question: Question, metric: str) -> MetricFigures:
    """The figures of one metric."""
    scores = question.scores
    images = ImagesInView(direction(metric, question.falling), question.places)
    means, spreads, repeats = PromptMeans(scores.prompts), {}, list[Repeats]()
    unscored = UnscoredRows(scores.prompts)
    for generator, columns in scores.by_generator(metric):
        spread = spread_of(columns.score, scores.spans.get(metric, (0.0, 1.0)))
        if spread is not None:
            spreads[generator] = spread
        if metric in question.places.metrics:
            images.add(columns)
        unscored.add(generator, columns)
        if metric not in question.unranked:
            means.add(generator, mean_of_each(scores.prompts, columns))
            repeats += _repeats(scores.prompts, columns)
        del columns  # or they would stand beside the next generator's
    return MetricFigures(
        spreads=spreads,
        duels=duels(metric, means, question.skills, question.falling, question.baseline, question.settings),
        repeats=pooled(repeats) if repeats else None,
        ratings=bradley_terry(metric, means, question.falling) if question.rated else {},
        seen=images.seen(),
        unscored=unscored.found(),
    )


def _repeats(prompts: Hashes, columns: ScoreColumns) -> list[Repeats]:
    """Of one generator, where some prompt has several images."""
    place = among(columns.prompt, prompts)
    scored = np.isfinite(columns.score) & (place >= 0)
    found = repeats_of(place[scored], columns.score[scored])
    return [] if found is None else [found]

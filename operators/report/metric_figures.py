"""Computes a report's figures of one metric. Its rows are read once, those of one generator at a time."""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from plumbline.operators.base.ordered_maps import OrderedMap, map_sequentially
from plumbline.operators.images.generation_settings import Known
from plumbline.operators.metrics.metric import direction
from plumbline.operators.report.charts import Spread, spread_of
from plumbline.operators.report.picked_images import GalleryQuotas, ImageCollector, SeenImages
from plumbline.operators.report.unscored import NOTHING_UNSCORED, Unscored, UnscoredRows
from plumbline.operators.results.comparison import Duel, PromptMeans, average_prompts, bradley_terry, compare_generators
from plumbline.operators.results.run_scores import RunScores, find_sorted
from plumbline.operators.results.summary import Skills
from plumbline.operators.statistics.repeats import Repeats, estimate_repeats, pool_repeats


class MetricFigures(NamedTuple):
    """Everything that the page needs of a metric's rows. Its size does not depend on their number."""

    spreads: Mapping[str, Spread]
    """Distributions of the scores, by generator that has a score."""
    duels: Sequence[Duel] = ()
    """Comparisons of generators; empty for a metric that does not rank images."""
    repeats: Repeats | None = None
    """Share of the noise that is due to the seed, over the generators that have several images a prompt."""
    ratings: Mapping[str, float] = {}
    """Bradley-Terry ratings by generator, if they were requested."""
    seen: SeenImages | None = None
    """Images that the metric scored."""
    unscored: Unscored = NOTHING_UNSCORED
    """Prompts that fail with every generator."""


class MetricInputs(NamedTuple):
    """Inputs for the figures of all metrics of a run."""

    scores: RunScores
    skills: Skills
    quotas: GalleryQuotas
    unranked: Container[str] = ()
    """Metrics by which no image is better than another."""
    lower_is_better: Container[str] = ()
    """Metrics by which a lower score is better."""
    baseline: str = ""
    """The only generator with which the others are compared; empty to compare all with each other."""
    rated: bool = False
    """True to compute Bradley-Terry ratings."""
    settings: Mapping[str, Known] = {}
    """Settings by generator. Generators whose settings differ are not compared."""


def measure_metrics(inputs: MetricInputs, each: OrderedMap = map_sequentially) -> dict[str, MetricFigures]:
    """Return the figures of each metric that has rows."""
    metrics = inputs.scores.metrics
    return dict(zip(metrics, each(measure, metrics, shared=inputs), strict=True))


def measure(inputs: MetricInputs, metric: str) -> MetricFigures:
    """Return the figures of one metric."""
    scores = inputs.scores
    images = ImageCollector(direction(metric, inputs.lower_is_better), inputs.quotas)
    means, spreads, repeats = PromptMeans(scores.prompts), {}, list[Repeats]()
    unscored = UnscoredRows(scores.prompts)
    for generator, columns in scores.by_generator(metric):
        spread = spread_of(columns.score, scores.spans.get(metric, (0.0, 1.0)))
        if spread is not None:
            spreads[generator] = spread
        if metric in inputs.quotas.metrics:
            images.add(columns)
        unscored.add(generator, columns)
        if metric not in inputs.unranked:
            means.add(generator, average_prompts(scores.prompts, columns))
            prompt = find_sorted(columns.prompt, scores.prompts)
            scored = np.isfinite(columns.score) & (prompt >= 0)
            if (found := estimate_repeats(prompt[scored], columns.score[scored])) is not None:
                repeats.append(found)
        del columns  # so that the next generator's rows are not in memory at the same time
    return MetricFigures(
        spreads=spreads,
        duels=compare_generators(
            metric, means, inputs.skills, inputs.lower_is_better, inputs.baseline, inputs.settings
        ),
        repeats=pool_repeats(repeats) if repeats else None,
        ratings=bradley_terry(metric, means, inputs.lower_is_better) if inputs.rated else {},
        seen=images.collect(),
        unscored=unscored.collect(),
    )

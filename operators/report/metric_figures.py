"""Computes a report's figures for one metric. The metric's rows are read once, one generator at a time."""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.base.ordered_maps import OrderedMap, map_sequentially
from plumbline.operators.base.spilled import SpilledColumns
from plumbline.operators.images.generation_settings import SettingCounts
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.report.charts import ScoreDistribution, measure_distribution
from plumbline.operators.report.picked_images import CandidateImages, GalleryQuotas, ImageCollector
from plumbline.operators.results.comparison import (
    Duel,
    PromptMeans,
    average_prompts,
    compare_generators,
    compute_bradley_terry,
)
from plumbline.operators.results.run_scores import Hashes, RunScores, ScoreColumns, find_in_sorted
from plumbline.operators.results.summary import Skills
from plumbline.operators.statistics.repeats import RepeatVariances, estimate_repeat_variances, pool_repeats

Counts = NDArray[np.int64]


class UnscoredPrompts(NamedTuple):
    """Prompts that have rows for a metric, but no score for any generator; none if only one generator has rows."""

    prompts: Hashes
    """Hashes of the prompt ids, ascending."""
    n_rows: Counts
    """Number of rows of each prompt, over all generators."""
    row: Counts
    """Index of one row of each prompt in the run's scores."""
    by_generator: Mapping[str, int]
    """Total number of rows of these prompts, by generator."""


NO_UNSCORED_PROMPTS = UnscoredPrompts(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64), {})


class _UnscoredRows:
    """Accumulator that finds prompts without any score on one metric; generators are added one at a time."""

    def __init__(self, prompts: Hashes) -> None:
        """Start without rows; `prompts` contains the hashes of the prompt ids in ascending order."""
        self._prompts = prompts
        self._has_score = np.zeros(len(prompts), np.bool_)
        self._generators: list[str] = []
        self._missing = SpilledColumns()
        """Two columns for each generator: indices of prompts, and indices of rows."""

    def add(self, generator: str, columns: ScoreColumns) -> None:
        if not len(columns.row):
            return
        prompt = find_in_sorted(columns.prompt, self._prompts)
        missing = np.isnan(columns.score)
        self._has_score[prompt[~missing & (prompt >= 0)]] = True
        missing &= prompt >= 0
        self._generators.append(generator)
        self._missing.append(prompt[missing].astype(np.float64))
        self._missing.append(columns.row[missing].astype(np.float64))

    def collect(self) -> UnscoredPrompts:
        if len(self._generators) < 2:
            return NO_UNSCORED_PROMPTS
        n_rows, row = np.zeros(len(self._prompts), np.int64), np.zeros(len(self._prompts), np.int64)
        by_generator = {}
        for number, generator in enumerate(self._generators):
            prompt, own_row = (self._missing.read(2 * number + column).astype(np.int64) for column in (0, 1))
            everywhere = ~self._has_score[prompt]
            by_generator[generator] = int(everywhere.sum())
            n_rows += np.bincount(prompt[everywhere], minlength=len(self._prompts))
            row[prompt[everywhere]] = own_row[everywhere]
        found = n_rows > 0
        return UnscoredPrompts(self._prompts[found], n_rows[found], row[found], by_generator)


class MetricFigures(NamedTuple):
    """Everything that the report needs from a metric's rows, in a size that does not depend on the number of rows."""

    spreads: Mapping[str, ScoreDistribution]
    duels: Sequence[Duel] = ()
    """Comparisons of generators; empty for a metric that does not rank images."""
    repeats: RepeatVariances | None = None
    """Variances within and between prompts, averaged over the generators that have several images per prompt."""
    ratings: Mapping[str, float] = {}
    seen: CandidateImages | None = None
    unscored: UnscoredPrompts = NO_UNSCORED_PROMPTS


class MetricInputs(NamedTuple):
    """A run's scores, and the options from which the report's figures are computed."""

    scores: RunScores
    skills: Skills
    quotas: GalleryQuotas
    unranked: Container[str] = ()
    """Metrics that do not rank images."""
    lower_is_better: Container[str] = ()
    baseline: str = ""
    """If set, other generators are compared with this generator only."""
    rated: bool = False
    settings: Mapping[str, SettingCounts] = {}
    """Settings by generator. Generators with different settings are not compared."""
    chosen: Mapping[str, Sequence[Duel]] = {}
    """By metric, comparisons of generators by a judge's choices between images, instead of by the images' scores."""


def measure_metrics(inputs: MetricInputs, each: OrderedMap = map_sequentially) -> dict[str, MetricFigures]:
    """Return the figures of every metric for which the run has rows, keyed by name; `each` may work in parallel."""
    metrics = inputs.scores.metrics
    return dict(zip(metrics, each(_measure_metric, metrics, shared=inputs), strict=True))


def _measure_metric(inputs: MetricInputs, metric: str) -> MetricFigures:
    scores = inputs.scores
    images = ImageCollector(get_direction(metric, inputs.lower_is_better), inputs.quotas)
    means, spreads, repeats = PromptMeans(scores.prompts), {}, list[RepeatVariances]()
    unscored = _UnscoredRows(scores.prompts)
    for generator, columns in scores.iterate_generators(metric):
        spread = measure_distribution(columns.score, scores.spans.get(metric, (0.0, 1.0)))
        if spread is not None:
            spreads[generator] = spread
        if metric in inputs.quotas.metrics:
            images.add(columns)
        unscored.add(generator, columns)
        if metric not in inputs.unranked:
            means.add(generator, average_prompts(scores.prompts, columns))
            prompt = find_in_sorted(columns.prompt, scores.prompts)
            scored = np.isfinite(columns.score) & (prompt >= 0)
            if (found := estimate_repeat_variances(prompt[scored], columns.score[scored])) is not None:
                repeats.append(found)
        del columns  # so that the next generator's rows are not in memory at the same time
    return MetricFigures(
        spreads=spreads,
        duels=inputs.chosen.get(metric)
        or compare_generators(metric, means, inputs.skills, inputs.lower_is_better, inputs.baseline, inputs.settings),
        repeats=pool_repeats(repeats) if repeats else None,
        ratings=compute_bradley_terry(metric, means, inputs.lower_is_better) if inputs.rated else {},
        seen=images.collect(),
        unscored=unscored.collect(),
    )

"""Correlations of metrics with each other and with properties of prompts ("What makes a good metric?", sec. 3)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.results.run_scores import Hashes, RunScores, ScoreColumns
from plumbline.operators.statistics.agreement import STATISTICS
from plumbline.operators.statistics.bootstrap import MIN_DIFFERING, UNDEFINED, Interval
from plumbline.operators.statistics.levels import CONFIDENCE_QUANTILE

Floats = NDArray[np.float64]


class Correlation(NamedTuple):
    """Spearman's rank correlation of one generator's scores."""

    metric: str
    other: str
    """Another metric, or a property of prompts."""
    kind: str
    """`metric` or `property`, as is `other`."""
    generator: str
    rho: float
    """Spearman's rho; nan if either side is constant."""
    low: float
    high: float
    n: int
    """Number of images for a metric, of prompts for a property."""


class PromptNumbers(NamedTuple):
    """A number of each prompt; prompts are hashes of their ids, ascending."""

    prompts: Hashes
    values: Floats

    def look_up(self, prompts: Hashes) -> Floats:
        """Return the numbers of these prompts (n,); nan if a prompt has none."""
        if not len(self.prompts):
            return np.full(len(prompts), math.nan)
        rows = np.minimum(np.searchsorted(self.prompts, prompts), len(self.prompts) - 1)
        return np.where(self.prompts[rows] == prompts, self.values[rows], math.nan)


def prompt_numbers(prompts: Hashes, values: Sequence[float]) -> PromptNumbers:
    """Return the numbers of prompts (n,) in any order; if a prompt comes twice, its first number counts."""
    unique, rows = np.unique(prompts, return_index=True)
    return PromptNumbers(unique, np.asarray(values, np.float64)[rows])


def correlate_metrics(scores: RunScores, metrics: Sequence[str]) -> Iterator[Correlation]:
    """Correlate every two metrics, by generator, over the images that have both scores."""
    for metric, other in combinations(metrics, 2):
        sides = scores.select_rows(metric).scored(), scores.select_rows(other).scored()
        for code, generator in enumerate(scores.generators):
            a, b = (columns.where(columns.generator == code) for columns in sides)
            _, rows_a, rows_b = np.intersect1d(a.image, b.image, return_indices=True)
            prompts = len(np.unique(a.prompt[rows_a]))
            yield _correlate(metric, other, "metric", generator, a.score[rows_a], b.score[rows_b], prompts)


def correlate_properties(
    scores: RunScores, properties: Mapping[str, Mapping[str, PromptNumbers]]
) -> Iterator[Correlation]:
    """Correlate the prompts' mean scores by each metric with each of its properties of prompts, by generator."""
    for metric, numbers_by_name in properties.items():
        columns = scores.select_rows(metric).scored()
        for code, generator in enumerate(scores.generators):
            means = prompt_means(columns.where(columns.generator == code))
            for name, numbers in numbers_by_name.items():
                values = numbers.look_up(means.prompts)
                has = np.isfinite(values)
                yield _correlate(metric, name, "property", generator, means.values[has], values[has], int(has.sum()))


def prompt_means(columns: ScoreColumns) -> PromptNumbers:
    """Return the mean score of each prompt's images."""
    prompts, codes = np.unique(columns.prompt, return_inverse=True)
    sums, counts = (np.bincount(codes, weights, len(prompts)) for weights in (columns.score, None))
    return PromptNumbers(prompts, sums / np.maximum(counts, 1))


def rho_of_value_means(means: PromptNumbers, numbers: PromptNumbers) -> float:
    """Return the rank correlation of a property's distinct values with the mean score of the prompts with each value.

    It can be high for a weak trend, because each mean is over many prompts.
    """
    values = numbers.look_up(means.prompts)
    has = np.isfinite(values)
    distinct, codes = np.unique(values[has], return_inverse=True)
    averages = np.bincount(codes, means.values[has], len(distinct)) / np.maximum(np.bincount(codes), 1)
    return STATISTICS["spearman"](distinct, averages)


def _correlate(metric: str, other: str, kind: str, generator: str, a: Floats, b: Floats, prompts: int) -> Correlation:
    rho = STATISTICS["spearman"](b, a)
    interval = spearman_interval(rho, prompts) if _varies(a) and _varies(b) else UNDEFINED
    return Correlation(metric, other, kind, generator, rho, *interval, len(a))


def _varies(values: Floats) -> bool:
    """Return True if enough values differ from the commonest value for an interval to be valid."""
    counts = np.unique(values, return_counts=True)[1]
    return len(values) - int(counts.max(initial=0)) >= MIN_DIFFERING


def spearman_interval(rho: float, n: int) -> Interval:
    """Return the 95% interval of a rank correlation of n independent pairs.

    It uses Fisher's transformation with the variance (1 + rho^2 / 2) / (n - 3) of Bonett and Wright 2000. It is nan for
    fewer than four pairs, or if |rho| is 1. Images of one prompt are not independent: n counts prompts.
    """
    if not math.isfinite(rho) or n < 4 or abs(rho) >= 1:
        return UNDEFINED
    centre, reach = math.atanh(rho), CONFIDENCE_QUANTILE * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return Interval(math.tanh(centre - reach), math.tanh(centre + reach))

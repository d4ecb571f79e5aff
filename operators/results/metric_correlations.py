"""Correlations between metrics, by generator ("What makes a good metric?", sec. 3.3)."""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.statistics.agreement import STATISTICS
from plumbline.operators.statistics.bootstrap import MIN_DIFFERING_PROMPTS, UNDEFINED_INTERVAL, Interval
from plumbline.operators.statistics.confidence_levels import CONFIDENCE_QUANTILE

Floats = NDArray[np.float64]


class Correlation(NamedTuple):
    """Spearman's rank correlation of a metric with another metric, or with a property of prompts, for one generator."""

    metric: str
    other: str
    """Another metric, or a property of prompts."""
    kind: str
    """Kind of `other`: `metric` or `property`."""
    generator: str
    rho: float
    """Spearman's rho; nan if one of the two is constant."""
    low: float
    high: float
    n: int
    """Number of images if `other` is a metric, number of prompts if it is a property."""


def correlate_metrics(scores: RunScores, metrics: Sequence[str]) -> Iterator[Correlation]:
    """Yield the correlation of each pair of metrics, by generator, over the images that both metrics scored."""
    for metric, other in combinations(metrics, 2):
        sides = scores.select_rows(metric).select_scored(), scores.select_rows(other).select_scored()
        for code, generator in enumerate(scores.generators):
            a, b = (columns.select(columns.generator == code) for columns in sides)
            _, rows_a, rows_b = np.intersect1d(a.image, b.image, return_indices=True)
            prompts = len(np.unique(a.prompt[rows_a]))
            yield correlate_values(metric, other, "metric", generator, a.score[rows_a], b.score[rows_b], prompts)


def correlate_values(
    metric: str, other: str, kind: str, generator: str, a: Floats, b: Floats, prompts: int
) -> Correlation:
    """Return the correlation of the values `a` and `b` of each image or prompt; `prompts` is the number of prompts."""
    rho = STATISTICS["spearman"](b, a)
    interval = (
        compute_spearman_interval(rho, prompts) if _varies_enough(a) and _varies_enough(b) else UNDEFINED_INTERVAL
    )
    return Correlation(metric, other, kind, generator, rho, *interval, len(a))


def _varies_enough(values: Floats) -> bool:
    """Return True if enough values differ from the most common value to compute an interval."""
    counts = np.unique(values, return_counts=True)[1]
    return len(values) - int(counts.max(initial=0)) >= MIN_DIFFERING_PROMPTS


def compute_spearman_interval(rho: float, n: int) -> Interval:
    """Return the 95% interval of the rank correlation of n independent pairs.

    The interval uses Fisher's transformation with the variance (1 + rho^2 / 2) / (n - 3) from Bonett and Wright 2000.
    The interval is nan for fewer than four pairs, or if |rho| is 1. As images of the same prompt are not independent, n
    is the number of prompts.
    """
    if not math.isfinite(rho) or n < 4 or abs(rho) >= 1:
        return UNDEFINED_INTERVAL
    centre, reach = math.atanh(rho), CONFIDENCE_QUANTILE * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return Interval(math.tanh(centre - reach), math.tanh(centre + reach))

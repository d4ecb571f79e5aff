"""One-sided tests of whether a mean over prompts is above a bound, and the differences that such a test can detect.

This is Gaffke's test for means of values with a known range. A t test treats unseen values as impossible: with 140
prompts that each lose 1 with probability 0.1, it accepts a mean exactly at the bound in 9.7% of studies at alpha 0.05.
"""

import math
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.ordering import DEFAULT_POWER

Floats = NDArray[np.float64]

MAX_DISTINCT_VALUES = 1 << 16
"""Maximum number of distinct values in a sample; if there are more, values are rounded down to this many steps of the
range.
"""
INTEGRATION_STEP = 1 / 8
"""Step of the trapezoidal rule, in widths of the saddle point; the error is about exp(-pi / INTEGRATION_STEP)."""
NODES_PER_BATCH = 64
"""Number of points of the integral that are computed at a time."""
MAX_NODES = 1 << 16
NEGLIGIBLE_FRACTION = 1e-9
"""Fraction of the integral below which further points are left out."""
MAX_PROMPTS = 10**9


class CountedValues(NamedTuple):
    """Distinct values for a one-sided test, with the number of prompts that have each value."""

    values: Floats
    counts: Floats
    """Number of prompts with each value; not an integer if the sample is scaled to another number of prompts."""
    worst: float
    """The lowest value that a single prompt can have."""

    def scale(self, factor: float) -> "CountedValues":
        """Return the same values with `factor` times as many prompts for each."""
        return self._replace(counts=self.counts * factor)


class MarginTest(NamedTuple):
    """Result of comparing a mean with a bound; the interval `low` to `high` corresponds to the two one-sided tests."""

    mean: float
    low: float
    high: float
    p_above: float
    """One-sided p-value of the hypothesis that the mean is at most the bound; small if the mean is above it."""
    p_below: float
    """One-sided p-value of the hypothesis that the mean is at least the bound; small if the mean is below it."""
    n: int
    spread: float
    """Standard deviation of the values; 0 for a single value."""


def run_margin_test(values: Floats, bound: float, alpha: float, worst: float, best: float) -> MarginTest:
    """Run two one-sided tests: whether the mean of the prompts' values is above a bound, and whether it is below.

    Args:
        values: A value for each prompt (n,), n > 0, drawn independently.
        bound: The bound to compare the mean with.
        alpha: Level of each of the two tests.
        worst: The lowest value that a prompt can have.
        best: The highest value that a prompt can have.
    """
    below, above = make_sample(values, worst), make_sample(-values, -best)
    return MarginTest(
        mean=float(values.mean()),
        low=find_lowest_mean(below, alpha),
        high=-find_lowest_mean(above, alpha),
        p_above=compute_p_value(below, bound),
        p_below=compute_p_value(above, -bound),
        n=len(values),
        spread=float(values.std(ddof=1)) if len(values) > 1 else 0.0,
    )


def make_sample(values: Floats, worst: float) -> CountedValues:
    """Return the values as a sample; if too many are distinct, round them down, which can only raise a p-value."""
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) > MAX_DISTINCT_VALUES:
        step = (distinct[-1] - worst) / MAX_DISTINCT_VALUES
        distinct, counts = np.unique(worst + np.floor((values - worst) / step) * step, return_counts=True)
    return CountedValues(distinct, counts.astype(np.float64), worst)


def compute_p_value(sample: CountedValues, bound: float) -> float:
    """Return the one-sided p-value of the hypothesis that the mean of the values is at most the bound.

    The worst possible value is added to the sample, and weights that sum to 1 are drawn uniformly. The p-value is the
    probability that the weighted mean is at most the bound (Gaffke 2005; Learned-Miller and Thomas 2019, A New
    Confidence Interval for the Mean of a Bounded Random Variable). A lower value never lowers the p-value. If every
    value is the worst or the best possible one, it is Clopper and Pearson's exact p-value. For other values, its
    validity has been proven only in a few cases, but no counterexample is known; plugins/gates/tests/test_margins.py
    checks hard cases by enumeration and simulation.

    Such weights are independent exponential variables, divided by their sum. So the p-value is the probability that a
    weighted sum of exponential variables is at most 0, which is an integral in the complex plane.
    """
    weights = np.append(sample.values, sample.worst) - bound
    counts = np.append(sample.counts, 1.0)
    scale = float(np.abs(weights).max())
    weights, counts = weights[weights != 0] / (scale or 1.0), counts[weights != 0]
    if not len(weights) or weights.max() < 0:
        return 1.0
    if weights.min() > 0:
        return 0.0
    positive = float(counts @ weights) > 0
    tail = _compute_negative_tail(weights if positive else -weights, counts)
    return min(max(tail if positive else 1.0 - tail, 0.0), 1.0)


def _compute_negative_tail(weights: Floats, counts: Floats) -> float:
    """Return the probability that a weighted sum of exponential variables is negative; its mean must be at least 0.

    The sum has the moment generating function 1 / prod (1 - s weight)^count. The inversion integral runs along a line
    through the saddle point. If the saddle point is too close to the pole at 0, the line is moved slightly.
    """
    lowest = 1 / float(weights.min())

    def find_slope(s: float) -> float:
        return float(counts @ (weights / (1 - s * weights)))

    left = lowest / 2
    while find_slope(left) > 0:
        left = (left + lowest) / 2
    saddle = scipy.optimize.brentq(find_slope, left, 0.0, rtol=1e-9)
    width = 1 / math.sqrt(float(counts @ (weights / (1 - saddle * weights)) ** 2))
    line = saddle if saddle < -width / 2 else saddle - width / 2
    tilted = weights / (1 - line * weights)
    start = -float(counts @ np.log1p(-line * weights))
    total = 0.0
    for first in range(0, MAX_NODES, NODES_PER_BATCH):
        height = INTEGRATION_STEP * width * (np.arange(first, first + NODES_PER_BATCH) + 0.5)
        turns = np.outer(tilted, height)
        size = np.exp(start - counts @ np.log1p(turns**2) / 2)
        terms = -(size * np.exp(1j * (counts @ np.arctan(turns))) / (line + 1j * height)).real
        total += float(terms.sum())
        if float(size.max()) <= NEGLIGIBLE_FRACTION * abs(total * line):
            break
    return total * INTEGRATION_STEP * width / math.pi


def find_lowest_mean(sample: CountedValues, alpha: float) -> float:
    """Return the lower end of a one-sided interval: the highest bound that the test rejects at level alpha."""
    values, counts, worst = sample
    if values[-1] <= worst:
        return worst

    def find_excess(bound: float) -> float:
        return float(scipy.special.ndtri(np.clip(compute_p_value(sample, bound), 1e-300, 1 - 1e-15)) - quantile)

    quantile = float(scipy.special.ndtri(alpha))
    n = float(counts.sum())
    mean = float(counts @ values) / n
    reach = math.sqrt(float(counts @ (values - mean) ** 2) / n**2) + (mean - worst) / n
    high = mean if find_excess(mean) > 0 else float(values[-1])
    while (low := max(mean - reach, worst)) > worst and find_excess(low) > 0:
        high, reach = low, 2 * reach
    return float(scipy.optimize.brentq(find_excess, low, high, xtol=1e-9 * (float(values[-1]) - worst), rtol=1e-12))


def find_smallest_difference(test: MarginTest, chance: float = DEFAULT_POWER) -> float:
    """Return the distance above the bound at which the test detects a true mean with probability `chance`.

    The number of prompts is the same as in `test`.
    """
    return test.mean - test.low + _find_shortfall(test.spread, test.n, chance)


def count_needed_prompts(
    values: Floats, bound: float, alpha: float, worst: float, mean: float, chance: float = DEFAULT_POWER
) -> int | None:
    """Return the number of prompts that would show, with probability `chance`, that the mean is above the bound.

    Additional prompts are assumed to have the same values, shifted so that their mean is `mean`.

    Returns:
        The number of prompts, or None if the mean is not above the bound, or if MAX_PROMPTS would not be enough.
    """
    if mean <= bound:
        return None
    n = len(values)
    spread = float(values.std(ddof=1)) if n > 1 else 0.0
    sample = make_sample(np.maximum(values - values.mean() + mean, worst), worst)

    def is_enough(prompts: int) -> bool:
        return compute_p_value(sample.scale(prompts / n), bound + _find_shortfall(spread, prompts, chance)) <= alpha

    few, many = n, 2 * n
    while not is_enough(many):
        if many > MAX_PROMPTS:
            return None
        few, many = many, 2 * many
    return few + 1 + bisect_left(range(few + 1, many), True, key=is_enough)


def _find_shortfall(spread: float, n: int, chance: float) -> float:
    """Return d such that the mean of n prompts is at most d below the true mean, with probability `chance`."""
    return float(scipy.stats.norm.ppf(chance)) * spread / math.sqrt(n)

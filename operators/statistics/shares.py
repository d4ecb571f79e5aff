"""Fractions of images and prompts: intervals, and a correction for the errors of a test.

The intervals allow for dependence between the images of a prompt.

Sources: Wilson 1927, Probable inference, the law of succession, and statistical inference; Korn and Graubard 1998,
Confidence intervals for proportions with small expected number of positive counts estimated from survey data (Clopper
and Pearson's interval at the effective number of rows); Rogan and Gladen 1978, Estimating prevalence from the results
of a screening test; Lang and Reiczigel 2014, Confidence limits for prevalence of disease adjusted for estimated
sensitivity and specificity.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.bootstrap import (
    MIN_DIFFERING_PROMPTS,
    ROUNDING_TOLERANCE,
    UNDEFINED_INTERVAL,
    Interval,
)
from plumbline.operators.statistics.confidence_levels import CONFIDENCE, CONFIDENCE_QUANTILE

MIN_DECIDING_PROMPTS = (
    4  # prompts that must differ from the rest, or a share is as uncertain as if each prompt were won or lost
)
RESIDUAL_DIGITS = 12  # digits to which residuals are compared


class Share(NamedTuple):
    """A fraction of rows, such as the fraction of images that pass, with the number of rows."""

    value: float  # nan if there are no rows
    n: int
    effective: float  # number of independent rows that are equally informative: below n if rows of a prompt are alike

    @property
    def interval(self) -> Interval:
        """The Clopper-Pearson interval for the effective number of rows."""
        if not self.n:
            return UNDEFINED_INTERVAL
        return compute_exact_interval(self.effective * self.value, self.effective * (1 - self.value))


def compute_exact_interval(successes: float, failures: float, level: float = CONFIDENCE) -> Interval:
    """Return the Clopper-Pearson interval for successes / (successes + failures); undefined if both are 0."""
    if not successes + failures:
        return UNDEFINED_INTERVAL
    low = scipy.special.betaincinv(successes, failures + 1, (1 - level) / 2) if successes > 0 else 0.0
    high = scipy.special.betaincinv(successes + 1, failures, (1 + level) / 2) if failures > 0 else 1.0
    return Interval(float(low), float(high))


def estimate_share(outcomes: NDArray[np.bool_], prompts: NDArray[np.int64]) -> Share:
    """Return the fraction of true outcomes (n,), given the prompt of each outcome (n,).

    If all outcomes are equal, it is unknown how similar the rows of a prompt are, and each prompt counts as one row.
    """
    n = len(outcomes)
    if not n:
        return Share(math.nan, 0, 0.0)
    codes = np.unique(prompts, return_inverse=True)[1]
    sizes, sums = np.bincount(codes), np.bincount(codes, weights=outcomes)
    value, count = float(outcomes.mean()), len(sizes)
    if count == n:
        return Share(value, n, n)
    if value in (0, 1) or count == 1:
        return Share(value, n, count)
    variance = count / (count - 1) * float(((sums - value * sizes) ** 2).sum()) / n**2
    independent = value * (1 - value) / (n - 1)  # the variance if rows were independent
    quantile_rows, quantile_prompts = (scipy.special.stdtrit(size - 1, (1 + CONFIDENCE) / 2) for size in (n, count))
    correction = float(quantile_rows / quantile_prompts) ** 2
    return Share(value, n, min(n, n * correction * independent / variance) if variance else n)


def compute_share_interval(value: float, residuals: NDArray[np.float64]) -> Interval:
    """Return the Wilson interval for a mean of shares in [0, 1], using the effective number of prompts.

    Student's quantile replaces the normal quantile. The effective number of prompts is the number of independent wins
    and losses whose mean would have the same variance. If only a few prompts determine the mean, the effective number
    is at most the number of prompts. This is the case if fewer than MIN_DECIDING_PROMPTS differ from the rest, or if
    the residuals are at least as skewed as a Poisson variable with mean MIN_DIFFERING_PROMPTS. The interval is
    therefore defined even if all shares are equal. It is UNDEFINED_INTERVAL for fewer than two prompts.

    Args:
        value: The mean.
        residuals: How far each prompt moves the mean (n,), with sum 0: (share - mean) / n for a mean over n prompts.
    """
    n = len(residuals)
    if n < 2 or not math.isfinite(value):
        return UNDEFINED_INTERVAL
    squares = float((residuals**2).sum())
    differing = n - int(np.unique(np.round(residuals, RESIDUAL_DIGITS), return_counts=True)[1].max())
    effective = value * (1 - value) * (n - 1) / (n * squares) if squares > ROUNDING_TOLERANCE**2 else math.inf
    skewness = abs(float((residuals**3).sum())) / squares**1.5 if squares > ROUNDING_TOLERANCE**2 else 0.0
    if differing < MIN_DECIDING_PROMPTS or skewness >= 1 / math.sqrt(MIN_DIFFERING_PROMPTS) or effective == 0:
        effective = min(effective or math.inf, n)
    quantile = float(scipy.special.stdtrit(n - 1, (1 + CONFIDENCE) / 2)) ** 2 / effective
    middle = (value + quantile / 2) / (1 + quantile)
    half_width = math.sqrt(quantile * value * (1 - value) + quantile**2 / 4) / (1 + quantile)
    return Interval(max(middle - half_width, 0.0), min(middle + half_width, 1.0))


def average_by_prompt(values: NDArray[np.float64], prompts: NDArray[np.int64]) -> tuple[float, NDArray[np.float64]]:
    """Return the mean of values (n,), and the residuals that `compute_share_interval` expects.

    There is one residual for each prompt with values: the sum of its values' deviations from the mean, divided by n.
    """
    mean = float(values.mean())
    sums = np.bincount(prompts, weights=values - mean).astype(np.float64)
    return mean, sums[np.bincount(prompts) > 0] / len(values)


class CorrectedShare(NamedTuple):
    """Estimated fraction of images that would pass an error-free test."""

    value: float
    interval: Interval
    note: str = ""  # reason if the share is undefined


def correct_share(passing: Share, sensitivity: Share, specificity: Share) -> CorrectedShare:
    """Return the Rogan-Gladen estimate with the Lang-Reiczigel interval.

    Args:
        passing: Fraction of all images that pass the test.
        sensitivity: Fraction of the images rated good that pass.
        specificity: Fraction of the images rated bad that fail.

    Returns:
        The corrected fraction. If the test may be no better than chance, any fraction is possible, and the corrected
        fraction is undefined.
    """
    if not passing.n or not sensitivity.n or not specificity.n:
        return CorrectedShare(math.nan, UNDEFINED_INTERVAL, "people pass all rated images or none")

    def add_half_true_rows(share: Share, rows: float) -> tuple[float, float]:
        n = share.effective + rows
        return (share.effective * share.value + rows / 2) / n, n

    # Each share is computed with some more rows, half of them true.
    observed, n_observed = add_half_true_rows(passing, CONFIDENCE_QUANTILE**2)
    sensitive, n_sensitive = add_half_true_rows(sensitivity, 2)
    specific, n_specific = add_half_true_rows(specificity, 2)
    gain = sensitive + specific - 1
    variance_sensitive = sensitive * (1 - sensitive) / n_sensitive
    variance_specific = specific * (1 - specific) / n_specific
    if gain <= CONFIDENCE_QUANTILE * math.sqrt(variance_sensitive + variance_specific):
        words = f"sensitivity and specificity add up to {sensitivity.value + specificity.value:.2f}"
        return CorrectedShare(
            math.nan, UNDEFINED_INTERVAL, f"{words}, which is not clearly above 1, the value for chance"
        )
    prevalence = (observed + specific - 1) / gain
    errors = prevalence**2 * variance_sensitive + (1 - prevalence) ** 2 * variance_specific
    half_width = CONFIDENCE_QUANTILE * math.sqrt(observed * (1 - observed) / n_observed + errors) / gain
    shift = prevalence * variance_sensitive - (1 - prevalence) * variance_specific
    middle = prevalence + 2 * CONFIDENCE_QUANTILE**2 * shift
    estimate = (passing.value + specificity.value - 1) / (sensitivity.value + specificity.value - 1)
    low, high = (min(max(end, 0.0), 1.0) for end in (middle - half_width, middle + half_width))
    return CorrectedShare(min(max(estimate, 0.0), 1.0), Interval(low, high))

"""Shares of images: exact intervals where some images share a prompt, and shares that a faulty test was corrected by.

Sources: Korn and Graubard 1998, Confidence intervals for proportions with small expected number of positive counts
estimated from survey data (Clopper and Pearson's interval at the effective number of rows); Rogan and Gladen 1978,
Estimating prevalence from the results of a screening test; Lang and Reiczigel 2014, Confidence limits for prevalence of
disease adjusted for estimated sensitivity and specificity.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.bootstrap import UNDEFINED, Interval
from plumbline.operators.statistics.levels import CONFIDENCE, CONFIDENCE_QUANTILE


class Share(NamedTuple):
    """How many of some rows have something."""

    value: float
    """nan of no rows."""
    n: int
    effective: float
    """Independent rows that tell as much: fewer than n where rows of one prompt are alike."""

    @property
    def interval(self) -> Interval:
        """Clopper and Pearson's, of the effective number of rows."""
        if not self.n:
            return UNDEFINED
        return exact_interval(self.effective * self.value, self.effective * (1 - self.value))


def exact_interval(having: float, lacking: float) -> Interval:
    """Clopper and Pearson's of a share, of so many rows that have something and so many that do not; nan of none."""
    if not having + lacking:
        return UNDEFINED
    low = scipy.special.betaincinv(having, lacking + 1, (1 - CONFIDENCE) / 2) if having else 0.0
    high = scipy.special.betaincinv(having + 1, lacking, (1 + CONFIDENCE) / 2) if lacking else 1.0
    return Interval(float(low), float(high))


def share(having: NDArray[np.bool_], prompts: NDArray[np.int64]) -> Share:
    """The share of the rows (n,) that have it; `prompts` (n,) tells which are of the same one.

    Where all have it, or none, nothing tells how alike the rows of a prompt are, and each prompt counts once.
    """
    n = len(having)
    if not n:
        return Share(math.nan, 0, 0.0)
    codes = np.unique(prompts, return_inverse=True)[1]
    sizes, sums = np.bincount(codes), np.bincount(codes, weights=having)
    value, count = float(having.mean()), len(sizes)
    if count == n:
        return Share(value, n, n)
    if value in (0, 1) or count == 1:
        return Share(value, n, count)
    variance = count / (count - 1) * float(((sums - value * sizes) ** 2).sum()) / n**2
    alone = value * (1 - value) / (n - 1)
    of_rows, of_prompts = (scipy.special.stdtrit(size - 1, (1 + CONFIDENCE) / 2) for size in (n, count))
    few = float(of_rows / of_prompts) ** 2
    return Share(value, n, min(n, n * few * alone / variance) if variance else n)


class CorrectedShare(NamedTuple):
    """A share as it would be without the test's errors."""

    value: float
    interval: Interval
    note: str = ""
    """Why there is none."""


def corrected_share(passing: Share, sensitivity: Share, specificity: Share) -> CorrectedShare:
    """Rogan and Gladen's estimate with Lang and Reiczigel's interval, which the three samples widen.

    There is none where the test may be no better than chance: then any share would fit what is seen.
    """
    if not passing.n or not sensitivity.n or not specificity.n:
        return CorrectedShare(math.nan, UNDEFINED, "people pass all rated images or none")
    (seen, n_seen), (right, n_right), (wrong, n_wrong) = (
        _towards_middle(passing, CONFIDENCE_QUANTILE**2),
        _towards_middle(sensitivity, 2),
        _towards_middle(specificity, 2),
    )
    better = right + wrong - 1
    spread_right, spread_wrong = right * (1 - right) / n_right, wrong * (1 - wrong) / n_wrong
    if better <= CONFIDENCE_QUANTILE * math.sqrt(spread_right + spread_wrong):
        words = f"sensitivity and specificity add up to {sensitivity.value + specificity.value:.2f}"
        return CorrectedShare(math.nan, UNDEFINED, f"{words}, which is not clearly above 1, that of chance")
    share_of_all = (seen + wrong - 1) / better
    of_errors = share_of_all**2 * spread_right + (1 - share_of_all) ** 2 * spread_wrong
    far = CONFIDENCE_QUANTILE * math.sqrt(seen * (1 - seen) / n_seen + of_errors) / better
    shift = share_of_all * spread_right - (1 - share_of_all) * spread_wrong
    middle = share_of_all + 2 * CONFIDENCE_QUANTILE**2 * shift
    estimate = (passing.value + specificity.value - 1) / (sensitivity.value + specificity.value - 1)
    low, high = (min(max(end, 0.0), 1.0) for end in (middle - far, middle + far))
    return CorrectedShare(min(max(estimate, 0.0), 1.0), Interval(low, high))


def _towards_middle(given: Share, rows: float) -> tuple[float, float]:
    """A share with so many rows more, half of which have it, and the number of rows then."""
    n = given.effective + rows
    return (given.effective * given.value + rows / 2) / n, n

"""Means of people's labels, sharpened by predictions that there are of many more: prediction-powered inference.

Source: Angelopoulos, Duchi and Zrnic 2023, PPI++: Efficient Prediction-Powered Inference (section 2, power tuning).
"""

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.rounding import step_of

Floats = NDArray[np.float64]

FEWEST_LABELS = 12
"""Below so many nothing is said."""
FEWEST_DIFFERENT = 6
"""Nor where fewer labels are other than their median: mostly equal ones would tell too small an error."""
TIGHTEST = 40
"""Labels at which an interval that holds at every number of them is the least wide for what it promises."""


def enough(labels: Floats) -> NDArray[np.bool_]:
    """Whether anything is said of the mean of what labels (..., n) are of."""
    return np.asarray((labels.shape[-1] >= FEWEST_LABELS) & (different(labels) >= FEWEST_DIFFERENT))


def different(labels: Floats) -> NDArray[np.int64]:
    """How many labels (..., n) are other than their median, which is what most are where most are equal.

    Labels that only rounding sets apart are equal.
    """
    if not labels.shape[-1]:
        return np.zeros(labels.shape[:-1], np.int64)
    apart = np.abs(labels - np.median(labels, axis=-1, keepdims=True))
    return np.asarray((apart > step_of(labels) / 2).sum(axis=-1))


class Powered(NamedTuple):
    """A mean over labels and predictions; each (...,)."""

    estimate: Floats
    power: Floats
    """How far the predictions are followed, 0 to 1: 0 takes the labels alone."""
    error: Floats
    """The estimate's standard error."""
    of_predictions: Floats
    """Of the error's square, the numerator that more predictions would make smaller: variance of power x prediction."""
    of_residuals: Floats
    """Likewise of more labels: variance of label - power x prediction."""
    worth: Floats
    """To how many labels alone each label amounts, for the error."""
    labels: int
    predictions: int

    def interval(self, level: float) -> tuple[Floats, Floats]:
        """The ends, which hold at every number of labels at once: who looks again while labels come in is wrong as
        seldom as who looks once.
        """
        far = self.error * reach(self.labels, level)
        return self.estimate - far, self.estimate + far


def reach(n: "int | NDArray[np.int64]", level: float) -> Floats:
    """How many standard errors the ends are away: an asymptotic confidence sequence (Waudby-Smith et al. 2024, theorem
    2.2), for few labels wider by Student's quantile and for the power that is fitted.
    """
    alpha = 1 - level
    spread = np.asarray(n) / TIGHTEST * (math.log(1 - 2 * math.log(alpha)) - 2 * math.log(alpha))
    always = np.sqrt(2 * (spread + 1) / spread * np.log(np.sqrt(spread + 1) / alpha))
    few = scipy.stats.t.ppf(1 - alpha / 2, np.asarray(n) - 1) / scipy.stats.norm.ppf(1 - alpha / 2)
    return np.asarray(always * few * widening(n))


def widening(n: "int | NDArray[np.int64]") -> Floats:
    """For few labels, which are taken for their mean and for the power: those that are left tell the error."""
    return np.sqrt(np.asarray(n) / (np.asarray(n) - 2.0))


def powered_mean(labels: Floats, predictions: Floats, others: Floats) -> Powered:
    """The mean of what people would say, of labels (..., n), the predictions of the same (..., n), and of others
    (..., N).
    """
    n, m = labels.shape[-1], others.shape[-1]
    everyone = np.concatenate([predictions, others], axis=-1)
    centred = predictions - predictions.mean(axis=-1, keepdims=True)
    covariance = (labels * centred).mean(axis=-1)
    spread = everyone.var(axis=-1, ddof=1)
    power = np.clip(covariance / np.where(spread > 0, (1 + n / m) * spread, 1), 0, 1)
    residuals = labels - power[..., None] * predictions
    of_predictions, of_residuals = power**2 * others.var(axis=-1), residuals.var(axis=-1)
    variance = of_predictions / m + of_residuals / n
    alone = labels.var(axis=-1) / n
    return Powered(
        estimate=power * others.mean(axis=-1) + residuals.mean(axis=-1),
        power=power,
        error=np.sqrt(variance),
        of_predictions=of_predictions,
        of_residuals=of_residuals,
        worth=np.divide(alone, variance, out=np.ones_like(variance), where=variance > 0),
        labels=n,
        predictions=m,
    )


def labels_needed(found: Powered, level: float, chance: float) -> int | None:
    """How many labels in all would show, with this chance, that the mean is not 0, if it is what it seems.

    None where labels of everything that has a prediction would not do.
    """
    everything = found.labels + found.predictions
    n = np.arange(found.labels, everything)
    error = np.sqrt(found.of_predictions / (everything - n) + found.of_residuals / n)
    shown = np.flatnonzero(np.abs(found.estimate) >= (reach(n, level) + scipy.stats.norm.ppf(chance)) * error)
    return int(n[shown[0]]) if len(shown) else None

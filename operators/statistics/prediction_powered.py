"""Means of people's labels, sharpened by predictions for many more items: prediction-powered inference.

Source: Angelopoulos, Duchi and Zrnic 2023, PPI++: Efficient Prediction-Powered Inference (section 2, power tuning).
"""

import math
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.rounding import step_of
from plumbline.operators.statistics.running_means import Bounded, excludes, log_capital, running_interval

Floats = NDArray[np.float64]

FEWEST_LABELS = 12
"""Labels that an interval needs."""
FEWEST_DIFFERENT = 6
"""Labels that must differ from the median: mostly equal labels would give too small an error."""


def enough(labels: Floats) -> NDArray[np.bool_]:
    """Return True if there are enough labels (..., n) for an interval that is looked at once."""
    return np.asarray((labels.shape[-1] >= FEWEST_LABELS) & (different(labels) >= FEWEST_DIFFERENT))


def different(labels: Floats) -> NDArray[np.int64]:
    """Return the number of labels (..., n) that differ from their median: the commonest label, if most are equal.

    Labels that differ only by rounding count as equal.
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
    worth: Floats
    """To how many labels alone each label amounts, for the error."""
    residuals: Floats
    """Labels (..., n), less power x the distance of their predictions from the mean of all predictions."""
    swing: tuple[Floats, Floats]
    """The least and the greatest that predictions can add to a label in its residual."""
    predictions: int
    """Number of predictions without labels."""

    def bounded(self, widest: float) -> Bounded:
        """Return the residuals of labels that lie between -widest and widest, with their limits."""
        below, above = self.swing
        return Bounded(self.residuals, -widest + below, widest + above)

    def interval(self, level: float, widest: float) -> tuple[float, float]:
        """Return the ends of one mean's interval, for labels between -widest and widest.

        They hold at every number of labels at once, however the labels are distributed: looking again while labels
        come in makes no error more likely.
        """
        return running_interval(self.bounded(widest), level)

    def excludes(self, mean: Floats, level: float, widest: float) -> NDArray[np.bool_]:
        """Return True if the interval does not contain `mean`, for each of (...)."""
        return excludes(self.bounded(widest), mean, level)


def widening(n: "int | NDArray[np.int64]") -> Floats:
    """For few labels, which are taken for their mean and for the power: those that are left tell the error."""
    return np.sqrt(np.asarray(n) / (np.asarray(n) - 2.0))


def powered_mean(labels: Floats, predictions: Floats, others: Floats) -> Powered:
    """Estimate the mean of people's labels for all items.

    It takes labels (..., n), the predictions of the same items (..., n), and predictions of other items (..., N).
    """
    n, m = labels.shape[-1], others.shape[-1]
    everyone = np.concatenate([predictions, others], axis=-1)
    centred = predictions - predictions.mean(axis=-1, keepdims=True)
    covariance = (labels * centred).mean(axis=-1)
    spread = everyone.var(axis=-1, ddof=1)
    power = np.clip(covariance / np.where(spread > 0, (1 + n / m) * spread, 1), 0, 1)
    residuals = labels - power[..., None] * predictions
    variance = power**2 * others.var(axis=-1) / m + residuals.var(axis=-1) / n
    mean = everyone.mean(axis=-1)
    alone = labels.var(axis=-1) / n
    return Powered(
        estimate=power * others.mean(axis=-1) + residuals.mean(axis=-1),
        power=power,
        error=np.sqrt(variance),
        worth=np.divide(alone, variance, out=np.ones_like(variance), where=variance > 0),
        residuals=residuals + (power * mean)[..., None],
        swing=(power * (mean - everyone.max(axis=-1)), power * (mean - everyone.min(axis=-1))),
        predictions=m,
    )


def labels_needed(found: Powered, level: float, chance: float, widest: float) -> int | None:
    """Return the number of labels that show with this chance that the mean is not 0, if the estimate is right.

    Returns:
        None if labels of everything that has a prediction would not do.
    """
    sample = found.bounded(widest) if found.residuals.mean() > 0 else found.bounded(widest).turned
    n, spread = sample.values.shape[-1], float(sample.values.std())
    rich = math.log(2 / (1 - level))

    def show(labels: int) -> bool:
        shortfall = float(scipy.stats.norm.ppf(chance)) * spread / math.sqrt(labels)
        likely = sample._replace(values=np.maximum(sample.values - shortfall, sample.least))
        return bool(log_capital(likely, 0.0, labels / n) >= rich)

    wanted = n + bisect_left(range(n, n + found.predictions), True, key=show)
    return wanted if wanted < n + found.predictions else None

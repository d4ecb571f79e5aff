"""Means of people's labels, sharpened by predictions that there are of many more: prediction-powered inference.

Source: Angelopoulos, Duchi and Zrnic 2023, PPI++: Efficient Prediction-Powered Inference (section 2, power tuning).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

FEWEST_LABELS = 12
"""Below so many nothing is said: intervals of 95% then cover less than 94% of too many pairs (docs/adaptive.md)."""


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
        """The ends; a little wider than the paper's, by Student's quantile and for the power that is fitted."""
        reach = self.error * widening(self.labels) * stats.t.ppf((1 + level) / 2, self.labels - 1)
        return self.estimate - reach, self.estimate + reach


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
    reach = widening(n) * stats.t.ppf((1 + level) / 2, n - 1) + stats.norm.ppf(chance)
    enough = np.flatnonzero(np.abs(found.estimate) >= reach * error)
    return int(n[enough[0]]) if len(enough) else None

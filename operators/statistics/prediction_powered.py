"""Prediction-powered inference: means of human labels, made more precise by predictions for many more items.

Sources: Angelopoulos, Duchi and Zrnic 2023, PPI++: Efficient Prediction-Powered Inference (section 2, power tuning).
Intervals remain valid however often they are computed while labels come in: a gambler bets against each mean, and a
mean is excluded once the gambler is rich (Waudby-Smith and Ramdas 2024, Estimating Means of Bounded Random Variables by
Betting). Each bet stakes a fixed fraction, and the capital is the average over several bets, so that it does not depend
on the order of the labels.
"""

import math
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.rounding import choose_step

Floats = NDArray[np.float64]

MIN_LABELS = 12  # minimum number of labels for an interval
MIN_DIFFERENT_LABELS = 6  # labels that must differ from the median: mostly equal labels give too small an error
# shares of the capital: small ones detect small differences, large ones large ones
BET_FRACTIONS = np.geomspace(1 / 32, 1, 6)


def has_enough_labels(labels: Floats) -> NDArray[np.bool_]:
    """Return True if there are enough labels (..., n) for an interval that is computed once."""
    return np.asarray((labels.shape[-1] >= MIN_LABELS) & (count_different_labels(labels) >= MIN_DIFFERENT_LABELS))


def count_different_labels(labels: Floats) -> NDArray[np.int64]:
    """Count the labels (..., n) that differ from their median, which is the most common label if most are equal.

    Labels that differ only by rounding count as equal.
    """
    if not labels.shape[-1]:
        return np.zeros(labels.shape[:-1], np.int64)
    distances = np.abs(labels - np.median(labels, axis=-1, keepdims=True))
    return np.asarray((distances > choose_step(labels) / 2).sum(axis=-1))


class BoundedValues(NamedTuple):
    """Values (..., n) of several samples, with the lowest and the highest value possible in each sample (...)."""

    values: Floats
    least: Floats
    greatest: Floats

    @property
    def negated(self) -> "BoundedValues":
        return BoundedValues(-self.values, -self.greatest, -self.least)


class PoweredMeans(NamedTuple):
    """Means of labels that are estimated with the help of predictions; each field has a value per mean (...)."""

    estimate: Floats
    power: Floats
    """Weight of the predictions, from 0 (ignored) to 1."""
    error: Floats
    """Standard error of the estimate."""
    worth: Floats
    """Number of labels without predictions that would reduce the error as much as one label with predictions."""
    residuals: Floats
    """Labels (..., n), minus power x (their prediction - mean of all predictions)."""
    swing: tuple[Floats, Floats]
    """Lowest and highest possible difference between a residual and its label."""
    predictions: int
    """Number of predictions without labels."""

    def bound_residuals(self, widest: float) -> BoundedValues:
        """Return the residuals of labels between -widest and widest, with the limits of the residuals."""
        below, above = self.swing
        return BoundedValues(self.residuals, -widest + below, widest + above)

    def interval(self, level: float, widest: float) -> tuple[float, float]:
        """Return the ends of the interval of a single mean, for labels between -widest and widest.

        The interval is valid for any distribution of labels, however often it is computed while labels come in.
        """
        sample = self.bound_residuals(widest)
        return _find_lower_end(sample, level), -_find_lower_end(sample.negated, level)

    def excludes(self, mean: Floats, level: float, widest: float) -> NDArray[np.bool_]:
        """Return True for each interval that does not contain `mean` (...)."""
        sample = self.bound_residuals(widest)
        capital = np.maximum(compute_log_capital(sample, mean), compute_log_capital(sample.negated, -mean))
        return np.asarray(capital >= math.log(2 / (1 - level)))


def compute_widening_factor(n: "int | NDArray[np.int64]") -> Floats:
    """Return the factor by which standard errors grow because two parameters were estimated from the same n labels."""
    return np.sqrt(np.asarray(n) / (np.asarray(n) - 2.0))


def powered_mean(labels: Floats, predictions: Floats, others: Floats) -> PoweredMeans:
    """Estimate the mean of human labels over all items.

    Args:
        labels: Labels (..., n).
        predictions: Predictions for the same items (..., n).
        others: Predictions for items without labels (..., N).
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
    variance_of_labels = labels.var(axis=-1) / n
    return PoweredMeans(
        estimate=power * others.mean(axis=-1) + residuals.mean(axis=-1),
        power=power,
        error=np.sqrt(variance),
        worth=np.divide(variance_of_labels, variance, out=np.ones_like(variance), where=variance > 0),
        residuals=residuals + (power * mean)[..., None],
        swing=(power * (mean - everyone.max(axis=-1)), power * (mean - everyone.min(axis=-1))),
        predictions=m,
    )


def estimate_labels_needed(found: PoweredMeans, level: float, power: float, widest: float) -> int | None:
    """Return how many labels are needed to show, with the given power, that the mean is not 0.

    The estimated mean is assumed to be the true mean. The result is None if even labels for all items would not be
    enough.
    """
    sample = found.bound_residuals(widest) if found.residuals.mean() > 0 else found.bound_residuals(widest).negated
    n, spread = sample.values.shape[-1], float(sample.values.std())
    threshold = math.log(2 / (1 - level))

    def is_enough(labels: int) -> bool:
        shortfall = float(scipy.stats.norm.ppf(power)) * spread / math.sqrt(labels)
        likely = sample._replace(values=np.maximum(sample.values - shortfall, sample.least))
        return bool(compute_log_capital(likely, 0.0, labels / n) >= threshold)

    needed = n + bisect_left(range(n, n + found.predictions), True, key=is_enough)
    return needed if needed < n + found.predictions else None


def compute_log_capital(sample: BoundedValues, mean: "Floats | float", times: float = 1.0) -> Floats:
    """Return the log of the capital (...) of a gambler who bets that the values have a mean greater than `mean`.

    If their mean is not greater, the probability that the capital ever exceeds c is at most 1 / c. The capital
    decreases as `mean` grows; `mean` must be above the lowest value. Each value counts `times` times.
    """
    gains = (sample.values - np.asarray(mean)[..., None]) / (mean - sample.least)[..., None]
    with np.errstate(divide="ignore"):
        logs = [np.log1p(np.maximum(bet * gains, -1.0)).sum(axis=-1) for bet in BET_FRACTIONS]
    return np.asarray(scipy.special.logsumexp(times * np.stack(logs), axis=0) - math.log(len(BET_FRACTIONS)))


def _find_lower_end(sample: BoundedValues, level: float) -> float:
    least, mean = float(sample.least), float(sample.values.mean())
    nearest = least + 1e-9 * (float(sample.greatest) - least)
    threshold = math.log(2 / (1 - level))
    if mean <= nearest or compute_log_capital(sample, nearest) < threshold:
        return least
    return float(
        scipy.optimize.brentq(lambda value: float(compute_log_capital(sample, value)) - threshold, nearest, mean)
    )

"""Intervals of means of bounded values that are valid however often they are computed while more values come in.

A gambler bets against each mean, and a mean is excluded once the gambler is rich (Waudby-Smith and Ramdas 2024,
Estimating Means of Bounded Random Variables by Betting). Each bet stakes a fixed share, and the capital is the average
over several bets, so that it does not depend on the order of the values.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BETS = np.geomspace(1 / 32, 1, 6)
"""Shares of the capital that are staked: small shares detect small differences, large shares large differences."""


class Bounded(NamedTuple):
    """Values (..., n) with the least and the greatest possible value (...)."""

    values: Floats
    least: Floats
    greatest: Floats

    @property
    def turned(self) -> "Bounded":
        """The values and limits with opposite signs."""
        return Bounded(-self.values, -self.greatest, -self.least)


def log_capital(sample: Bounded, mean: "Floats | float", times: float = 1.0) -> Floats:
    """Return the log of the capital (...) of a gambler who bets that the values have a greater mean than `mean`.

    If they do not, the capital ever exceeds c with a probability of at most 1 / c. It falls as `mean` grows, which must
    be above the least value. Each value counts `times` times.
    """
    gains = (sample.values - np.asarray(mean)[..., None]) / (mean - sample.least)[..., None]
    with np.errstate(divide="ignore"):
        logs = [np.log1p(np.maximum(bet * gains, -1.0)).sum(axis=-1) for bet in BETS]
    return np.asarray(scipy.special.logsumexp(times * np.stack(logs), axis=0) - math.log(len(BETS)))


def excludes(sample: Bounded, mean: "Floats | float", level: float) -> NDArray[np.bool_]:
    """Return True for each interval of this level that does not contain `mean`, which is between the limits."""
    return np.asarray(
        np.maximum(log_capital(sample, mean), log_capital(sample.turned, -mean)) >= math.log(2 / (1 - level))
    )


def running_interval(sample: Bounded, level: float) -> tuple[float, float]:
    """Return the interval of the mean of the distribution of values (n,); it is valid however often it is computed."""
    return _lower_end(sample, level), -_lower_end(sample.turned, level)


def _lower_end(sample: Bounded, level: float) -> float:
    least, mean = float(sample.least), float(sample.values.mean())
    nearest = least + 1e-9 * (float(sample.greatest) - least)
    threshold = math.log(2 / (1 - level))
    if mean <= nearest or log_capital(sample, nearest) < threshold:
        return least
    return float(scipy.optimize.brentq(lambda value: float(log_capital(sample, value)) - threshold, nearest, mean))

"""Intervals of means of values between two limits that hold at every number of values, while more values come in.

A gambler bets against each mean in turn, and a mean is excluded once the gambler is rich (Waudby-Smith and Ramdas 2024,
Estimating Means of Bounded Random Variables by Betting). Each bet stakes a fixed share, and the capital is the average
over several bets: it does not depend on the order of the values, and has one value at every mean.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BETS = np.geomspace(1 / 32, 1, 6)
"""Shares of the capital that are staked: small ones for small differences, large ones for large."""


class Bounded(NamedTuple):
    """Values (..., n) with the least and the greatest possible value (...)."""

    values: Floats
    least: Floats
    greatest: Floats

    @property
    def turned(self) -> "Bounded":
        """The same values and limits with opposite signs."""
        return Bounded(-self.values, -self.greatest, -self.least)


def log_capital(sample: Bounded, mean: "Floats | float", times: float = 1.0) -> Floats:
    """Return the log of the capital (...) of a gambler who bets that the values have a greater mean than `mean`.

    If they have no greater mean, it ever exceeds c with a probability of at most 1 / c. It falls as `mean` grows.

    Args:
        sample: The values.
        mean: The mean that is bet against, above the least value.
        times: Number of times that each value is counted.
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
    """Return the interval of the mean that values (n,) are drawn with, which holds however often one looks."""
    return _lowest(sample, level), -_lowest(sample.turned, level)


def _lowest(sample: Bounded, level: float) -> float:
    least, mean = float(sample.least), float(sample.values.mean())
    nearest = least + 1e-9 * (float(sample.greatest) - least)
    rich = math.log(2 / (1 - level))
    if mean <= nearest or log_capital(sample, nearest) < rich:
        return least
    return float(scipy.optimize.brentq(lambda at: float(log_capital(sample, at)) - rich, nearest, mean))

"""Whether a mean over prompts is above a bound, tested one-sidedly, and what so many prompts could have shown."""

import math
from bisect import bisect_left
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.ordering import CHANCE

Floats = NDArray[np.float64]

FEWEST_CARRIERS = 8
"""Prompts by which the variance must be carried for a t test to be believed; of normal values a third of all."""
DRAWS = 9999
DRAWN_ALONE = 512
"""Values that get a weight of their own in a draw, the furthest from the median; the others share theirs."""
MOST_PROMPTS = 10**9


class MarginTest(NamedTuple):
    """A mean beside a bound; `low` to `high` is the interval that both one-sided tests of one level have."""

    mean: float
    low: float
    high: float
    p_above: float
    """One-sided, of the hypothesis that the mean is the bound or below: small where it is above."""
    p_below: float
    """Likewise the other way round."""
    n: int
    spread: float
    """Standard deviation."""


def margin_test(values: Floats, bound: float, alpha: float, worst: float, best: float) -> MarginTest:
    """Tests whether the mean of what prompts say, a value each (n,), n > 0, is above a bound, and whether below.

    The test is Student's, as non-inferiority by a margin is tested (Julious 2004, section 5). Where few prompts carry
    the variance it would take what it has not seen for impossible; there the bound is Gaffke's, which knows how far a
    prompt could have fallen (`worst`) or risen (`best`).
    """
    n, mean = len(values), float(values.mean())
    spread = float(values.std(ddof=1)) if n > 1 else math.nan
    if carriers(values) < FEWEST_CARRIERS:
        lowest = _drawn_means(values, worst)
        highest = -_drawn_means(-values, -best)
        return MarginTest(
            mean=mean,
            low=float(np.quantile(lowest, alpha)),
            high=float(np.quantile(highest, 1 - alpha)),
            p_above=float((1 + (lowest <= bound).sum()) / (1 + DRAWS)),
            p_below=float((1 + (highest >= bound).sum()) / (1 + DRAWS)),
            n=n,
            spread=spread,
        )
    error = spread / math.sqrt(n)
    t, reach = (mean - bound) / error, float(scipy.stats.t.isf(alpha, n - 1)) * error
    return MarginTest(
        mean=mean,
        low=mean - reach,
        high=mean + reach,
        p_above=float(scipy.stats.t.sf(t, n - 1)),
        p_below=float(scipy.stats.t.cdf(t, n - 1)),
        n=n,
        spread=spread,
    )


def carriers(values: Floats) -> float:
    """The number of equal deviations that would have these values' variance and fourth moment: few where a few
    prompts make all the difference, and others like them may have been missed.
    """
    squares = (values - values.mean()) ** 2
    return float(squares.sum() ** 2 / (squares**2).sum()) if squares.max(initial=0) > 1e-24 else 0.0


def _drawn_means(values: Floats, worst: float) -> Floats:
    """Means (DRAWS,) of the values and one more, the worst that there could be, under weights drawn uniformly.

    The share of them at a bound or below is a p-value of the mean (Gaffke 2005; Learned-Miller and Thomas 2019, A New
    Confidence Interval for the Mean of a Bounded Random Variable, which proves it of two values, where it is Clopper
    and Pearson's, and finds it to hold of all others).
    """
    furthest = np.argsort(-np.abs(values - np.median(values)), kind="stable")
    alone, others = values[furthest[:DRAWN_ALONE]], values[furthest[DRAWN_ALONE:]]
    weights = _weights(len(alone) + 1, len(others))
    return np.asarray(weights @ np.append(others.mean() if len(others) else 0.0, np.append(alone, worst)))


@lru_cache(maxsize=1)
def _weights(alone: int, others: int, seed: int = 0) -> Floats:
    """Weights (DRAWS, 1 + alone) that sum to 1, drawn uniformly: of so many others together, and of each alone."""
    random = np.random.default_rng(seed)
    together = random.standard_gamma(others, DRAWS) if others else np.zeros(DRAWS)
    drawn = np.column_stack([together, random.standard_exponential((DRAWS, alone))])
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True))


def power(effect: float, n: int, alpha: float) -> float:
    """The chance that the t test of n prompts shows a mean that is so many standard deviations above its bound."""
    return float(scipy.stats.nct.sf(scipy.stats.t.isf(alpha, n - 1), n - 1, effect * math.sqrt(n)))


def smallest_seen(n: int, alpha: float, chance: float = CHANCE) -> float:
    """By how many standard deviations a mean must be above its bound for n prompts to show it with this chance."""
    most = 4 * float(scipy.stats.t.isf(min(alpha, 1 - chance) / 2, n - 1))
    return float(scipy.optimize.brentq(lambda effect: power(effect, n, alpha) - chance, 0, most))


def prompts_needed(effect: float, alpha: float, chance: float = CHANCE) -> int:
    """How many prompts show with this chance a mean that is so many standard deviations, more than 0, above its
    bound; MOST_PROMPTS where it takes more.
    """
    return 2 + bisect_left(range(2, MOST_PROMPTS), chance, key=lambda n: power(effect, n, alpha))

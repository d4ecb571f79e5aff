"""A bootstrap that needs no table at hand: every prompt's Poisson(1) weights follow from its id's hash, so that sums
can be merged.

A resample's statistic is the ratio of two weighted sums. Whoever adds up parts of the rows, in any order and on any
machine, gets the sums of the whole. Source: Chamandy et al. 2012, Estimating Uncertainty for Massive Data Streams.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.statistics.bootstrap import widened_each

Floats = NDArray[np.float64]

RESAMPLES = 500
FEWEST_PROMPTS = 2.5
"""Below so many prompts (as the weights' spread tells their number) there is no interval."""
CUMULATIVE = np.cumsum([math.exp(-1) / math.factorial(count) for count in range(16)])
PROMPTS_AT_ONCE = 1024
"""So many prompts' weights are in memory at a time."""
PROMPTS_IN_CACHE = 64
"""So many prompts' numbers stay in a core's cache while their weights are made of them."""
STEP, FIRST, SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
STREAMS = np.arange(1, RESAMPLES + 1, dtype=np.uint64) * STEP
FIRST_BITS = 12
OPEN = 255
"""In place of a weight that the first bits of a number leave open."""


def hash_ids(ids: Sequence[str]) -> NDArray[np.uint64]:
    """A number for each id, the same in every process."""
    import pandas as pd  # takes a third of a second, which most commands and all workers do without

    return np.asarray(pd.util.hash_array(np.asarray(ids, dtype=object), categorize=False))


def uniform(hashes: NDArray[np.uint64]) -> Floats:
    """Numbers from 0 up to 1, as evenly spread as the hashes are."""
    return np.asarray((hashes >> np.uint64(11)) * 2.0**-53)


def drawn(prompts: NDArray[np.uint64], count: int | None, seed: int) -> NDArray[np.bool_]:
    """Which of some prompts, by their ids' hashes, are the `count` that a seed draws: of more prompts those and others.

    Their order is that of a SplitMix64 stream of each, of another one than their weights.
    """
    mixed = (prompts ^ SECOND) + np.uint64((seed + 1) * int(STEP) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * SECOND
    chosen = np.zeros(len(prompts), np.bool_)
    chosen[np.argsort(mixed, kind="stable")[:count]] = True
    return chosen


def poisson_weights(prompts: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Each prompt's weight in every resample, (prompts, RESAMPLES), from its id's hash (SplitMix64 streams)."""
    weights = np.empty((len(prompts), RESAMPLES), np.uint8)
    for first in range(0, len(prompts), PROMPTS_IN_CACHE):
        some = slice(first, first + PROMPTS_IN_CACHE)
        mixed = prompts[some, None] + STREAMS
        mixed ^= mixed >> np.uint64(30)
        mixed *= FIRST
        mixed ^= mixed >> np.uint64(27)
        mixed *= SECOND
        weights[some] = _weights(mixed)
    return weights


def _weights(mixed: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """The weights of SplitMix64 streams before their last step, which leaves the first bits as they are."""
    weights = WEIGHT_OF_FIRST_BITS[(mixed >> np.uint64(64 - FIRST_BITS)).view(np.int64)]
    open_ones = np.nonzero(weights == OPEN)
    left = mixed[open_ones]
    weights[open_ones] = np.searchsorted(CUMULATIVE, uniform(left ^ (left >> np.uint64(31))), side="right")
    return weights


def _weight_of_first_bits() -> NDArray[np.uint8]:
    """The weight of all numbers that begin with the same bits; OPEN where they have several."""
    ends = np.arange(2**FIRST_BITS + 1) / 2**FIRST_BITS
    lowest, highest = ends[:-1], ends[1:] - 2.0**-53
    least, most = (np.searchsorted(CUMULATIVE, numbers, side="right") for numbers in (lowest, highest))
    return np.where(least == most, least, OPEN).astype(np.uint8)


WEIGHT_OF_FIRST_BITS = _weight_of_first_bits()


def weighted_sums(prompts: NDArray[np.uint64], values: Callable[[slice], Floats]) -> Floats:
    """Sums over the prompts of k values each by their weights in every resample, (k, RESAMPLES).

    `prompts` are the hashes of their ids; `values` gives those of a run of the prompts, (prompts, k): so neither they
    nor the weights are held whole.
    """
    (sums,) = weighted_sums_of_each(prompts, [values])
    return sums


def weighted_sums_of_each(prompts: NDArray[np.uint64], values: Sequence[Callable[[slice], Floats]]) -> list[Floats]:
    """As `weighted_sums`, of several kinds of values of the same prompts, whose weights are made once."""
    sums: list[Floats] = [np.zeros((1, RESAMPLES)) for _ in values]
    for first in range(0, len(prompts), PROMPTS_AT_ONCE):
        part = slice(first, first + PROMPTS_AT_ONCE)
        weights = poisson_weights(prompts[part]).astype(np.float64)
        sums = [before + kind(part).T @ weights for before, kind in zip(sums, values, strict=True)]
    return sums


def ratio_intervals(totals: Floats, counts: Floats) -> Floats:
    """Low and high ends (2, k) of k ratios, from their weighted totals and counts in every resample (k, RESAMPLES).

    nan where fewer than three prompts have a value, or so few differ from the rest that no interval would hold.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(counts > 0, totals / counts, math.nan)
        prompts = np.nan_to_num(counts.mean(axis=1) ** 2 / counts.var(axis=1))
    return widened_each(ratios, np.where(prompts > FEWEST_PROMPTS, prompts, 0.0))

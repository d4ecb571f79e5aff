"""A bootstrap whose sums can be merged: a prompt's Poisson(1) weights depend only on the hash of its id.

The statistic of a resample is the ratio of two weighted sums. The sums over parts of the rows, computed in any order
and on any machine, add up to the sums over all rows. Source: Chamandy et al. 2012, Estimating Uncertainty for Massive
Data Streams.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.statistics.bootstrap import compute_percentile_intervals

Floats = NDArray[np.float64]

N_RESAMPLES = 500
MIN_PROMPTS = 2.5  # minimum number of prompts for an interval, as estimated from the spread of the weights
# probabilities of Poisson(1)
CUMULATIVE_PROBABILITIES = np.cumsum([math.exp(-1) / math.factorial(count) for count in range(16)])
PROMPTS_AT_ONCE = 1024  # prompts whose weights are in memory at a time
PROMPTS_IN_CACHE = 64  # prompts whose random numbers fit in a core's cache
# Constants of SplitMix64
STEP, FIRST, SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
STREAM_OFFSETS = np.arange(1, N_RESAMPLES + 1, dtype=np.uint64) * STEP
N_FIRST_BITS = 12
UNDECIDED_WEIGHT = 255  # marks random numbers whose first bits do not determine the weight
_INTERVAL_ENDS = np.arange(2**N_FIRST_BITS + 1) / 2**N_FIRST_BITS
_LEAST, _MOST = (
    np.searchsorted(CUMULATIVE_PROBABILITIES, ends, side="right")
    for ends in (_INTERVAL_ENDS[:-1], _INTERVAL_ENDS[1:] - 2.0**-53)
)
WEIGHT_OF_FIRST_BITS = np.where(_LEAST == _MOST, _LEAST, UNDECIDED_WEIGHT).astype(np.uint8)


def hash_ids(ids: Sequence[str]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each id, which is the same in every process and on every machine."""
    import pandas as pd  # takes a third of a second; most commands and all workers never need it

    return np.asarray(pd.util.hash_array(np.asarray(ids, dtype=object), categorize=False))


def convert_to_uniform(hashes: NDArray[np.uint64]) -> Floats:
    """Return hashes as numbers between 0 and 1 (both exclusive)."""
    return np.asarray((hashes >> np.uint64(11)) * 2.0**-53)


def draw_prompts(prompts: NDArray[np.uint64], count: int | None, seed: int) -> NDArray[np.bool_]:
    """Return True for each of `count` prompts (all if None) drawn at random, based on the hashes of their ids (n,).

    A larger `count` draws the same prompts and additional ones. The draw is independent of the prompts' weights.
    """
    mixed = (prompts ^ SECOND) + np.uint64((seed + 1) * int(STEP) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * SECOND
    mask = np.zeros(len(prompts), np.bool_)
    mask[np.argsort(mixed, kind="stable")[:count]] = True
    return mask


def draw_poisson_weights(prompts: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return each prompt's weight in every resample (prompts, N_RESAMPLES), based on the hash of its id."""
    weights = np.empty((len(prompts), N_RESAMPLES), np.uint8)
    for first in range(0, len(prompts), PROMPTS_IN_CACHE):
        block = slice(first, first + PROMPTS_IN_CACHE)
        mixed = prompts[block, None] + STREAM_OFFSETS
        mixed ^= mixed >> np.uint64(30)
        mixed *= FIRST
        mixed ^= mixed >> np.uint64(27)
        mixed *= SECOND
        # SplitMix64's last step does not change the first bits, so most weights are looked up without it.
        looked_up = WEIGHT_OF_FIRST_BITS[(mixed >> np.uint64(64 - N_FIRST_BITS)).view(np.int64)]
        undecided = np.nonzero(looked_up == UNDECIDED_WEIGHT)
        rest = mixed[undecided]
        looked_up[undecided] = np.searchsorted(
            CUMULATIVE_PROBABILITIES, convert_to_uniform(rest ^ (rest >> np.uint64(31))), side="right"
        )
        weights[block] = looked_up
    return weights


def compute_weighted_sums(prompts: NDArray[np.uint64], values: Sequence[Callable[[slice], Floats]]) -> list[Floats]:
    """Return the weighted sums of each function's k values over prompts, in every resample (k, N_RESAMPLES).

    `prompts` contains the hashes of the prompt ids (n,). Each function returns the values (prompts, k) for a slice of
    the prompts, so that values and weights of all prompts are never in memory at once.
    """
    sums: list[Floats] = [np.zeros((1, N_RESAMPLES)) for _ in values]
    for first in range(0, len(prompts), PROMPTS_AT_ONCE):
        block = slice(first, first + PROMPTS_AT_ONCE)
        weights = draw_poisson_weights(prompts[block]).astype(np.float64)
        sums = [before + function(block).T @ weights for before, function in zip(sums, values, strict=True)]
    return sums


def compute_ratio_intervals(totals: Floats, counts: Floats) -> Floats:
    """Return the ends (2, k) of the intervals of k ratios, given their weighted totals and counts (k, N_RESAMPLES).

    An interval is nan if fewer than three prompts have a value, or if the ratio depends on only a few prompts.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(counts > 0, totals / counts, math.nan)
        prompts = np.nan_to_num(counts.mean(axis=1) ** 2 / counts.var(axis=1))
    return compute_percentile_intervals(ratios, np.where(prompts > MIN_PROMPTS, prompts, 0.0))

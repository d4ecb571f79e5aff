"""Which of two generators, or metrics, is better, and how sure that is: signed-rank and permutation tests."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.options import ZeroHandling
from plumbline.operators.statistics.rounding import round_to, step_of

Floats = NDArray[np.float64]

MOST_EXACT = 50
"""Pairs that differ, up to which a p-value is exact."""
MOST_STEPS = 150_000
"""Of more pairs it is where they have few different sums of ranks, so that pairs times sums are at most this."""
DRAWN_TOGETHER = 512
ROUNDING = 1e-12
"""Differences of correlations this close are the same."""


class SignedRank(NamedTuple):
    """A Wilcoxon signed-rank test on paired values."""

    p_value: float
    """Two-sided, 1 where no pair differs; exact of few pairs, whatever ties there are, and normal of many."""
    effect: float
    """Matched-pairs rank-biserial correlation in [-1, 1]: (ranks for a - ranks for b) / all ranks; 0 where none
    differs."""
    difference: float
    """Mean of a - b."""
    win_rate: float
    """Share of pairs in which a is above b, ties counting half."""
    n: int
    """Pairs with both values."""
    differing: int
    """Those of them that differ."""


def signed_rank(a: Floats, b: Floats, *, zeros: ZeroHandling = "wilcox") -> SignedRank:
    """Compare paired values (n,); pairs with nan are left out.

    Pairs that do not differ are dropped (`wilcox`), or ranked and then dropped (`pratt`): the Gecko paper does not
    say which. Differences are equal if they differ only by rounding, such as 1 - 2/3 and 1/3 - 0.
    """
    return signed_rank_of(a - b, step_of(a, b), zeros=zeros)


def signed_rank_of(differences: Floats, step: float, *, zeros: ZeroHandling = "wilcox") -> SignedRank:
    """Do the same for differences a - b, compared as multiples of a step: `step_of` the values a and b."""
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    if not n:
        return SignedRank(math.nan, math.nan, math.nan, math.nan, 0, 0)
    mean = float(differences.mean())
    mean = mean if abs(mean) >= step / 2 else 0.0
    differences = round_to(differences, step)
    above, below = np.sort(differences[differences > 0]), np.sort(-differences[differences < 0])
    del differences
    differing = len(above) + len(below)
    wins = len(above) / n + (n - differing) / n / 2
    if not differing:
        return SignedRank(1.0, 0.0, 0.0, wins, n, 0)
    ranks = _rank(above, below, n - differing if zeros == "pratt" else 0)
    effect = (ranks.above - ranks.below) / (ranks.above + ranks.below)
    p_value = _exact_p_value(ranks)
    return SignedRank(_normal_p_value(ranks) if p_value is None else p_value, effect, mean, wins, n, differing)


class _Ranks(NamedTuple):
    """The ranks of the sizes of differences, doubled, so that they are whole where equal sizes share their mean."""

    doubled: NDArray[np.int64]
    """Of each size that there is, ascending."""
    counts: NDArray[np.int64]
    """How many differences have it."""
    above: int
    """The sum over the differences above 0."""
    below: int
    zeros: int
    """How many of no size were ranked before them."""


def _rank(above: Floats, below: Floats, zeros: int) -> _Ranks:
    """Of the sizes of the differences above 0 and below it, both ascending."""
    sizes = np.concatenate([above, below])
    sizes.sort()
    first = np.flatnonzero(np.append(True, sizes[1:] != sizes[:-1]))
    counts = np.diff(first, append=len(sizes))
    doubled = 2 * (zeros + first) + counts + 1
    of_above = np.diff(np.searchsorted(above, sizes[first]), append=len(above))
    total, sum_above = int(doubled @ counts), int(doubled @ of_above)
    return _Ranks(doubled, counts, sum_above, total - sum_above, zeros)


def _normal_p_value(ranks: _Ranks) -> float:
    """Two-sided, by the normal approximation with the variance of ties, and of zeros that were ranked (Cureton 1967).

    As scipy's `wilcoxon`, which ranks once more, and in eight arrays of the differences' length.
    """
    n, zeros = float(ranks.counts.sum() + ranks.zeros), float(ranks.zeros)
    counts = ranks.counts.astype(np.float64)
    mean = n * (n + 1) * 0.25 - zeros * (zeros + 1) * 0.25
    variance = n * (n + 1) * (2 * n + 1) - zeros * (zeros + 1) * (2 * zeros + 1)
    deviation = math.sqrt((variance - float((counts**3 - counts).sum()) / 2) / 24)
    return float(2 * scipy.special.ndtr(-abs(ranks.above / 2 - mean) / deviation))


def _exact_p_value(ranks: _Ranks) -> float | None:
    """Two-sided, over all equally likely signs of these ranks, ties as they are; None of many pairs.

    scipy has it of ranks without ties alone, and draws signs where there are some. Doubled ranks without their common
    factor are whole numbers, so that the numbers of ways to each of their sums grow rank by rank.
    """
    n, step = int(ranks.counts.sum()), int(np.gcd.reduce(ranks.doubled))
    total = (ranks.above + ranks.below) // step
    if n > MOST_EXACT and n * total > MOST_STEPS:
        return None
    ways, reached = np.zeros(total + 1), 1
    ways[0] = 1
    for rank in np.repeat(ranks.doubled // step, ranks.counts).tolist():
        ways[rank : rank + reached] += ways[:reached]
        reached += rank
    return min(1.0, math.ldexp(float(ways[max(ranks.above, ranks.below) // step :].sum()), 1 - n))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979) for as many tests as have a p-value; nan stays nan.

    In order of size, the k-th of m p-values counts m - k + 1 times, at least as much as the one before, and at most 1.
    (statsmodels has it too, and collects garbage at every call: 10 of the 20 seconds of a report.)
    """
    values = np.asarray(p_values, np.float64)
    tested = np.flatnonzero(np.isfinite(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    corrected = np.full(len(values), math.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)), 1)
    return [float(value) for value in corrected]


def permutation(differences: Floats, *, resamples: int = 9999, seed: int = 0) -> float:
    """Two-sided p-value that the mean of paired differences (one per prompt) is 0, by flipping their signs at
    random; nan of fewer than two.
    """
    if len(differences) < 2:
        return math.nan
    test = scipy.stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)


def permuted_correlations(
    human: Floats, a: Floats, b: Floats, prompt_ids: Sequence[str], *, resamples: int = 9999, seed: int = 0
) -> float:
    """Two-sided p-value that two metrics correlate equally with the same ratings (n,), by exchanging their
    standardised scores for whole prompts at random (Deutsch, Dror and Roth 2021, with prompts as the inputs).

    Images of a prompt move together, so that what they share is no evidence; where Williams' test (1959), which takes
    images as independent, finds a difference too often. nan where there are fewer than two prompts, or where a
    correlation is undefined.
    """
    codes = np.unique(np.asarray(prompt_ids, dtype=str), return_inverse=True)[1]
    columns = np.stack([human, a, b]).astype(np.float64)
    if codes.max(initial=0) < 1 or not np.ptp(columns, axis=1).all():
        return math.nan
    ratings, *metrics = scipy.stats.zscore(columns, axis=1)
    sums_a, sums_b = (_correlation_sums(ratings, scores, codes) for scores in metrics)
    moved = _exchanged(sums_b - sums_a, resamples, seed)
    correlations = [
        _correlations(sums / len(codes)) for sums in (sums_a.sum(axis=0) + moved, sums_b.sum(axis=0) - moved)
    ]
    differences = np.abs(correlations[0] - correlations[1])
    return float(np.mean(differences >= differences[0] - ROUNDING))


def _correlation_sums(ratings: Floats, scores: Floats, codes: NDArray[np.intp]) -> Floats:
    """By prompt, the sums that a correlation with standardised ratings is made of (prompts, 3): the scores, their
    squares, and their products with the ratings.
    """
    parts = (scores, scores**2, ratings * scores)
    return np.stack([np.bincount(codes, weights=part) for part in parts], axis=1)


def _exchanged(differences: Floats, resamples: int, seed: int) -> Floats:
    """Sums (1 + resamples, k) of the differences (prompts, k) over the prompts that are exchanged: none in the first
    row, each with probability 1/2 in the others.
    """
    prompts = len(differences)
    drawn = (np.unpackbits(block, axis=1, count=prompts) @ differences for block in _draws(prompts, resamples, seed))
    return np.concatenate([np.zeros((1, differences.shape[1])), *drawn])


@lru_cache(maxsize=1)
def _draws(prompts: int, resamples: int, seed: int) -> Sequence[NDArray[np.uint8]]:
    """Which prompts each resample exchanges, as bits, in blocks: drawn once for all metrics of the same prompts."""
    random = np.random.default_rng(seed)
    sizes = np.diff([*range(0, resamples, DRAWN_TOGETHER), resamples])
    return [np.packbits(random.integers(2, size=(size, prompts)).astype(np.uint8), axis=1) for size in sizes]


def _correlations(means: Floats) -> Floats:
    """Correlations with standardised ratings, of means (k, 3)."""
    mean, square, product = means.T
    with np.errstate(invalid="ignore"):
        return np.asarray(product / np.sqrt(square - mean**2))


CHANCE = 0.8
"""With which the pairs that are asked for show a difference."""


def fewest_pairs(tests: int, level: float) -> int:
    """The least number of pairs of which any outcome is significant at a level after Holm's correction for so many
    tests: n pairs that all differ the same way have the two-sided p-value 2^(1 - n), and there is none below.
    """
    return math.floor(math.log2(tests / level)) + 2


def pairs_needed(effect: float, tests: int, level: float, chance: float = CHANCE) -> int:
    """About how many pairs that differ show, with this chance and as the first of so many tests, a difference of this
    rank-biserial correlation (in [-1, 1], not 0).

    Noether 1987, Sample size determination for some common nonparametric tests: (z_alpha + z_beta)^2 / (3 (p - 1/2)^2),
    where p, the chance that the sum of two differences is above 0, is (1 + effect) / 2.
    """
    normal = NormalDist()  # scipy.stats takes a second to import, and a report needs nothing else of it
    reach = normal.inv_cdf(1 - level / (2 * tests)) + normal.inv_cdf(chance)
    return max(fewest_pairs(tests, level), math.ceil(4 * reach**2 / (3 * effect**2)))

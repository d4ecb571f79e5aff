"""Signed-rank and permutation tests that compare two generators or metrics."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.options import ZeroHandling
from plumbline.operators.statistics.rounding import choose_step, round_to_step

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

MAX_EXACT_PAIRS = 50  # p-values are exact for up to this number of differing pairs
MAX_EXACT_STEPS = 150_000  # for more pairs, they are exact if pairs x different sums of ranks is at most this
SIGN_STEPS = 240  # a multiple of the usual numbers of images of a prompt, so that their means are not rounded
RESAMPLES_AT_ONCE = 512
ROUNDING_TOLERANCE = 1e-12  # differences of correlations that are this close are equal
DEFAULT_POWER = 0.8  # probability that the recommended number of pairs shows a difference


class SignedRank(NamedTuple):
    """Result of a Wilcoxon signed-rank test on paired values a and b."""

    p_value: float
    """Two-sided p-value: exact for few pairs, even with ties; a normal approximation for many; 1 if no pair differs."""
    effect: float
    """Matched-pairs rank-biserial correlation in [-1, 1]: (ranks for a - ranks for b) / all ranks; 0 if no pair
    differs."""
    difference: float
    """Mean of a - b."""
    win_rate: float
    """Fraction of pairs with a > b; ties count half."""
    n: int
    """Number of pairs with both values."""
    differing: int
    """Number of pairs that differ."""


def signed_rank(a: Floats, b: Floats, *, zeros: ZeroHandling = "wilcox") -> SignedRank:
    """Return the signed-rank test of paired values (n,); pairs with nan are ignored.

    Pairs that do not differ are dropped (`wilcox`), or ranked and then dropped (`pratt`); the Gecko paper does not say
    which. Differences that are equal up to rounding, such as 1 - 2/3 and 1/3 - 0, count as equal.
    """
    return compute_signed_rank_test(a - b, choose_step(a, b), zeros=zeros)


def compute_signed_rank_test(differences: Floats, step: float, *, zeros: ZeroHandling = "wilcox") -> SignedRank:
    """Return the signed-rank test of paired values, given differences a - b (n,) rounded to multiples of `step`."""
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    if not n:
        return SignedRank(math.nan, math.nan, math.nan, math.nan, 0, 0)
    mean = float(differences.mean())
    mean = mean if abs(mean) >= step / 2 else 0.0
    differences = round_to_step(differences, step)
    above, below = np.sort(differences[differences > 0]), np.sort(-differences[differences < 0])
    del differences  # there may be millions
    differing = len(above) + len(below)
    wins = len(above) / n + (n - differing) / n / 2
    if not differing:
        return SignedRank(1.0, 0.0, 0.0, wins, n, 0)
    sizes = np.concatenate([above, below])
    sizes.sort()
    first = np.flatnonzero(np.append(True, sizes[1:] != sizes[:-1]))
    counts = np.diff(first, append=len(sizes))
    n_zeros = n - differing if zeros == "pratt" else 0  # zeros take the first ranks
    ranks = 2 * (n_zeros + first) + counts + 1  # doubled, so that the mean ranks of ties are whole numbers
    above_by_rank = np.diff(np.searchsorted(above, sizes[first]), append=len(above))
    sum_above = int(ranks @ above_by_rank)
    sum_below = int(ranks @ counts) - sum_above
    effect = (sum_above - sum_below) / (sum_above + sum_below)
    return SignedRank(_compute_p_value(ranks, counts, sum_above, sum_below, n_zeros), effect, mean, wins, n, differing)


def _compute_p_value(ranks: Longs, counts: Longs, sum_above: int, sum_below: int, n_zeros: int) -> float:
    """Return the two-sided p-value over all equally likely signs of the ranks.

    Args:
        ranks: Doubled rank of each distinct absolute difference, ascending.
        counts: Number of differences with each rank.
        sum_above: Sum of the doubled ranks of the differences above 0.
        sum_below: Sum of the doubled ranks of the differences below 0.
        n_zeros: Number of zeros, which take the first ranks.
    """
    n = int(counts.sum())
    exact = _compute_exact_p_value(ranks, counts, max(sum_above, sum_below))
    if exact is not None:
        return exact
    # Normal approximation, with the variance of ties and zeros (Cureton 1967). scipy's `wilcoxon` returns the same, but
    # ranks again, in eight arrays as long as the differences.
    every, zeros, tied = float(n + n_zeros), float(n_zeros), counts.astype(np.float64)
    mean = every * (every + 1) * 0.25 - zeros * (zeros + 1) * 0.25
    variance = every * (every + 1) * (2 * every + 1) - zeros * (zeros + 1) * (2 * zeros + 1)
    deviation = math.sqrt((variance - float((tied**3 - tied).sum()) / 2) / 24)
    return float(2 * scipy.special.ndtr(-abs(sum_above / 2 - mean) / deviation))


def _compute_exact_p_value(sizes: Longs, counts: Longs, largest: int) -> float | None:
    """Return the exact two-sided p-value of a sum of sizes with equally likely signs; None if it takes too long.

    The ways to reach each sum are counted by dynamic programming: scipy is exact only without ties.

    Args:
        sizes: Each distinct size, above 0.
        counts: Number of terms with each size.
        largest: The larger of two sums: of the sizes with a plus sign, and of those with a minus sign.
    """
    n, step = int(counts.sum()), int(np.gcd.reduce(sizes))
    total = int(sizes @ counts) // step
    if n > MAX_EXACT_PAIRS and n * total > MAX_EXACT_STEPS:
        return None
    ways, reached = np.zeros(total + 1), 1
    ways[0] = 1
    for size in np.repeat(sizes // step, counts).tolist():
        ways[size : size + reached] += ways[:reached]
        reached += size
    return min(1.0, math.ldexp(float(ways[largest // step :].sum()), 1 - n))


def compute_sign_flip_p_value(differences: Floats) -> float:
    """Return the two-sided p-value of the hypothesis that differences (n,) have mean 0, by a sign-flip test.

    The p-value is exact for few differences if each is as likely as its negative, as between equally good generators.
    For many differences it is a normal approximation, which only requires that the mean is 0. `permutation` draws signs
    at random instead. Sizes are rounded to SIGN_STEPS steps, so that their sums can be counted.

    The p-value is nan if there are no differences.
    """
    differences = differences[np.isfinite(differences)]
    largest = float(np.abs(differences).max(initial=0))
    if not len(differences) or not largest:
        return 1.0 if len(differences) else math.nan
    rounded = np.round(differences * (SIGN_STEPS / largest)).astype(np.int64)
    sizes, counts = np.unique(np.abs(rounded[rounded != 0]), return_counts=True)
    exact = _compute_exact_p_value(sizes, counts, int(sizes @ counts + abs(rounded.sum())) // 2)
    if exact is not None:
        return exact
    return float(2 * scipy.special.ndtr(-abs(differences.sum()) / math.sqrt(float((differences**2).sum()))))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm's step-down method (1979); nan stays nan and does not count as a test.

    statsmodels has the same function, but it runs the garbage collector on every call, which took 10 of the 20 seconds
    of a report.
    """
    values = np.asarray(p_values, np.float64)
    tested = np.flatnonzero(np.isfinite(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    corrected = np.full(len(values), math.nan)
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(order), 0, -1)), 1)
    return [float(value) for value in corrected]


def permutation(differences: Floats, *, resamples: int = 9999, seed: int = 0) -> float:
    """Return the two-sided p-value of the null hypothesis that differences (one per prompt) have mean 0.

    Signs are flipped at random. The p-value is nan for fewer than two differences.
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


def compute_correlation_p_value(
    human: Floats, a: Floats, b: Floats, prompt_ids: Sequence[str], *, resamples: int = 9999, seed: int = 0
) -> float:
    """Return the two-sided p-value of the null hypothesis that metrics a and b correlate equally with ratings (n,).

    The test exchanges the metrics' standardised scores for whole prompts at random (Deutsch, Dror and Roth 2021, with
    prompts as inputs), because images of a prompt are not independent. Williams' test (1959) assumes that they are, and
    so finds differences too often. The p-value is nan if there are fewer than two prompts or a correlation is
    undefined.
    """
    codes = np.unique(np.asarray(prompt_ids, dtype=str), return_inverse=True)[1]
    columns = np.stack([human, a, b]).astype(np.float64)
    if codes.max(initial=0) < 1 or not np.ptp(columns, axis=1).all():
        return math.nan
    ratings, *metrics = scipy.stats.zscore(columns, axis=1)
    sums_a, sums_b = (  # sums of scores, squared scores and scores x ratings, by prompt (prompts, 3)
        np.stack([np.bincount(codes, weights=x) for x in (scores, scores**2, ratings * scores)], axis=1)
        for scores in metrics
    )
    blocks = _draw_exchanges(len(sums_a), resamples, seed)
    moved = [np.unpackbits(block, axis=1, count=len(sums_a)) @ (sums_b - sums_a) for block in blocks]
    exchanged = np.concatenate([np.zeros((1, 3)), *moved])  # the first row exchanges nothing
    correlations = []
    for sums in (sums_a.sum(axis=0) + exchanged, sums_b.sum(axis=0) - exchanged):
        mean, square, product = (sums / len(codes)).T
        with np.errstate(invalid="ignore"):
            correlations.append(product / np.sqrt(square - mean**2))
    differences = np.abs(correlations[0] - correlations[1])
    return float(np.mean(differences >= differences[0] - ROUNDING_TOLERANCE))


@lru_cache(maxsize=1)
def _draw_exchanges(prompts: int, resamples: int, seed: int) -> Sequence[NDArray[np.uint8]]:
    """Return the prompts to exchange in each resample, as blocks of bits; cached for metrics with the same prompts."""
    random = np.random.default_rng(seed)
    sizes = np.diff([*range(0, resamples, RESAMPLES_AT_ONCE), resamples])
    return [np.packbits(random.integers(2, size=(size, prompts)).astype(np.uint8), axis=1) for size in sizes]


def compute_min_pairs(tests: int, level: float) -> int:
    """Return the minimum number of pairs for a signed-rank test to be significant after Holm's correction.

    `tests` is the number of tests. The smallest two-sided p-value of n pairs that all differ in the same direction is
    2^(1 - n).
    """
    return math.floor(math.log2(tests / level)) + 2


def estimate_pairs_needed(effect: float, tests: int, level: float, power: float = DEFAULT_POWER) -> int:
    """Estimate how many differing pairs are needed to detect a rank-biserial correlation with a given power.

    `effect` is the correlation (in [-1, 1], not 0). The p-value must be below `level` / `tests`, the strictest
    threshold of Holm's correction. The number is (z_alpha + z_beta)^2 / (3 (p - 1/2)^2), with p = (1 + effect) / 2, the
    probability that the sum of two differences is above 0 (Noether 1987, Sample size determination for some common
    nonparametric tests).
    """
    normal = NormalDist()  # scipy.stats takes a second to import
    reach = normal.inv_cdf(1 - level / (2 * tests)) + normal.inv_cdf(power)
    return max(compute_min_pairs(tests, level), math.ceil(4 * reach**2 / (3 * effect**2)))

"""Which of two generators, or metrics, is better, and how sure that is: signed-rank, permutation and Williams tests."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from operators.statistics.options import ZeroHandling

Floats = NDArray[np.float64]

MOST_EXACT = 50


class SignedRank(NamedTuple):
    """A Wilcoxon signed-rank test on paired values."""

    p_value: float
    """Two-sided; 1 where no pair differs."""
    effect: float
    """Matched-pairs rank-biserial correlation in [-1, 1]: (ranks for a - ranks for b) / all ranks; 0 where none
    differs."""
    difference: float
    """Mean of a - b."""
    win_rate: float
    """Share of pairs in which a is above b, ties counting half."""
    n: int
    """Pairs with both values."""


def signed_rank(a: Floats, b: Floats, *, zeros: ZeroHandling = "wilcox") -> SignedRank:
    """Compares paired values (n,); pairs with nan are left out.

    Pairs that do not differ are dropped (`wilcox`), or ranked and then dropped (`pratt`): the Gecko paper does not
    say which.
    """
    both = np.isfinite(a) & np.isfinite(b)
    differences = a[both] - b[both]
    n = len(differences)
    if not n:
        return SignedRank(math.nan, math.nan, math.nan, math.nan, 0)
    wins = float((differences > 0).mean() + (differences == 0).mean() / 2)
    if not differences.any():
        return SignedRank(1.0, 0.0, 0.0, wins, n)
    p_value = float(stats.wilcoxon(differences, zero_method=zeros, method=_method(differences)).pvalue)
    return SignedRank(p_value, _rank_biserial(differences, zeros), float(differences.mean()), wins, n)


def _method(differences: Floats) -> Literal["exact", "asymptotic"]:
    """The exact distribution where it holds: few pairs, all different; scipy's own choice would permute ties,
    slowly.
    """
    sizes = np.abs(differences)
    exact = len(sizes) <= MOST_EXACT and sizes.all() and len(np.unique(sizes)) == len(sizes)
    return "exact" if exact else "asymptotic"


def _rank_biserial(differences: Floats, zeros: ZeroHandling) -> float:
    ranked = differences if zeros == "pratt" else differences[differences != 0]
    ranks = stats.rankdata(np.abs(ranked))
    above, below = ranks[ranked > 0].sum(), ranks[ranked < 0].sum()
    return float((above - below) / (above + below))


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


def williams(r_human_a: float, r_human_b: float, r_a_b: float, n: int) -> float:
    """Two-sided p-value that two metrics correlate equally with the same ratings of n images (Williams 1959; Steiger
    1980, eq. 7).

    nan below four images or where a correlation is undefined; 1 where the metrics are the same.
    """
    if n < 4 or not all(map(math.isfinite, (r_human_a, r_human_b, r_a_b))):
        return math.nan
    if r_human_a == r_human_b:
        return 1.0
    determinant = 1 - r_human_a**2 - r_human_b**2 - r_a_b**2 + 2 * r_human_a * r_human_b * r_a_b
    mean = (r_human_a + r_human_b) / 2
    spread = 2 * (n - 1) / (n - 3) * determinant + mean**2 * (1 - r_a_b) ** 3
    if spread <= 0:
        return math.nan
    t = (r_human_a - r_human_b) * math.sqrt((n - 1) * (1 + r_a_b) / spread)
    return float(2 * stats.t.sf(abs(t), n - 3))


def permutation(differences: Floats, *, resamples: int = 9999, seed: int = 0) -> float:
    """Two-sided p-value that the mean of paired differences (one per prompt) is 0, by flipping their signs at
    random.
    """
    if not len(differences):
        return math.nan
    test = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)

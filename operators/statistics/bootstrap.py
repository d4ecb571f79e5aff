"""Bootstrap intervals that resample prompts, because the images of one prompt are not independent of each other.

A bootstrap treats values that no prompt showed as impossible: ten equal ratings would have an interval of length 0. So
a mean on a known scale gets Gaffke's bounds, which add one more prompt at the worst end of the scale, and a statistic
that few prompts decide gets no interval. The other intervals are widened by Student's quantile, because resamples of
few prompts spread too little.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.statistics.levels import CONFIDENCE, CONFIDENCE_QUANTILE
from plumbline.operators.statistics.options import Sampling
from plumbline.operators.statistics.ties import pairwise_correct

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

MIN_DIFFERING = 6
"""Prompts that must differ from the rest for an interval to hold; corrected means ask for as many."""
ROUNDING = 1e-12
FISHER_LIMIT = 0.999
"""Statistics nearer to the end of their scale are taken to be here."""
DRAWN_TOGETHER = 1 << 20
"""Number of weights in memory at a time."""
USUAL = Sampling()
MOST_PROMPTS_IN_PAIRS = 5_000
"""The pairs between prompts take the square of this many numbers."""
ROWS_OF_PAIRS = 512


class Interval(NamedTuple):
    """The 95% interval of a statistic; nan if it is undefined or would not hold."""

    low: float
    high: float


UNDEFINED = Interval(math.nan, math.nan)


class Scale(NamedTuple):
    """The least and the greatest possible value."""

    least: float
    greatest: float


SHARES, CORRELATIONS = Scale(0.0, 1.0), Scale(-1.0, 1.0)


class Prompts:
    """The rows of each prompt, and resamples of the prompts, with replacement; the same seed gives the same ones."""

    def __init__(self, prompt_ids: Sequence[str], sampling: Sampling = USUAL, name: str = "prompts") -> None:
        self.sampling, self.name = sampling, name
        self.codes = np.unique(np.asarray(prompt_ids, dtype=str), return_inverse=True)[1].astype(np.int64)
        self.count = int(self.codes.max(initial=-1)) + 1
        order = np.argsort(self.codes, kind="stable")
        self.rows = np.split(order, np.cumsum(np.bincount(self.codes, minlength=self.count))[:-1])

    def describe(self, interval: Interval, scale: Scale | None = None) -> str:
        """Return how the interval of a mean was computed, on a scale if one is given, or why it is undefined."""
        if self.count < 2:
            return f"no interval: {self.count} {self.name}, where two or more are resampled"
        if math.isnan(interval.low):
            return f"no interval: too few of {self.count} {self.name} differ from the rest"
        if scale is not None:
            return f"95% interval: Gaffke's, of {self.count} {self.name}, from {scale.least:g} to {scale.greatest:g}"
        resamples = self.sampling.resamples
        return f"95% interval: bootstrap of {self.count} {self.name}, {resamples} resamples, with Student's quantile"

    def differing(self, values: Floats) -> int:
        """Return the number of prompts with a value other than the commonest of the values (n,)."""
        if not len(values):
            return 0
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        return len(np.unique(self.codes[inverse != counts.argmax()]))

    def interval(self, statistic: Callable[[Longs], float], scale: Scale | None = None) -> Interval:
        """Return the interval of a statistic of row indices, without the resamples whose statistic is undefined.

        On a `scale` the interval is that of the statistic's Fisher transform, so that it stays on the scale.
        """
        if self.count < 2:
            return UNDEFINED
        random = np.random.default_rng(self.sampling.seed)
        values = [
            statistic(np.concatenate([self.rows[code] for code in random.integers(self.count, size=self.count)]))
            for _ in range(self.sampling.resamples)
        ]
        return student_interval(statistic(np.arange(len(self.codes))), np.asarray(values), self.count, scale)

    def mean_interval(self, values: Floats, scale: Scale | None = None) -> Interval:
        """Return the interval of the mean of the rows' values (n,), which lie on the scale if one is given."""
        sums = np.bincount(self.codes, weights=values, minlength=self.count).astype(np.float64)
        sizes = np.bincount(self.codes, minlength=self.count)
        return self.ratio_interval(sums, sizes.astype(np.float64), scale)

    def ratio_interval(self, numerators: Floats, denominators: Floats, scale: Scale | None = None) -> Interval:
        """Return the interval of the sum of prompts' numerators by that of their denominators, on a scale if given."""
        if self.count < 2 or not denominators.sum():
            return UNDEFINED
        if scale is not None:
            return gaffke_interval(numerators, denominators, scale, self.sampling)
        drawn = self.multiplicities()
        with np.errstate(invalid="ignore"):
            resampled = (drawn @ numerators) / (drawn @ denominators)
        return widened(resampled, self.count, _ratio_skewness(numerators, denominators))

    def multiplicities(self) -> Floats:
        """How often each resample holds each prompt (resamples, prompts)."""
        random = np.random.default_rng(self.sampling.seed)
        shares = np.full(self.count, 1 / self.count)
        return random.multinomial(self.count, shares, size=self.sampling.resamples).astype(np.float64)

    def pairwise_interval(self, human: Floats, metric: Floats, epsilon: float, *, grouped: bool) -> Interval:
        """Return the interval of pairwise accuracy at a fixed threshold; if `grouped`, of the pairs within prompts."""
        if grouped:
            accuracies = [
                accuracy_within(human[rows], metric[rows], epsilon) if len(rows) > 1 else math.nan for rows in self.rows
            ]
            values = np.asarray(accuracies)
            return self.ratio_interval(np.nan_to_num(values), np.isfinite(values).astype(np.float64), SHARES)
        if not 2 <= self.count <= MOST_PROMPTS_IN_PAIRS or not self.all_differ(human, metric):
            return UNDEFINED
        correct, pairs = self._between_prompts(human, metric, epsilon)
        drawn = self.multiplicities()
        with np.errstate(invalid="ignore"):
            found = _quadratic(drawn, correct) / _quadratic(drawn, pairs)
        return student_interval(float(correct.sum() / pairs.sum()), found, self.count, SHARES)

    def all_differ(self, *columns: Floats) -> bool:
        """Return True if enough prompts differ in each column (n,) for an interval of a statistic of the columns."""
        return all(self.differing(values) >= MIN_DIFFERING for values in columns)

    def _between_prompts(self, human: Floats, metric: Floats, epsilon: float) -> tuple[Floats, Floats]:
        """Count the correct pairs and all pairs of rows between every two prompts; no row is paired with itself."""
        correct = np.zeros((self.count, self.count))
        order = np.concatenate(self.rows)
        human, metric, codes = human[order], metric[order], self.codes[order]
        starts = np.searchsorted(codes, np.arange(self.count))
        for first in range(0, len(order), ROWS_OF_PAIRS):
            rows = np.arange(first, min(first + ROWS_OF_PAIRS, len(order)))
            hits = pairwise_correct(human, metric, epsilon, rows)
            np.add.at(correct, codes[rows], np.add.reduceat(hits, starts, axis=1, dtype=np.int32))
        sizes = np.diff(np.append(starts, len(order))).astype(np.float64)
        own = np.diag(sizes)
        return correct - own, np.outer(sizes, sizes) - own


def student_interval(value: float, resampled: Floats, count: int, scale: Scale | None = None) -> Interval:
    """Return Student's interval about a statistic of `count` prompts, whose error is the spread of the resamples.

    It is undefined if most resamples are undefined or all are the same. On a scale it is that of Fisher's transform.
    """
    defined = resampled[np.isfinite(resampled)]
    if len(defined) < len(resampled) / 2 or not math.isfinite(value) or np.ptp(defined) < ROUNDING:
        return UNDEFINED
    if scale is not None:
        value, defined = float(_transformed(np.array(value), scale)), _transformed(defined, scale)
    reach = float(student(count)) * float(defined.std())
    ends = np.array([value - reach, value + reach])
    if scale is not None:
        ends = (scale.greatest + scale.least + (scale.greatest - scale.least) * np.tanh(ends)) / 2
    return Interval(*ends.tolist())


def _transformed(values: Floats, scale: Scale) -> Floats:
    """Return Fisher's transform of values on a scale."""
    centred = (2 * values - scale.greatest - scale.least) / (scale.greatest - scale.least)
    return np.asarray(np.arctanh(np.clip(centred, -FISHER_LIMIT, FISHER_LIMIT)))


def student(counts: Floats | int) -> Floats:
    """Return half the width of an interval in standard deviations of resampled means, for these numbers of prompts.

    It is Student's quantile, times sqrt(n / (n - 1)), because resampled means spread less than the standard error.
    """
    degrees = np.asarray(counts, np.float64) - 1
    import scipy  # imported here, because a status computes no interval

    return np.asarray(scipy.special.stdtrit(degrees, (1 + CONFIDENCE) / 2) * np.sqrt(1 + 1 / degrees))


def _ratio_skewness(numerators: Floats, denominators: Floats) -> float:
    """Return the skewness of the sum of prompts' numerators by that of their denominators, to first order.

    Few resamples estimate it badly: by chance 200 of them are as skewed as MIN_DIFFERING prompts in 2 of 100 cases.
    """
    residuals = numerators - numerators.sum() / denominators.sum() * denominators
    spread = float((residuals**2).sum())
    return float((residuals**3).sum()) / spread**1.5 if spread > 0 else math.nan


def widened(resampled: Floats, count: float, skewness: float) -> Interval:
    """Return the middle 95% of the defined resampled means, widened about their mean.

    It is widened by the ratio of Student's quantile to the normal quantile. It is undefined if the `skewness` is that
    of a mean that fewer than MIN_DIFFERING prompts decide. The limit is the skewness of a Poisson number with mean
    MIN_DIFFERING: 1 / sqrt(MIN_DIFFERING).
    """
    low, high = widened_each(resampled[None], np.array([count]), np.array([skewness]))[:, 0]
    return Interval(float(low), float(high))


def widened_each(resampled: Floats, counts: Floats, skewness: Floats | None = None) -> Floats:
    """Return the ends (2, k) of the intervals of k means (k, resamples), each computed as `widened` does.

    `counts` (k,) has each mean's number of prompts. Without `skewness` (k,) the skewness of the resamples is taken,
    which needs hundreds of them.
    """
    ends = np.full((2, len(resampled)), math.nan)
    known = np.flatnonzero((counts > 1) & np.isfinite(resampled).any(axis=1))
    if not len(known):
        return ends
    values, count = resampled[known], counts[known]
    middle = np.nanmean(values, axis=1)
    spread = np.nanstd(values, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = np.nanmean((values - middle[:, None]) ** 3, axis=1) / spread**3
    skewed = drawn if skewness is None else skewness[known]
    quantiles = np.nanquantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=1)
    holds = (spread > ROUNDING * np.abs(middle)) & (np.abs(skewed) < 1 / math.sqrt(MIN_DIFFERING))
    ends[:, known] = np.where(holds, middle + student(count) / CONFIDENCE_QUANTILE * (quantiles - middle), math.nan)
    return ends


def gaffke_interval(numerators: Floats, denominators: Floats, scale: Scale, sampling: Sampling) -> Interval:
    """Return Gaffke's interval of a mean on a scale, from prompts' sums and sizes (k,).

    It holds for few prompts and for equal ones. Each end is a quantile of the means under uniformly drawn weights, with
    one more prompt at that end of the scale (Gaffke 2005; Learned-Miller and Thomas 2019). For shares it is Clopper and
    Pearson's interval.
    """
    random = np.random.default_rng(sampling.seed)
    kinds, counts = np.unique(np.column_stack([numerators, denominators]), axis=0, return_counts=True)
    draws = max(1, DRAWN_TOGETHER // len(kinds))
    drawn = [
        random.standard_gamma(counts, (min(draws, sampling.resamples - first), len(kinds))) @ kinds
        for first in range(0, sampling.resamples, draws)
    ]
    total, size = np.concatenate(drawn).T
    one_more = random.standard_exponential(sampling.resamples) * denominators.mean()
    low, high = ((total + end * one_more) / (size + one_more) for end in scale)
    ends = np.quantile(low, (1 - CONFIDENCE) / 2), np.quantile(high, (1 + CONFIDENCE) / 2)
    return Interval(*np.clip(ends, *scale).tolist())  # sums of equal numbers can be beyond by rounding


def accuracy_within(human: Floats, metric: Floats, epsilon: float) -> float:
    """Pairwise accuracy of the pairs of a few rows (n,), n > 1, with scores within epsilon tied."""
    correct = pairwise_correct(human, metric, epsilon)
    return float((correct.sum() - len(human)) / (len(human) * (len(human) - 1)))


def _quadratic(drawn: Floats, pairs: Floats) -> Floats:
    """drawn[r] @ pairs @ drawn[r] for every resample r."""
    return np.asarray(np.einsum("rp,rp->r", drawn @ pairs, drawn))

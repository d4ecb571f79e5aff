"""Bootstrap intervals that resample prompts, because the images of one prompt are not independent.

A bootstrap treats values that did not occur as impossible: the interval of ten equal ratings would have length 0.
Therefore, a mean on a known scale gets Gaffke's bounds, which add an extra prompt at the worst end of the scale, and a
statistic that depends on only a few prompts gets no interval. All other intervals are widened by Student's quantile,
because resamples of few prompts vary too little.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.statistics.confidence_levels import CONFIDENCE, CONFIDENCE_QUANTILE
from plumbline.operators.statistics.options import Sampling
from plumbline.operators.statistics.ties import find_correct_pairs

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

MIN_DIFFERING_PROMPTS = 6  # minimum number of prompts that differ from the rest; the same as for corrected means
ROUNDING_TOLERANCE = 1e-12
FISHER_LIMIT = 0.999  # statistics nearer to an end of their scale are moved here: Fisher's transform of it is infinite
MAX_WEIGHTS_IN_MEMORY = 1 << 20
MAX_PROMPTS_IN_PAIRS = 5_000  # limit for pairs between prompts, whose matrices have a row and column per prompt
PAIR_ROWS_AT_ONCE = 512
DEFAULT_SAMPLING = Sampling()


class Interval(NamedTuple):
    """The 95% interval of a statistic; nan if it is undefined or would not be valid."""

    low: float
    high: float


UNDEFINED_INTERVAL = Interval(math.nan, math.nan)


class Scale(NamedTuple):
    """The lowest and the highest possible value of a rating or statistic."""

    least: float
    greatest: float


SHARES, CORRELATIONS = Scale(0.0, 1.0), Scale(-1.0, 1.0)


class Prompts:
    """The rows of each prompt, and bootstrap resamples of the prompts, which depend only on the seed."""

    def __init__(self, prompt_ids: Sequence[str], sampling: Sampling = DEFAULT_SAMPLING, name: str = "prompts") -> None:
        self.sampling, self.name = sampling, name
        self.codes = np.unique(np.asarray(prompt_ids, dtype=str), return_inverse=True)[1].astype(np.int64)
        self.count = int(self.codes.max(initial=-1)) + 1
        order = np.argsort(self.codes, kind="stable")
        self.rows = np.split(order, np.cumsum(np.bincount(self.codes, minlength=self.count))[:-1])

    def describe(self, interval: Interval, scale: Scale | None = None) -> str:
        """Describe how the interval of a mean was computed (on a scale, if given), or why it is undefined."""
        if self.count < 2:
            return f"no interval: {self.count} {self.name}, but at least 2 are needed"
        if math.isnan(interval.low):
            return f"no interval: too few of {self.count} {self.name} differ from the rest"
        if scale is not None:
            return f"95% interval: Gaffke's, {self.count} {self.name}, scale from {scale.least:g} to {scale.greatest:g}"
        resamples = self.sampling.resamples
        return f"95% interval: bootstrap of {self.count} {self.name}, {resamples} resamples, with Student's quantile"

    def count_differing(self, values: Floats) -> int:
        """Return the number of prompts with a value other than the most common of the values (n,)."""
        if not len(values):
            return 0
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        return len(np.unique(self.codes[inverse != counts.argmax()]))

    def interval(self, statistic: Callable[[Longs], float], scale: Scale | None = None) -> Interval:
        """Return the interval of a statistic computed from row indices; resamples where it is undefined are ignored.

        If a `scale` is given, the interval is computed for the statistic's Fisher transform, so that it stays on the
        scale.
        """
        if self.count < 2:
            return UNDEFINED_INTERVAL
        random = np.random.default_rng(self.sampling.seed)
        values = [
            statistic(np.concatenate([self.rows[code] for code in random.integers(self.count, size=self.count)]))
            for _ in range(self.sampling.resamples)
        ]
        return compute_student_interval(statistic(np.arange(len(self.codes))), np.asarray(values), self.count, scale)

    def mean_interval(self, values: Floats, scale: Scale | None = None) -> Interval:
        """Return the interval of the mean of the rows' values (n,), which must lie on the scale if one is given."""
        sums = np.bincount(self.codes, weights=values, minlength=self.count).astype(np.float64)
        sizes = np.bincount(self.codes, minlength=self.count)
        return self.ratio_interval(sums, sizes.astype(np.float64), scale)

    def ratio_interval(self, numerators: Floats, denominators: Floats, scale: Scale | None = None) -> Interval:
        """Return the interval of sum(numerators) / sum(denominators), each with one value per prompt."""
        if self.count < 2 or not denominators.sum():
            return UNDEFINED_INTERVAL
        if scale is not None:
            return compute_gaffke_interval(numerators, denominators, scale, self.sampling)
        drawn = self.draw_multiplicities()
        with np.errstate(invalid="ignore"):
            resampled = (drawn @ numerators) / (drawn @ denominators)
        # The skewness is computed to first order, because 200 resamples are by chance too skewed in 2 of 100 cases.
        residuals = numerators - numerators.sum() / denominators.sum() * denominators
        spread = float((residuals**2).sum())
        skewness = float((residuals**3).sum()) / spread**1.5 if spread > 0 else math.nan
        ends = compute_percentile_intervals(resampled[None], np.array([self.count]), np.array([skewness]))
        return Interval(*ends[:, 0].tolist())

    def draw_multiplicities(self) -> Floats:
        """Return a matrix (resamples, prompts) that says how often each resample contains each prompt."""
        random = np.random.default_rng(self.sampling.seed)
        shares = np.full(self.count, 1 / self.count)
        return random.multinomial(self.count, shares, size=self.sampling.resamples).astype(np.float64)

    def pairwise_interval(self, human: Floats, metric: Floats, epsilon: float, *, grouped: bool) -> Interval:
        """Return the interval of pairwise accuracy at a fixed threshold; if `grouped`, for pairs within prompts."""
        if grouped:
            values, counted = np.zeros((2, self.count))
            for prompt, rows in enumerate(self.rows):
                if len(rows) > 1:
                    values[prompt], counted[prompt] = compute_pairwise_accuracy(human[rows], metric[rows], epsilon), 1
            return self.ratio_interval(values, counted, SHARES)
        if not 2 <= self.count <= MAX_PROMPTS_IN_PAIRS or not self.have_enough_variation(human, metric):
            return UNDEFINED_INTERVAL
        order = np.concatenate(self.rows)
        human, metric, codes = human[order], metric[order], self.codes[order]
        starts = np.searchsorted(codes, np.arange(self.count))
        hits = np.zeros((self.count, self.count))  # number of correct pairs of rows, for every pair of prompts
        for first in range(0, len(order), PAIR_ROWS_AT_ONCE):
            rows = np.arange(first, min(first + PAIR_ROWS_AT_ONCE, len(order)))
            is_correct = find_correct_pairs(human, metric, epsilon, rows)
            np.add.at(hits, codes[rows], np.add.reduceat(is_correct, starts, axis=1, dtype=np.int32))
        sizes = np.diff(np.append(starts, len(order))).astype(np.float64)
        itself = np.diag(sizes)  # a row is not paired with itself
        correct, pairs = hits - itself, np.outer(sizes, sizes) - itself
        drawn = self.draw_multiplicities()
        with np.errstate(invalid="ignore"):
            resampled = ((drawn @ correct) * drawn).sum(axis=1) / ((drawn @ pairs) * drawn).sum(axis=1)
        return compute_student_interval(float(correct.sum() / pairs.sum()), resampled, self.count, SHARES)

    def have_enough_variation(self, *columns: Floats) -> bool:
        """Return True if every column of values (n,) varies across enough prompts to compute an interval.

        At least MIN_DIFFERING_PROMPTS prompts must have a value other than the column's most common value.
        """
        return all(self.count_differing(values) >= MIN_DIFFERING_PROMPTS for values in columns)


def compute_student_interval(value: float, resampled: Floats, count: int, scale: Scale | None = None) -> Interval:
    """Return Student's t interval for a statistic of `count` prompts; the standard error is the resamples' spread.

    The interval is undefined if most resamples are undefined or all are equal. If a `scale` is given, the interval is
    computed for the Fisher transform of the statistic.
    """
    defined = resampled[np.isfinite(resampled)]
    if len(defined) < len(resampled) / 2 or not math.isfinite(value) or np.ptp(defined) < ROUNDING_TOLERANCE:
        return UNDEFINED_INTERVAL
    values = np.append(value, defined)
    if scale is not None:
        values = (2 * values - scale.greatest - scale.least) / (scale.greatest - scale.least)
        values = np.arctanh(np.clip(values, -FISHER_LIMIT, FISHER_LIMIT))
    half_width = float(compute_student_quantiles(count)) * float(values[1:].std())
    ends = np.array([values[0] - half_width, values[0] + half_width])
    if scale is not None:
        ends = (scale.greatest + scale.least + (scale.greatest - scale.least) * np.tanh(ends)) / 2
    return Interval(*ends.tolist())


def compute_student_quantiles(counts: Floats | int) -> Floats:
    """Return the half-widths of intervals, in standard deviations of resampled means, given the numbers of prompts.

    The half-widths are Student's quantile times sqrt(n / (n - 1)), because resampled means vary less than the standard
    error.
    """
    degrees = np.asarray(counts, np.float64) - 1
    import scipy  # imported here because it is slow, and `plumbline status` computes no interval

    return np.asarray(scipy.special.stdtrit(degrees, (1 + CONFIDENCE) / 2) * np.sqrt(1 + 1 / degrees))


def compute_percentile_intervals(resampled: Floats, counts: Floats, skewness: Floats | None = None) -> Floats:
    """Return the ends (2, k) of the middle 95% of k resampled means (k, resamples); nan resamples are ignored.

    The intervals are widened about their means by the ratio of Student's quantile to the normal quantile. An interval
    is nan if its skewness reaches 1 / sqrt(MIN_DIFFERING_PROMPTS), the skewness of a Poisson variable with mean
    MIN_DIFFERING_PROMPTS: then the mean depends on fewer than MIN_DIFFERING_PROMPTS prompts. It is also nan for a mean
    of fewer than two prompts, and if all resamples are equal up to rounding.

    Args:
        resampled: The resampled means.
        counts: Number of prompts behind each mean (k,).
        skewness: Skewness of each mean (k,). By default it is computed from the resamples, which requires hundreds.
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
    valid = (spread > ROUNDING_TOLERANCE * np.abs(middle)) & (np.abs(skewed) < 1 / math.sqrt(MIN_DIFFERING_PROMPTS))
    factor = compute_student_quantiles(count) / CONFIDENCE_QUANTILE
    ends[:, known] = np.where(valid, middle + factor * (quantiles - middle), math.nan)
    return ends


def compute_gaffke_interval(numerators: Floats, denominators: Floats, scale: Scale, sampling: Sampling) -> Interval:
    """Return Gaffke's interval for a mean on a scale, from the sum and the number of values of each prompt (k,).

    The interval is valid even for few prompts and for equal values. Each end is a quantile of the means under uniformly
    drawn weights, with an extra prompt at that end of the scale (Gaffke 2005; Learned-Miller and Thomas 2019). For
    proportions this is the Clopper-Pearson interval.
    """
    random = np.random.default_rng(sampling.seed)
    kinds, counts = np.unique(np.column_stack([numerators, denominators]), axis=0, return_counts=True)
    draws = max(1, MAX_WEIGHTS_IN_MEMORY // len(kinds))
    drawn = [
        random.standard_gamma(counts, (min(draws, sampling.resamples - first), len(kinds))) @ kinds
        for first in range(0, sampling.resamples, draws)
    ]
    total, size = np.concatenate(drawn).T
    one_more = random.standard_exponential(sampling.resamples) * denominators.mean()
    low, high = ((total + end * one_more) / (size + one_more) for end in scale)
    ends = np.quantile(low, (1 - CONFIDENCE) / 2), np.quantile(high, (1 + CONFIDENCE) / 2)
    return Interval(*np.clip(ends, *scale).tolist())  # rounding can move means of equal values off the scale


def compute_pairwise_accuracy(human: Floats, metric: Floats, epsilon: float) -> float:
    """Return the fraction of correct pairs among a few rows (n,), n > 1; scores within epsilon count as tied."""
    correct = find_correct_pairs(human, metric, epsilon)
    return float((correct.sum() - len(human)) / (len(human) * (len(human) - 1)))

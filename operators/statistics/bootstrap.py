"""Bootstrap intervals that resample prompts, because the images of one prompt are not independent of each other."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.statistics.options import Sampling
from plumbline.operators.statistics.ties import pairwise_correct

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

LEVEL = 0.95
USUAL = Sampling()
MOST_PROMPTS_IN_PAIRS = 5_000
"""The pairs between prompts take the square of this many numbers."""
ROWS_OF_PAIRS = 512


class Interval(NamedTuple):
    """The percentile interval of a statistic; nan where it is not defined."""

    low: float
    high: float


UNDEFINED = Interval(math.nan, math.nan)


class Prompts:
    """The rows of each prompt, and resamples of the prompts, with replacement; the same seed gives the same ones."""

    def __init__(self, prompt_ids: Sequence[str], sampling: Sampling = USUAL, name: str = "prompts") -> None:
        self.sampling, self.name = sampling, name
        self.codes = np.unique(np.asarray(prompt_ids, dtype=str), return_inverse=True)[1].astype(np.int64)
        self.count = int(self.codes.max(initial=-1)) + 1
        order = np.argsort(self.codes, kind="stable")
        self.rows = np.split(order, np.cumsum(np.bincount(self.codes, minlength=self.count))[:-1])

    @property
    def words(self) -> str:
        """How intervals are made."""
        if self.count < 2:
            return f"no interval: {self.count} {self.name}, where two or more are resampled"
        resamples = self.sampling.resamples
        return f"95% interval: percentile bootstrap of {self.count} {self.name}, {resamples} resamples"

    def interval(self, statistic: Callable[[Longs], float]) -> Interval:
        """The interval of a statistic of rows, given as their indices; resamples where it is undefined are left out."""
        if self.count < 2:
            return UNDEFINED
        random = np.random.default_rng(self.sampling.seed)
        values = [
            statistic(np.concatenate([self.rows[code] for code in random.integers(self.count, size=self.count)]))
            for _ in range(self.sampling.resamples)
        ]
        return percentiles(np.asarray(values))

    def mean_interval(self, values: Floats) -> Interval:
        """The interval of the mean of the rows' values (n,)."""
        sums = np.bincount(self.codes, weights=values, minlength=self.count).astype(np.float64)
        sizes = np.bincount(self.codes, minlength=self.count)
        return self.ratio_interval(sums, sizes.astype(np.float64))

    def ratio_interval(self, numerators: Floats, denominators: Floats) -> Interval:
        """The interval of the sum over prompts of one number by that of another."""
        if self.count < 2:
            return UNDEFINED
        drawn = self.multiplicities()
        with np.errstate(invalid="ignore"):
            return percentiles((drawn @ numerators) / (drawn @ denominators))

    def multiplicities(self) -> Floats:
        """How often each resample holds each prompt (resamples, prompts)."""
        random = np.random.default_rng(self.sampling.seed)
        shares = np.full(self.count, 1 / self.count)
        return random.multinomial(self.count, shares, size=self.sampling.resamples).astype(np.float64)

    def pairwise_interval(self, human: Floats, metric: Floats, epsilon: float, *, grouped: bool) -> Interval:
        """The interval of pairwise accuracy with its threshold held; of pairs within a prompt only where `grouped`."""
        if grouped:
            accuracies = [
                accuracy_within(human[rows], metric[rows], epsilon) if len(rows) > 1 else math.nan for rows in self.rows
            ]
            values = np.asarray(accuracies)
            return self.ratio_interval(np.nan_to_num(values), np.isfinite(values).astype(np.float64))
        if not 2 <= self.count <= MOST_PROMPTS_IN_PAIRS:
            return UNDEFINED
        correct, pairs = self._between_prompts(human, metric, epsilon)
        drawn = self.multiplicities()
        with np.errstate(invalid="ignore"):
            return percentiles(_quadratic(drawn, correct) / _quadratic(drawn, pairs))

    def _between_prompts(self, human: Floats, metric: Floats, epsilon: float) -> tuple[Floats, Floats]:
        """The correct pairs and all pairs of rows between every two prompts, a row never paired with itself."""
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


def percentiles(values: Floats) -> Interval:
    """The middle 95% of resampled values, those that are undefined left out."""
    defined = values[np.isfinite(values)]
    if not len(defined):
        return UNDEFINED
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def accuracy_within(human: Floats, metric: Floats, epsilon: float) -> float:
    """Pairwise accuracy of the pairs of a few rows (n,), n > 1, with scores within epsilon tied."""
    correct = pairwise_correct(human, metric, epsilon)
    return float((correct.sum() - len(human)) / (len(human) * (len(human) - 1)))


def _quadratic(drawn: Floats, pairs: Floats) -> Floats:
    """drawn[r] @ pairs @ drawn[r] for every resample r."""
    return np.asarray(np.einsum("rp,rp->r", drawn @ pairs, drawn))

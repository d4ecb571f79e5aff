"""Pairwise accuracy with tie calibration, exact at any size (Deutsch, Foster and Freitag 2023, section 5).

Source: Ties Matter: Meta-Evaluating Modern Metrics with Pairwise Accuracy and Tie Calibration. The pairs are never all
in memory. A wavelet matrix counts the pairs within a threshold in O(n log n). Between two thresholds a and b, the
accuracy is at most that of finding every human tie up to b and losing no concordant pair beyond a. The search skips
ranges in which this upper bound is below the best accuracy found so far.

Differences are rounded to multiples of a small step, so that values that are equal but for rounding errors share a
threshold, which lies half a step above them.
"""

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.statistics.rounding import choose_step, merge_equal

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
RowIndices = Longs | slice
ALL_ROWS = slice(None)

PAIRS_AT_ONCE = 1 << 18  # ranges of thresholds with up to this number of pairs are enumerated
N_SAMPLED_ROWS = 1024  # larger ranges are split at about the median difference, estimated from this number of rows
MAX_EXACT_INTEGER = 1 << 53  # integers up to this are exact as floats


class TieCalibration(NamedTuple):
    """The tie threshold that maximises pairwise accuracy, and this accuracy; see `epsilon`."""

    accuracy: float
    """(concordant + tied in both) / all pairs, in [0, 1]; nan if there are no pairs."""
    epsilon: float
    """Smallest threshold, among 0 and all observed differences, with this accuracy; scores whose difference is at most
    epsilon count as tied. If several differences are equal up to rounding, the largest is used.
    """
    pairs: int
    """Number of pairs of rows."""


def calibrate_ties(
    human: Sequence[float] | Floats, metric: Sequence[float] | Floats, groups: Sequence[object] | None = None
) -> TieCalibration:
    """Return the best pairwise accuracy over all thresholds, for finite ratings and scores of shape (n,).

    Without `groups`, all pairs of rows count. With `groups` (n,), only pairs within a group count, and the accuracy is
    the mean over groups with the same threshold for all (group-by-item in the paper); groups of one row are ignored.
    Raises ValueError for values that are not finite.
    """
    ratings, scores = np.asarray(human, np.float64), np.asarray(metric, np.float64)
    if not (np.isfinite(ratings).all() and np.isfinite(scores).all()):
        raise ValueError(
            "tie calibration needs finite ratings and scores; leave out rows with missing or infinite values"
        )
    ratings, scores = merge_equal(ratings), merge_equal(scores)
    labels = np.zeros(len(ratings), np.int64) if groups is None else np.asarray(groups, dtype=str)
    pairs = _Pairs(ratings, scores, np.unique(labels, return_inverse=True)[1].astype(np.int64))
    if not pairs.count:
        return TieCalibration(math.nan, math.nan, 0)
    best = _find_best_threshold(pairs)
    epsilon = (
        pairs.find_largest_difference(pairs.build_threshold(pairs.compute_threshold(best.epsilon)))
        if best.epsilon
        else 0.0
    )
    return TieCalibration(float((pairs.concordant_in_all + best.gain) / pairs.weight), epsilon, pairs.count)


def find_correct_pairs(human: Floats, metric: Floats, epsilon: float, rows: RowIndices = ALL_ROWS) -> NDArray[np.bool_]:
    """Compare each of `rows` with all n rows; return True if ratings and scores agree on which is higher, or both tie.

    The result has the shape (rows, n). Scores are tied if they differ by at most `epsilon`.
    """
    a, b = human[rows, None], human[None, :]
    difference = metric[rows, None] - metric[None, :]
    return np.asarray(((a > b) == (difference > epsilon)) & ((a < b) == (difference < -epsilon)))


class _BestThreshold(NamedTuple):
    gain: float
    epsilon: float


class _Threshold(NamedTuple):
    """A threshold, with the pairs whose scores differ by at most the threshold."""

    epsilon: float  # 0, or half a step above a multiple of the step, so that equal differences are on the same side
    upper: Ints  # for each row, the end of the rows within the threshold
    tied: float  # weight of the pairs that people tie too
    lost: float  # weight of the concordant pairs

    @property
    def gain(self) -> float:
        return self.tied - self.lost


class _Pairs:
    """All pairs of rows from the same group. Rows are sorted by group and score; a row is paired with later rows."""

    def __init__(self, human: Floats, metric: Floats, codes: Longs) -> None:
        order = np.lexsort((metric, codes))
        self.metric, self.step = metric[order], choose_step(metric)
        self.level = np.unique(human, return_inverse=True)[1][order].astype(np.int32)
        sizes = np.bincount(codes).astype(np.int64)
        self.first = np.arange(1, len(order) + 1, dtype=np.int32)
        self.end = np.cumsum(sizes)[codes[order]].astype(np.int32)
        pairs = sizes * (sizes - 1) // 2
        self.count, groups = int(pairs.sum()), int((pairs > 0).sum())
        # A pair weighs 1 / the pairs of its group. If possible, all weights are multiplied by a common factor that
        # makes them integers, so that sums are exact.
        common = math.lcm(*{int(size) for size in pairs if size})
        if common * groups < MAX_EXACT_INTEGER:
            self.weights, self.weight = (common // np.maximum(pairs, 1))[codes[order]], float(common * groups)
        else:
            self.weights, self.weight = (1.0 / np.maximum(pairs, 1))[codes[order]], float(groups)
        self.tree = _WaveletMatrix(self.level)
        self.tied_before = self.tree.count(self.first)[1]
        self.after_ties = self._find_upper(0.0, self.first, self.end)
        self.not_greater = self.tree.count(self.after_ties)[0]
        self.concordant_in_all = self._sum_weights(self.tree.count(self.end)[0] - self.not_greater)

    def _sum_weights(self, counts: Ints) -> float:
        weighted = self.weights * counts
        return int(weighted.sum()) if self.weights.dtype == np.int64 else math.fsum(weighted)

    def _find_upper(self, epsilon: float, low: Ints, high: Ints) -> Ints:
        """Return the index after the last row whose score is within epsilon of each row, searching `low` to `high`."""
        low, high = low.copy(), high.copy()
        rows = np.flatnonzero(low < high)
        while len(rows):
            middle = (low[rows] + high[rows]) // 2
            within = self.metric[middle] - self.metric[rows] <= epsilon
            low[rows[within]] = middle[within] + 1
            high[rows[~within]] = middle[~within]
            rows = rows[low[rows] < high[rows]]
        return low

    def compute_threshold(self, difference: float) -> float:
        """Return the threshold at which all pairs with this difference, up to rounding, are tied."""
        return float(self.compute_thresholds(np.array([difference]))[0])

    def compute_thresholds(self, differences: Floats) -> Floats:
        """Return the threshold for each difference; a difference too large to be rounded is its own threshold."""
        near = differences < self.step * 2.0**50
        cells = np.ceil(np.where(near, differences, 0.0) / self.step - 0.5)
        return np.where(near, (cells + 0.5) * self.step, differences)

    def find_next_below(self, epsilon: float) -> float:
        """Return the next smaller threshold that may tie different pairs than `epsilon` does."""
        return min(epsilon - self.step, math.nextafter(epsilon, 0.0))

    def build_threshold(
        self, epsilon: float, below: _Threshold | None = None, above: _Threshold | None = None
    ) -> _Threshold:
        """Return a threshold with the pairs that it ties; known thresholds `below` and `above` make this faster."""
        low = below.upper if below else self.first
        upper = self._find_upper(epsilon, low, above.upper if above else self.end)
        tied = self._sum_weights(self.tree.count(upper)[1] - self.tied_before)
        lost = self._sum_weights(self.tree.count(np.maximum(upper, self.after_ties))[0] - self.not_greater)
        return _Threshold(epsilon, upper, tied, lost)

    def find_largest_difference(self, edge: _Threshold) -> float:
        """Return the largest observed difference within a threshold, or 0."""
        return float((self.metric[edge.upper - 1] - self.metric).max(initial=0.0))

    def estimate_median(self, low: _Threshold, high: _Threshold) -> float:
        """Return a difference near the median of the differences that are above `low` and at most `high`."""
        gaps = high.upper - low.upper
        rows = np.flatnonzero(gaps)
        rows = rows[:: max(1, len(rows) // N_SAMPLED_ROWS)]
        differences = self.metric[low.upper[rows] + gaps[rows] // 2] - self.metric[rows]
        order = np.argsort(differences)
        passed = np.cumsum(gaps[rows][order])
        return float(differences[order][np.searchsorted(passed, passed[-1] / 2)])

    def find_best_within(self, low: _Threshold, high: _Threshold, best: _BestThreshold) -> _BestThreshold:
        """Return the better of `best` and the best threshold above `low` and up to `high`, by enumerating the pairs."""
        gaps = high.upper - low.upper
        left = np.repeat(np.arange(len(gaps)), gaps)
        right = np.arange(len(left)) - np.repeat(np.cumsum(gaps) - gaps, gaps) + np.repeat(low.upper, gaps)
        rise = self.level[right] - self.level[left]
        counted = rise >= 0
        left, right, tied = left[counted], right[counted], rise[counted] == 0
        if not len(left):
            return best
        differences = self.metric[right] - self.metric[left]
        order = np.argsort(differences)
        gains = low.gain + np.cumsum(np.where(tied, 1, -1)[order] * self.weights[left][order])
        ordered = differences[order]
        last = np.append(np.diff(self.compute_thresholds(ordered)) > 0, True)
        first_best = int(np.argmax(gains[last]))
        return _choose_better(best, _BestThreshold(gains[last][first_best].item(), float(ordered[last][first_best])))


class _WaveletMatrix:
    """Wavelet matrix over small integers. Counts how many of the first k values are above, or equal to, a value."""

    def __init__(self, values: Ints) -> None:
        self.ones: list[Ints] = []
        self.zeros: list[int] = []
        self.is_one = []
        current = values
        for bit in reversed(range(int(values.max(initial=0)).bit_length())):
            is_one = (current >> bit & 1).astype(bool)
            self.ones.append(np.concatenate([[0], np.cumsum(is_one)]).astype(np.int32))
            self.zeros.append(int((~is_one).sum()))
            self.is_one.append((values >> bit & 1).astype(bool))
            current = np.concatenate([current[~is_one], current[is_one]])

    def count(self, end: Ints) -> tuple[Ints, Ints]:
        """Count, for each row, the greater and the equal values among the first `end` rows.

        A constant that depends only on the row is added to its counts of equal values; only their differences matter.
        """
        greater = np.zeros(len(end), np.int32)
        position = end
        for ones, zeros, is_one in zip(self.ones, self.zeros, self.is_one, strict=True):
            before = ones[position]
            greater += np.where(is_one, 0, before)
            position = np.where(is_one, zeros + before, position - before).astype(np.int32)
        return greater, position


def _find_best_threshold(pairs: _Pairs) -> _BestThreshold:
    """Return the best threshold, or the smallest one if several are equally good.

    Ranges with the highest possible gain are searched first.
    """
    zero, widest = pairs.build_threshold(0.0), float((pairs.metric[pairs.end - 1] - pairs.metric).max())
    best = _BestThreshold(zero.gain, 0.0)
    if not widest:
        return best
    ranges: list[tuple[float, float, int, _Threshold, _Threshold]] = []

    def push_range(low: _Threshold, high: _Threshold) -> None:
        """Add a range to the heap if it may contain thresholds other than its ends, which are already known."""
        if pairs.find_next_below(high.epsilon) > low.epsilon and not np.array_equal(low.upper, high.upper):
            heappush(ranges, (-(high.tied - low.lost), low.epsilon, len(ranges), low, high))

    last = pairs.build_threshold(pairs.compute_threshold(widest))
    best = _choose_better(best, _BestThreshold(last.gain, widest))
    push_range(zero, last)
    while ranges:
        bound, start, _, low, high = heappop(ranges)
        if -bound < best.gain or (-bound == best.gain and start >= best.epsilon):
            break
        if int((high.upper - low.upper).sum(dtype=np.int64)) <= PAIRS_AT_ONCE:
            best = pairs.find_best_within(low, high, best)
            continue
        middle = pairs.build_threshold(
            min(pairs.compute_threshold(pairs.estimate_median(low, high)), pairs.find_next_below(high.epsilon)),
            low,
            high,
        )
        if middle.gain >= best.gain:
            best = _choose_better(best, _BestThreshold(middle.gain, pairs.find_largest_difference(middle)))
        push_range(low, middle)
        push_range(middle, high)
    return best


def _choose_better(best: _BestThreshold, candidate: _BestThreshold) -> _BestThreshold:
    """Return the threshold with the greater gain; if gains are equal, the smaller threshold."""
    if (candidate.gain, -candidate.epsilon) <= (best.gain, -best.epsilon):
        return best
    return candidate

"""Maps from one scale of scores to another: none, a line or a monotone curve, and which of them the scores bear out."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.poisson_bootstrap import uniform

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Hashes = NDArray[np.uint64]

FOLDS = 10
FEWEST_GROUPS = 5
"""Whose means tell how well a line joins them; those of fewer are on one line by chance too often."""
MOST_KNOTS = 256
"""Of a monotone map."""


class Line(NamedTuple):
    """new = intercept + slope x old."""

    intercept: float
    slope: float

    def __call__(self, scores: Floats) -> Floats:
        return self.intercept + self.slope * scores


class Curve(NamedTuple):
    """A monotone map, linear between its knots and level beyond them."""

    old: list[float]
    new: list[float]

    def __call__(self, scores: Floats) -> Floats:
        return np.asarray(np.interp(scores, self.old, self.new))


UNCHANGED = Line(0.0, 1.0)
Kind = Literal["unchanged", "linear", "monotone"]
LineKind = Literal["unchanged", "linear", "equated"]


def _unchanged(old: Floats, new: Floats) -> Line:
    return UNCHANGED


def fit_line(old: Floats, new: Floats) -> Line:
    """By least squares; level where all old scores are the same."""
    apart = old - old.mean()
    squares = float(apart @ apart)
    slope = float(apart @ (new - new.mean())) / squares if squares else 0.0
    return Line(float(new.mean()) - slope * float(old.mean()), slope)


def fit_curve(old: Floats, new: Floats) -> Curve:
    """By isotonic regression, rising or falling as the line does."""
    values, places, counts = np.unique(old, return_inverse=True, return_counts=True)
    means = np.bincount(places, weights=new) / counts
    fitted = scipy.optimize.isotonic_regression(means, weights=counts, increasing=fit_line(old, new).slope >= 0).x
    ends = np.flatnonzero(np.concatenate([[True], np.diff(fitted) != 0]) | np.append(np.diff(fitted) != 0, True))
    kept = ends[np.unique(np.linspace(0, len(ends) - 1, min(MOST_KNOTS, len(ends))).round().astype(int))]
    return Curve(values[kept].tolist(), fitted[kept].tolist())


FITS: Mapping[Kind, Callable[[Floats, Floats], Line | Curve]] = {
    "unchanged": _unchanged,
    "linear": fit_line,
    "monotone": fit_curve,
}
"""The simplest first."""


class Chosen(NamedTuple):
    """The map that was chosen, and how far each was from scores of prompts that it was not fitted on."""

    kind: Kind
    misses: Mapping[Kind, float]
    """Root mean squares, by kind of map."""
    predicted: Floats
    """The new scores by the chosen map, of each fold by the others."""


def choose(old: Floats, new: Floats, prompts: Hashes) -> Chosen:
    """The simplest map that is no worse than the best by more than a standard error, over folds of prompts.

    The error is that of the difference, prompt by prompt. Source: the one-standard-error rule, Breiman, Friedman,
    Olshen and Stone 1984, section 3.4.3.
    """
    folds = (uniform(prompts) * FOLDS).astype(np.int64)
    predicted = {kind: _of_other_folds(fit, old, new, folds) for kind, fit in FITS.items()}
    codes = np.unique(prompts, return_inverse=True)[1]
    squares = {kind: _by_prompt((values - new) ** 2, codes) for kind, values in predicted.items()}
    best = min(FITS, key=lambda kind: squares[kind].mean())
    kind = next(kind for kind in FITS if _is_as_good(squares[kind] - squares[best]))
    misses = {kind: math.sqrt(float(((values - new) ** 2).mean())) for kind, values in predicted.items()}
    return Chosen(kind, misses, predicted[kind])


def _is_as_good(worse_by: Floats) -> bool:
    return bool(worse_by.mean() <= worse_by.std(ddof=1) / math.sqrt(len(worse_by)))


def _of_other_folds(fit: Callable[[Floats, Floats], Line | Curve], old: Floats, new: Floats, folds: Longs) -> Floats:
    predicted = np.empty_like(new)
    for fold in np.unique(folds):
        own = folds == fold
        predicted[own] = fit(old[~own], new[~own])(old[own])
    return predicted


def _by_prompt(values: Floats, codes: Longs) -> Floats:
    return np.asarray(np.bincount(codes, weights=values) / np.bincount(codes))


def equate(old: Floats, new: Floats) -> Line:
    """The line that gives old scores the mean and the spread of the new ones, rising or falling as the other line does.

    Where both versions are noisy, least squares has images' scores shrink towards the mean, and means of many images
    with them; this does not. Source: linear equating, Kolen and Brennan 2014, Test Equating, section 2.2.
    """
    slope = math.copysign(float(new.std() / old.std()) if old.std() else 0.0, fit_line(old, new).slope)
    return Line(float(new.mean()) - slope * float(old.mean()), slope)


LINES: Mapping[LineKind, Callable[[Floats, Floats], Line]] = {
    "unchanged": _unchanged,
    "linear": fit_line,
    "equated": equate,
}


class ChosenLine(NamedTuple):
    """The line by which means of groups are joined."""

    kind: LineKind
    line: Line
    without: list[Line]
    """The same of all groups but one, by group in their order; empty of one group."""
    explained: float
    """Share of the variance of the groups' new means that the lines without them explain; nan of too few."""


def choose_line(old: Floats, new: Floats, groups: NDArray[np.int32], kinds: Sequence[LineKind]) -> ChosenLine:
    """Of some kinds that whose misses of the means of groups which it was not fitted on are the smallest; of one group
    the first.
    """
    known = np.unique(groups)
    if len(known) < 2:
        return ChosenLine(kinds[0], LINES[kinds[0]](old, new), [], math.nan)
    means = np.array([[old[groups == group].mean(), new[groups == group].mean()] for group in known])
    without = {kind: [LINES[kind](old[groups != group], new[groups != group]) for group in known] for kind in kinds}
    squares = {
        kind: float(np.mean([(after - line(before)) ** 2 for line, (before, after) in zip(lines, means, strict=True)]))
        for kind, lines in without.items()
    }
    kind = min(kinds, key=squares.__getitem__)
    spread = float(means[:, 1].var())
    explained = 1 - squares[kind] / spread if len(known) >= FEWEST_GROUPS and spread else math.nan
    return ChosenLine(kind, LINES[kind](old, new), without[kind], explained)


def margin(misses: Sequence[float]) -> float:
    """The half-width of a 95% interval for one more miss, of misses that are 0 on average; nan of fewer than two."""
    if len(misses) < 2:
        return math.nan
    return float(scipy.stats.t.ppf(0.975, len(misses)) * np.sqrt(np.mean(np.square(misses))))

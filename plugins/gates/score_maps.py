"""Maps from one score scale to another (identity, line or monotone curve), and the choice between them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.results.bridge import UNCHANGED_LINE, Curve, Line, LineKind, MapKind
from plumbline.operators.statistics.poisson_bootstrap import convert_to_uniform

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]

N_FOLDS = 10
MIN_GROUPS = 5
"""Minimum number of groups for judging how well a line fits their means; fewer means are too often collinear by chance.
"""
MAX_KNOTS = 256
"""Maximum number of knots in a curve."""


def _use_identity(old: Floats, new: Floats) -> Line:
    return UNCHANGED_LINE


def fit_line(old: Floats, new: Floats) -> Line:
    """Fit a line to scores (n,) by least squares; its slope is 0 if all old scores are equal."""
    centred = old - old.mean()
    squares = float(centred @ centred)
    slope = float(centred @ (new - new.mean())) / squares if squares else 0.0
    return Line(float(new.mean()) - slope * float(old.mean()), slope)


def fit_curve(old: Floats, new: Floats) -> Curve:
    """Fit a monotone curve to scores (n,) by isotonic regression; it rises or falls as the least-squares line does."""
    values, codes, counts = np.unique(old, return_inverse=True, return_counts=True)
    means = np.bincount(codes, weights=new) / counts
    fitted = scipy.optimize.isotonic_regression(means, weights=counts, increasing=fit_line(old, new).slope >= 0).x
    ends = np.flatnonzero(np.concatenate([[True], np.diff(fitted) != 0]) | np.append(np.diff(fitted) != 0, True))
    knots = ends[np.unique(np.linspace(0, len(ends) - 1, min(MAX_KNOTS, len(ends))).round().astype(int))]
    return Curve(values[knots].tolist(), fitted[knots].tolist())


FIT_FUNCTIONS: Mapping[MapKind, Callable[[Floats, Floats], Line | Curve]] = {
    "unchanged": _use_identity,
    "linear": fit_line,
    "monotone": fit_curve,
}
"""Fitting functions by kind of map, simplest first."""


class ChosenMap(NamedTuple):
    """The chosen kind of map, with the cross-validated errors of all kinds."""

    kind: MapKind
    misses: Mapping[MapKind, float]
    """Root-mean-square errors of the predicted scores, by kind of map."""
    predicted: Floats
    """New scores (n,) as predicted by the chosen kind of map; the map of each fold is fitted on the other folds."""


def choose_map(old: Floats, new: Floats, prompts: Hashes) -> ChosenMap:
    """Choose the simplest map whose cross-validated error is at most one standard error above the smallest error.

    Scores and the hashes of their prompts have the shape (n,). All scores for a prompt are in the same fold. Source:
    the one-standard-error rule, Breiman, Friedman, Olshen and Stone 1984, section 3.4.3. The standard error is computed
    from the difference between a map's error and the best map's error on each prompt.
    """
    folds = (convert_to_uniform(prompts) * N_FOLDS).astype(np.int64)
    predicted = {kind: _cross_validate(fit, old, new, folds) for kind, fit in FIT_FUNCTIONS.items()}
    codes = np.unique(prompts, return_inverse=True)[1]
    squares = {
        kind: np.bincount(codes, weights=(values - new) ** 2) / np.bincount(codes) for kind, values in predicted.items()
    }
    best = min(FIT_FUNCTIONS, key=lambda kind: squares[kind].mean())
    kind = next(kind for kind in FIT_FUNCTIONS if _is_as_good(squares[kind] - squares[best]))
    misses = {kind: math.sqrt(float(((values - new) ** 2).mean())) for kind, values in predicted.items()}
    return ChosenMap(kind, misses, predicted[kind])


def _is_as_good(worse_by: Floats) -> bool:
    return bool(worse_by.mean() <= worse_by.std(ddof=1) / math.sqrt(len(worse_by)))


def _cross_validate(fit: Callable[[Floats, Floats], Line | Curve], old: Floats, new: Floats, folds: Integers) -> Floats:
    predicted = np.empty_like(new)
    for fold in np.unique(folds):
        own = folds == fold
        predicted[own] = fit(old[~own], new[~own])(old[own])
    return predicted


def fit_equating_line(old: Floats, new: Floats) -> Line:
    """Return the line that gives the old scores (n,) the mean and standard deviation of the new scores (n,).

    It rises or falls as the least-squares line does. If both versions are noisy, least squares shrinks scores towards
    the mean, and with them the means of many images; equating does not. Source: linear equating, Kolen and Brennan
    2014, Test Equating, section 2.2.
    """
    slope = math.copysign(float(new.std() / old.std()) if old.std() else 0.0, fit_line(old, new).slope)
    return Line(float(new.mean()) - slope * float(old.mean()), slope)


LINE_FIT_FUNCTIONS: Mapping[LineKind, Callable[[Floats, Floats], Line]] = {
    "unchanged": _use_identity,
    "linear": fit_line,
    "equated": fit_equating_line,
}


class ChosenLine(NamedTuple):
    """The line that best maps the old mean of a group to its new mean."""

    kind: LineKind
    line: Line
    without: list[Line]
    """For each group, the line fitted to the other groups; empty if there is only one group."""
    explained: float
    """Fraction of the variance of the groups' new means that is explained by the lines fitted to the other groups; nan
    with fewer than MIN_GROUPS groups.
    """


def choose_line(old: Floats, new: Floats, groups: NDArray[np.int32], kinds: Sequence[LineKind]) -> ChosenLine:
    """Choose the kind of line that best predicts a group's mean when fitted to the other groups.

    Scores and their groups have the shape (n,). If there is only one group, choose the first kind.
    """
    known = np.unique(groups)
    if len(known) < 2:
        return ChosenLine(kinds[0], LINE_FIT_FUNCTIONS[kinds[0]](old, new), [], math.nan)
    means = np.array([[old[groups == group].mean(), new[groups == group].mean()] for group in known])
    without = {
        kind: [LINE_FIT_FUNCTIONS[kind](old[groups != group], new[groups != group]) for group in known]
        for kind in kinds
    }
    squares = {
        kind: float(np.mean([(after - line(before)) ** 2 for line, (before, after) in zip(lines, means, strict=True)]))
        for kind, lines in without.items()
    }
    kind = min(kinds, key=squares.__getitem__)
    spread = float(means[:, 1].var())
    explained = 1 - squares[kind] / spread if len(known) >= MIN_GROUPS and spread else math.nan
    return ChosenLine(kind, LINE_FIT_FUNCTIONS[kind](old, new), without[kind], explained)


def compute_margin(errors: Sequence[float]) -> float:
    """Return the half-width of a 95% interval for the next prediction error; nan for fewer than two errors.

    The mean of the errors is assumed to be 0.
    """
    if len(errors) < 2:
        return math.nan
    return float(scipy.stats.t.ppf(0.975, len(errors)) * np.sqrt(np.mean(np.square(errors))))

"""Bradley-Terry strengths of generators, estimated from wins on a set of prompts.

The intervals are computed by leaving out each prompt in turn.

A generator with strength a wins against one with strength b with probability 1 / (1 + 10^((b - a) / 400)), so an
advantage of 400 points means winning 10 of 11 times (Elo's scale). A tie is half a win for each.
"""

import contextlib
import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.bootstrap import MIN_DIFFERING_PROMPTS
from plumbline.operators.statistics.confidence_levels import CONFIDENCE

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

ELO_PER_UNIT = 400 / math.log(10)
MAX_NEWTON_STEPS = 100
MAX_STRENGTH_STEP = 2.0  # largest change of a strength in one step of Newton's method, in natural units
CONVERGENCE_TOLERANCE = 1e-10
PROMPTS_AT_ONCE = 256
MAX_STRENGTH_SHIFT = 10.0  # a prompt that moves a strength further (in natural units) decides it alone


class Strengths(NamedTuple):
    """Strengths of generators on Elo's scale with mean 0, each of shape (generators,); nan if undefined."""

    values: Floats
    low: Floats
    high: Floats


class Components(NamedTuple):
    """Groups of generators; a strength exists only within a group, relative to the group's other generators."""

    label: NDArray[np.int32]
    """Group of each generator: two generators are in one group if each beats the other, directly or through others."""
    sizes: NDArray[np.int64]
    """Number of generators in each group."""
    connected: int
    """Number of groups if it does not matter who wins: more than 1 if some generators were never compared."""


def find_components(first: Indices, second: Indices, won: Floats, generators: int) -> Components:
    """Return the groups within which strengths exist (Ford 1957).

    Args:
        first: Index of the first generator of each pair (pairs,).
        second: Index of the second generator of each pair (pairs,).
        won: Share won by the first generator, by prompt and pair (prompts, pairs); nan if a pair was not compared.
        generators: Number of generators.
    """
    wins, losses = np.nansum(won, axis=0), np.nansum(1 - won, axis=0)
    edges = np.zeros((generators, generators))
    edges[first, second], edges[second, first] = wins, losses
    _, label = scipy.sparse.csgraph.connected_components(edges > 0, connection="strong")
    connected, _ = scipy.sparse.csgraph.connected_components(edges > 0, directed=False)
    return Components(label, np.bincount(label), int(connected))


def estimate_strengths(first: Indices, second: Indices, won: Floats, generators: int) -> Strengths:
    """Return the maximum-likelihood strengths, with 95% intervals over prompts.

    All generators must be in one group (`find_components`). The interval is Student's, with the jackknife's standard
    error: each prompt is left out in turn, and one step of Newton's method gives the strengths without it. It is
    undefined if a strength depends on only a few prompts.

    Args:
        first: Index of the first generator of each pair (pairs,).
        second: Index of the second generator of each pair (pairs,).
        won: Share won by the first generator, by prompt and pair (prompts, pairs); nan if a pair was not compared.
        generators: Number of generators.
    """
    present = np.isfinite(won)
    wins = np.where(present, won, 0.0)
    contrasts = make_contrasts(first, second, generators)
    strengths = fit_strengths(contrasts, wins.sum(axis=0), present.sum(axis=0).astype(np.float64))
    shifts = _leave_out_each_prompt(strengths, first, second, wins, present)
    low, high = _compute_jackknife_ends(shifts, (present @ np.abs(contrasts) > 0).sum(axis=0))
    return Strengths(*(ELO_PER_UNIT * values for values in (strengths, strengths + low, strengths + high)))


def make_contrasts(first: Indices, second: Indices, generators: int) -> Floats:
    """Return rows with 1 for the first generator of a pair, and -1 for the second (pairs, generators)."""
    return np.asarray(np.eye(generators)[first] - np.eye(generators)[second])


def fit_strengths(contrasts: Floats, wins: Floats, counts: Floats) -> Floats:
    """Return the maximum-likelihood strengths in natural units, with mean 0, by Newton's method.

    Args:
        contrasts: The generators of each pair (pairs, generators), from `make_contrasts`.
        wins: Number of wins of each pair's first generator (pairs,); a tie is half a win.
        counts: Number of comparisons of each pair (pairs,).
    """
    strengths = np.zeros(contrasts.shape[1])
    for _ in range(MAX_NEWTON_STEPS):
        expected = scipy.special.expit(contrasts @ strengths)
        information = _add_constant(contrasts.T @ (contrasts * (counts * expected * (1 - expected))[:, None]))
        step = np.linalg.solve(information, contrasts.T @ (wins - counts * expected))
        strengths = strengths + step * min(
            1.0, MAX_STRENGTH_STEP / max(float(np.abs(step).max()), CONVERGENCE_TOLERANCE)
        )
        if np.abs(step).max() < CONVERGENCE_TOLERANCE:
            break
    return np.asarray(strengths - strengths.mean())


def _add_constant(information: Floats) -> Floats:
    """Make information matrices (..., generators, generators) invertible; solutions still have mean 0."""
    return information + 1.0


def _leave_out_each_prompt(
    strengths: Floats, first: Indices, second: Indices, wins: Floats, present: NDArray[np.bool_]
) -> Floats:
    """Return how far each strength moves if a prompt is left out (prompts, generators)."""
    expected = scipy.special.expit(strengths[first] - strengths[second])
    scores = np.where(present, wins - expected, 0.0) @ make_contrasts(first, second, len(strengths))
    weights = present * (expected * (1 - expected))
    information = _compute_information(weights.sum(axis=0), first, second, len(strengths))
    shifts = np.full(scores.shape, math.inf)
    for start in range(0, len(scores), PROMPTS_AT_ONCE):
        part = slice(start, start + PROMPTS_AT_ONCE)
        without = _add_constant(information - _compute_information(weights[part], first, second, len(strengths)))
        with contextlib.suppress(np.linalg.LinAlgError):  # without a prompt, some generators are not compared
            shifts[part] = -np.linalg.solve(without, scores[part, :, None])[..., 0]
    return shifts


def _compute_information(weights: Floats, first: Indices, second: Indices, generators: int) -> Floats:
    """Return the information matrices of the strengths (..., generators, generators).

    `weights` (..., pairs) is the information that the comparisons of each pair contain about the difference between
    its strengths.
    """
    information = np.zeros((*weights.shape[:-1], generators, generators))
    information[..., first, second] = information[..., second, first] = -weights
    diagonal = np.arange(generators)
    information[..., diagonal, diagonal] = -information.sum(axis=-1)
    return information


def _compute_jackknife_ends(shifts: Floats, counts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the ends of intervals relative to the estimates (k,), given how far each prompt shifts them (prompts, k).

    `counts` is the number of prompts behind each estimate (k,). As for other intervals without a scale, the ends are
    nan if the shifts are so skewed that fewer than MIN_DIFFERING_PROMPTS prompts determine them.
    """
    moved = np.where(np.abs(shifts) < MAX_STRENGTH_SHIFT, shifts, math.nan)
    n = len(shifts)
    centred = moved - moved.mean(axis=0)
    squares = (centred**2).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        skewness = np.abs((centred**3).sum(axis=0)) / squares**1.5
        half_width = scipy.special.stdtrit(counts - 1, (1 + CONFIDENCE) / 2) * np.sqrt((n - 1) / n * squares)
    valid = (counts > 1) & (skewness < 1 / math.sqrt(MIN_DIFFERING_PROMPTS))
    half_width = np.where(valid, half_width, math.nan)
    return -half_width, half_width

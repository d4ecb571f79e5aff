"""Comparisons that may be looked at while prompts come in: balanced random orders, e-processes and what they decide.

What is asked is which of two generators has the higher mean over all of a benchmark's prompts, of which some have been
seen. Nothing is assumed of scores: the chance is that of the order, which is drawn here.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.options import Adaptive

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

PER_LOOK = 8
"""Prompts that come in between two looks, one of each cell of the order."""
NOBODY = -1
"""In an order, the place of a prompt that there is not: the cells hold as many."""
BETS = np.geomspace(1 / 8, 2, 5)
"""Of the mixture, in units of one over the range: a small bet for small differences, a large one for large."""
BOLDEST = 0.9
"""Of what a single prompt could lose, the share that is staked at most."""
FIRST_ASYMPTOTIC = 48
"""Prompts that both have, before which no normal approximation is believed."""
FEWEST_CARRIERS = 16
"""Prompts by which their variance must be carried before then neither is; of normal differences a third of all."""
TIGHTEST = 0.5
"""Of the prompts, after how many the asymptotic sequence is the tightest."""
A_BETTER, B_BETTER, ALIKE, UNDECIDED = 1, -1, 2, 0
"""What is decided of a pair (a, b); alike: their means differ by no more than the indifference."""


def balanced_order(labels: Sequence[str], seed: int, per_look: int = PER_LOOK) -> Places:
    """Places of prompts (looks, per_look) in a random order in which every look has a prompt of each cell.

    The prompts stand on a line, by label and at random within it, which is cut into `per_look` cells of one size: so
    each look has of every label its share, give or take two. Of a number of prompts that is no multiple some cells
    hold one that there is not (NOBODY).
    """
    random = np.random.default_rng(seed)
    shuffled = random.permutation(len(labels))
    line = shuffled[np.argsort(np.asarray(labels, dtype=object)[shuffled], kind="stable")]
    looks = -(-len(line) // per_look)
    short = random.permutation(per_look) < looks * per_look - len(line)
    cells = np.full((per_look, looks), NOBODY, np.intp)
    ends = np.cumsum(looks - short)
    for cell, end, is_short in zip(cells, ends, short, strict=True):
        size = looks - int(is_short)
        cell[:size] = line[end - size : end]
    return random.permuted(cells, axis=1).T


def in_order(differences: Floats, order: Places) -> Floats:
    """The differences of prompts (prompts,) as they come in by an order (..., looks, per_look), nan of NOBODY."""
    return np.append(differences, math.nan)[order]


class PairEvidence(NamedTuple):
    """Logarithms of e-processes against four hypotheses on a pair's mean difference d, each (..., looks)."""

    not_above: Floats
    """Against d <= 0."""
    not_below: Floats
    """Against d >= 0."""
    far_above: Floats
    """Against d > indifference."""
    far_below: Floats
    """Against d < -indifference."""


def evidence(differences: Floats, options: Adaptive, indifference: float, pairs: int) -> PairEvidence:
    """What differences in their order (..., looks, per_look) say of a pair, one of so many `pairs`, at every look.

    A nan is a prompt that one of the two lacks, and says nothing: the mean is over the prompts that both have.
    """
    above, below = (_log_e(sign * differences, options, 0.0, pairs) for sign in (1, -1))
    nothing = np.full(above.shape, -math.inf)
    return with_indifference(PairEvidence(above, below, nothing, nothing), differences, options, indifference, pairs)


def with_indifference(
    known: PairEvidence, differences: Floats, options: Adaptive, indifference: float, pairs: int
) -> PairEvidence:
    """The evidence with that against a difference beyond the indifference; with none of 0."""
    if not indifference:
        return known
    above, below = (_log_e(indifference - sign * differences, options, -indifference, pairs) for sign in (1, -1))
    return known._replace(far_above=above, far_below=below)


def _log_e(excess: Floats, options: Adaptive, bound: float, pairs: int) -> Floats:
    """Against the hypothesis that the excesses of all prompts (..., looks, per_look) sum to 0 or less.

    An excess is a difference, either way round, less a `bound` that all of them have. If they sum to 0, those to come
    have the mean -seen / left: what a prompt has above that is a fair game's outcome. A bet on it stays the same
    within a look, whose prompts come one from each cell. As the logarithm is concave, the product's expectation is
    then at most 1 whatever the cells' own means are (the inequality of the means): balance costs no validity. A nan
    counts as 0, which is what a prompt without a pair adds to the sum.
    """
    total = excess.shape[-1] * excess.shape[-2]
    there = np.isfinite(excess)
    excess = np.where(there, excess, 0.0)
    seen = np.cumsum(excess.sum(-1), axis=-1)
    before = np.concatenate([np.zeros_like(seen[..., :1]), seen[..., :-1]], axis=-1)
    left = total - np.arange(excess.shape[-2]) * excess.shape[-1]
    expected = -before / left
    gains = excess - expected[..., None]
    weights = total / left
    if options.method == "betting":
        lowest = -max(options.width + bound, 1e-9 * options.width)
        log_e = _betting(gains, weights, expected - lowest, -lowest)
        certain = seen + (left - excess.shape[-1]) * lowest > 0
        log_e = np.where(np.maximum.accumulate(certain, axis=-1), math.inf, log_e)
    else:
        log_e = _asymptotic(excess, there, gains, weights, options.alpha / (2 * pairs))
    log_e[..., -1] = np.where(seen[..., -1] > 1e-9 * total, math.inf, -math.inf)
    return log_e


def _betting(gains: Floats, weights: Floats, risk: Floats, width: float) -> Floats:
    """A mixture of capitals that bet on every gain (Waudby-Smith and Ramdas 2024, section 5, without replacement).

    `risk` (..., looks) is the most that a prompt can lose; bets grow as the prompts left become fewer.
    """
    boldest = BOLDEST / np.maximum(risk, 1e-12)
    capitals = []
    for bet in BETS:
        stakes = np.minimum(bet * weights / width, boldest)
        factors = np.prod(1 + stakes[..., None] * gains, axis=-1)
        capitals.append(np.cumsum(np.log(np.maximum(factors, 1e-300)), axis=-1))
    return np.asarray(scipy.special.logsumexp(capitals, axis=0) - math.log(len(BETS)))


def _asymptotic(excess: Floats, there: NDArray[np.bool_], gains: Floats, weights: Floats, level: float) -> Floats:
    """A one-sided normal mixture of the weighted gains (Waudby-Smith et al. 2024, asymptotic confidence sequences).

    The variance is that of what was seen, where enough prompts carry it.
    """
    n, variance, carriers = _moments(excess, there)
    believed = (n >= FIRST_ASYMPTOTIC) & (carriers >= FEWEST_CARRIERS)
    drift = np.cumsum(weights * gains.sum(-1), axis=-1) / np.sqrt(np.where(believed, variance, 1))
    clock = excess.shape[-1] * np.cumsum(weights**2)
    tightest = clock[min(len(clock) - 1, int(TIGHTEST * len(clock)))]
    rho2 = (-2 * math.log(level) + math.log(1 - 2 * math.log(level))) / tightest
    scale = 1 + rho2 * clock
    log_e = (
        math.log(2)
        + scipy.special.log_ndtr(drift * np.sqrt(rho2 / scale))
        - np.log(scale) / 2
        + rho2 * drift**2 / (2 * scale)
    )
    return np.where(believed, log_e, -math.inf)


def _moments(excess: Floats, there: NDArray[np.bool_]) -> tuple[Floats, Floats, Floats]:
    """At every look, how many prompts are there, the variance per place of the order, and by how many it is carried.

    The last is the number of equal deviations that would have this variance and fourth moment: few where a few
    prompts make all the difference, and others like them may be to come.
    """
    n = np.cumsum(there.sum(-1), axis=-1)
    m1, m2, m3, m4 = (np.cumsum((excess**power).sum(-1), axis=-1) / np.maximum(n, 1) for power in (1, 2, 3, 4))
    second = m2 - m1**2
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    with np.errstate(invalid="ignore", divide="ignore"):
        carriers = np.where((second > 1e-12) & (fourth > 1e-24), n * second**2 / fourth, 0)
    places = excess.shape[-1] * np.arange(1, excess.shape[-2] + 1)
    return n, m2 * n / np.maximum(places - 1, 1) - (m1 * n / places) ** 2, carriers


class Decided(NamedTuple):
    """What was decided of each pair, and when: (..., pairs)."""

    verdict: NDArray[np.int8]
    """A_BETTER, B_BETTER, ALIKE or UNDECIDED."""
    look: Places
    """The look at which it was decided, from 0; the number of looks where it was not."""


def decide(pairs: Sequence[PairEvidence], alpha: float) -> Decided:
    """Decides pairs while they are looked at, the probability of any false decision being alpha at most.

    A pair is decided once an e-process passes 2 u / alpha, where u are the pairs that are not decided yet: Holm's
    steps (1979), at thresholds that hold at all looks at once (Ville's inequality). 2, for either could be the better
    one. What is decided stays so.
    """
    above, below, near = (
        np.stack(sides, axis=-1)
        for sides in (
            [pair.not_above for pair in pairs],
            [pair.not_below for pair in pairs],
            [np.minimum(pair.far_above, pair.far_below) for pair in pairs],
        )
    )
    looks = above.shape[-2]
    verdict = np.zeros((*above.shape[:-2], len(pairs)), np.int8)
    at = np.full(verdict.shape, looks, np.intp)
    for look in range(looks):
        sides = [side[..., look, :] for side in (above, below, near)]
        while True:
            undecided = verdict == UNDECIDED
            left = np.maximum(undecided.sum(axis=-1, keepdims=True), 1)
            passes = [undecided & (side >= np.log(2 * left / alpha)) for side in sides]
            now = np.select(passes, [A_BETTER, B_BETTER, ALIKE], UNDECIDED).astype(np.int8)
            if not now.any():
                break
            verdict, at = np.where(undecided, now, verdict), np.where(now != UNDECIDED, look, at)
    return Decided(verdict, at)

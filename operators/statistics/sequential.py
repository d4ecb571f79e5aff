"""Comparisons that may stop at any look while prompts come in: balanced random orders, e-processes and decisions.

A look is an interim analysis; there is one after every PROMPTS_PER_LOOK prompts.

From only some of a benchmark's prompts, a comparison decides which of two generators has the higher mean over all
prompts. Scores may have any distribution: probabilities are over the random order of the prompts.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.options import AdaptiveConfig

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

PROMPTS_PER_LOOK = 8  # prompts between two looks, one from each stratum
NO_PROMPT_INDEX = -1  # filler in an order, for strata with one prompt fewer than others
# in units of 1 / range: small bets detect small differences, large bets large ones
BET_SIZES = np.geomspace(1 / 8, 2, 5)
MAX_STAKE = 0.9  # largest share of the capital that a single prompt can lose
MIN_ASYMPTOTIC_PROMPTS = 48  # minimum number of prompts, scored for both generators, for the normal approximation
MIN_PROMPTS_BEHIND_VARIANCE = 16  # minimum number of prompts that cause the variance; a third of normal differences do
TIGHTEST_PROMPT_FRACTION = 0.5  # fraction of the prompts after which the asymptotic sequence is tightest
A_BETTER, B_BETTER, ALIKE, UNDECIDED = 1, -1, 2, 0
"""Verdicts on a pair (a, b). ALIKE means that the means differ by at most the indifference."""


def draw_balanced_order(labels: Sequence[str], seed: int, per_look: int = PROMPTS_PER_LOOK) -> Indices:
    """Return prompt indices (looks, per_look) in a random order such that the labels of every look are similar.

    Prompts are sorted by label (at random within a label) and divided into `per_look` strata of equal size. Every look
    has one prompt from each stratum, so for each label its count is within two of the proportional share. If the number
    of prompts is not a multiple of `per_look`, some strata contain a NO_PROMPT_INDEX.
    """
    random = np.random.default_rng(seed)
    shuffled = random.permutation(len(labels))
    line = shuffled[np.argsort(np.asarray(labels, dtype=object)[shuffled], kind="stable")]
    looks = -(-len(line) // per_look)
    short = random.permutation(per_look) < looks * per_look - len(line)
    strata = np.full((per_look, looks), NO_PROMPT_INDEX, np.intp)
    sizes = looks - short
    for stratum, end, size in zip(strata, np.cumsum(sizes), sizes, strict=True):
        stratum[:size] = line[end - size : end]
    return random.permuted(strata, axis=1).T


def order_differences(differences: Floats, order: Indices) -> Floats:
    """Return the prompts' differences (prompts,) in an order (..., looks, per_look), with nan for NO_PROMPT_INDEX."""
    return np.append(differences, math.nan)[order]


class PairEvidence(NamedTuple):
    """Logarithms of e-processes against four hypotheses about a pair's mean difference d, each (..., looks)."""

    not_above: Floats  # d <= 0
    not_below: Floats  # d >= 0
    far_above: Floats  # d > indifference
    far_below: Floats  # d < -indifference


def compute_evidence(differences: Floats, options: AdaptiveConfig, indifference: float, pairs: int) -> PairEvidence:
    """Return the evidence about a pair at every look, given ordered differences (..., looks, per_look).

    `pairs` is the number of pairs that are compared. Differences are nan for prompts that do not have scores for both
    generators; these prompts are left out of the mean.
    """
    above, below = (_compute_log_e(sign * differences, options, 0.0, pairs) for sign in (1, -1))
    nothing = np.full(above.shape, -math.inf)
    return add_indifference_evidence(
        PairEvidence(above, below, nothing, nothing), differences, options, indifference, pairs
    )


def add_indifference_evidence(
    known: PairEvidence, differences: Floats, options: AdaptiveConfig, indifference: float, pairs: int
) -> PairEvidence:
    """Return the evidence with the fields `far_above` and `far_below` computed from the ordered differences.

    `far_above` is the evidence against a mean difference of at least +`indifference`; `far_below` is the evidence
    against one of at most -`indifference`. If `indifference` is 0, the evidence is returned unchanged.
    """
    if not indifference:
        return known
    above, below = (
        _compute_log_e(indifference - sign * differences, options, -indifference, pairs) for sign in (1, -1)
    )
    return known._replace(far_above=above, far_below=below)


def _compute_log_e(excess: Floats, options: AdaptiveConfig, bound: float, pairs: int) -> Floats:
    """Return the log of an e-process against the hypothesis that excesses (..., looks, per_look) sum to 0 or less.

    An excess is a difference, in either direction, minus `bound`. If all excesses sum to 0, the mean of the remaining
    excesses is known, and deviations from it are outcomes of a fair game. A bet does not change within a look, which
    has one prompt from each stratum. By the inequality of arithmetic and geometric means, the expected product of the
    gains in a look is then at most 1, so the test is valid for balanced orders. Missing prompts (nan) add 0.

    At the last look, the sum is known: the log is inf if the sum is positive, otherwise -inf.
    """
    total = excess.shape[-1] * excess.shape[-2]
    present = np.isfinite(excess)
    excess = np.where(present, excess, 0.0)
    seen = np.cumsum(excess.sum(-1), axis=-1)
    before = np.concatenate([np.zeros_like(seen[..., :1]), seen[..., :-1]], axis=-1)
    left = total - np.arange(excess.shape[-2]) * excess.shape[-1]
    expected = -before / left
    gains = excess - expected[..., None]
    weights = total / left
    if options.method == "betting":
        lowest = -max(options.width + bound, 1e-9 * options.width)
        log_e = _average_bets(gains, weights, expected - lowest, -lowest)
        certain = seen + (left - excess.shape[-1]) * lowest > 0
        log_e = np.where(np.maximum.accumulate(certain, axis=-1), math.inf, log_e)
    else:
        log_e = _approximate_log_e(excess, present, gains, weights, options.alpha / (2 * pairs))
    log_e[..., -1] = np.where(seen[..., -1] > 1e-9 * total, math.inf, -math.inf)
    return log_e


def _average_bets(gains: Floats, weights: Floats, risk: Floats, width: float) -> Floats:
    """Return the log of the mean capital over bets on all gains (Waudby-Smith and Ramdas 2024, section 5).

    `risk` (..., looks) is the largest possible loss on a prompt. Bets increase as fewer prompts remain.
    """
    largest = MAX_STAKE / np.maximum(risk, 1e-12)
    capitals = []
    for bet in BET_SIZES:
        stakes = np.minimum(bet * weights / width, largest)
        factors = np.prod(1 + stakes[..., None] * gains, axis=-1)
        capitals.append(np.cumsum(np.log(np.maximum(factors, 1e-300)), axis=-1))
    return np.asarray(scipy.special.logsumexp(capitals, axis=0) - math.log(len(BET_SIZES)))


def _approximate_log_e(
    excess: Floats, present: NDArray[np.bool_], gains: Floats, weights: Floats, level: float
) -> Floats:
    """Return the log of an e-process, a one-sided normal mixture of the weighted gains (Waudby-Smith et al. 2024).

    The log is -inf while there are only a few prompts, or while only a few of them account for the variance, because
    more such prompts may follow. The number of prompts that account for the variance is estimated as the number of
    equal deviations that would have the same variance and fourth moment.
    """
    n = np.cumsum(present.sum(-1), axis=-1)
    m1, m2, m3, m4 = (np.cumsum((excess**power).sum(-1), axis=-1) / np.maximum(n, 1) for power in (1, 2, 3, 4))
    second = m2 - m1**2
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    with np.errstate(invalid="ignore", divide="ignore"):
        carriers = np.where((second > 1e-12) & (fourth > 1e-24), n * second**2 / fourth, 0)
    valid = (n >= MIN_ASYMPTOTIC_PROMPTS) & (carriers >= MIN_PROMPTS_BEHIND_VARIANCE)
    slots = excess.shape[-1] * np.arange(1, excess.shape[-2] + 1)
    variance = m2 * n / np.maximum(slots - 1, 1) - (m1 * n / slots) ** 2  # per slot of the order
    drift = np.cumsum(weights * gains.sum(-1), axis=-1) / np.sqrt(np.where(valid, variance, 1))
    clock = excess.shape[-1] * np.cumsum(weights**2)
    tightest = clock[min(len(clock) - 1, int(TIGHTEST_PROMPT_FRACTION * len(clock)))]
    rho2 = (-2 * math.log(level) + math.log(1 - 2 * math.log(level))) / tightest
    scale = 1 + rho2 * clock
    log_e = (
        math.log(2)
        + scipy.special.log_ndtr(drift * np.sqrt(rho2 / scale))
        - np.log(scale) / 2
        + rho2 * drift**2 / (2 * scale)
    )
    return np.where(valid, log_e, -math.inf)


class Decisions(NamedTuple):
    """Decisions on pairs of generators, and the looks at which they were made; arrays of the shape (..., pairs)."""

    verdict: NDArray[np.int8]
    """A_BETTER, B_BETTER, ALIKE or UNDECIDED."""
    look: Indices
    """Index of the look at which the pair was decided; the number of looks if it is undecided."""


def decide_sequentially(pairs: Sequence[PairEvidence], alpha: float) -> Decisions:
    """Return decisions made look by look; the probability that any decision is false is at most alpha.

    A pair is decided permanently once an e-process exceeds 2 u / alpha, where u is the number of undecided pairs:
    Holm's steps (1979) with thresholds that are valid at all looks (Ville's inequality). The factor 2 accounts for the
    two directions.
    """
    above = np.stack([pair.not_above for pair in pairs], axis=-1)
    below = np.stack([pair.not_below for pair in pairs], axis=-1)
    near = np.stack([np.minimum(pair.far_above, pair.far_below) for pair in pairs], axis=-1)
    looks = above.shape[-2]
    verdict = np.zeros((*above.shape[:-2], len(pairs)), np.int8)
    decided_at = np.full(verdict.shape, looks, np.intp)
    for look in range(looks):
        while True:  # each decision lowers the threshold of the pairs that are left
            undecided = verdict == UNDECIDED
            left = np.maximum(undecided.sum(axis=-1, keepdims=True), 1)
            passes = [undecided & (log_e[..., look, :] >= np.log(2 * left / alpha)) for log_e in (above, below, near)]
            now = np.select(passes, [A_BETTER, B_BETTER, ALIKE], UNDECIDED).astype(np.int8)
            if not now.any():
                break
            verdict, decided_at = np.where(undecided, now, verdict), np.where(now != UNDECIDED, look, decided_at)
    return Decisions(verdict, decided_at)

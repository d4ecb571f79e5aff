"""Chooses which pairs of generators to compare next, and says when all pairs are decided.

Prompts are taken in one balanced random order. After each look (PROMPTS_PER_LOOK prompts of a pair), the pair's
e-process shows which generator wins more over all prompts of the benchmark (sequential.py). An e-process may stop at
any time and for any reason. So pairs may progress at different speeds, depending on the outcomes so far, without making
a false decision more likely.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.operators.statistics.sequential import (
    PROMPTS_PER_LOOK,
    UNDECIDED,
    Indices,
    PairEvidence,
    compute_evidence,
    decide_sequentially,
    order_differences,
)

Floats = NDArray[np.float64]


class PairRanking(NamedTuple):
    """Decisions on pairs of generators, and the pairs to compare next."""

    verdict: NDArray[np.int8]
    """A_BETTER, B_BETTER, ALIKE or UNDECIDED, by pair; final once it is not UNDECIDED."""
    prompts_left: Floats
    """Expected number of further prompts until a pair is decided, by pair; 0 if it is decided or was not asked yet."""
    next: Indices
    """Undecided pairs that have prompts left, sorted by how soon they are expected to be decided. Each decision makes
    the others easier, because fewer pairs share the probability of a false decision.
    """

    @property
    def is_done(self) -> bool:
        """True if no pair needs further comparisons."""
        return not len(self.next)


def rank_pairs(leads: Floats, order: Indices, looks: NDArray[np.int64], options: AdaptiveConfig) -> PairRanking:
    """Decide pairs, and rank the undecided pairs by how soon they are expected to be decided.

    The probability that any decision is false, over the random order, is at most `options.alpha`. A decision is about
    the mean lead over all prompts in the order.

    Args:
        leads: Win rate of each pair's first generator minus that of the second, from -1 to 1 (prompts, pairs); nan
            if there is no outcome.
        order: Order of the prompts (looks, PROMPTS_PER_LOOK), from `balanced_order`.
        looks: Number of looks that each pair has had so far (pairs,).
        options: Options of the decisions. Leads up to `options.indifference` do not matter. The method must be
            `betting`, and the range 0 to 1.
    """
    pairs = leads.shape[1]
    ordered = order_leads_by_pair(leads, order)
    seen = np.arange(len(order)) < looks[:, None]
    ordered = np.where(seen[..., None], ordered, math.nan)
    indifference = options.get_indifference("")
    evidence = compute_evidence(ordered, options, indifference, pairs)
    # The strongest evidence so far: a rejection of a hypothesis at any earlier look is valid.
    strongest = [np.where(seen, log_e, -math.inf).max(axis=-1) for log_e in evidence]
    verdict = decide_sequentially(
        [PairEvidence(*(log_e[pair, None] for log_e in strongest)) for pair in range(pairs)], options.alpha
    )
    undecided = verdict.verdict == UNDECIDED
    n = np.isfinite(ordered).sum(axis=(1, 2))
    # as if PROMPTS_PER_LOOK further prompts were ties
    lead = np.abs(np.nansum(ordered, axis=(1, 2))) / (n + PROMPTS_PER_LOOK)
    threshold = math.log(2 * max(int(undecided.sum()), 1) / options.alpha)
    apart = _estimate_remaining_prompts(threshold - np.maximum(strongest[0], strongest[1]), lead)
    alike = _estimate_remaining_prompts(threshold - np.minimum(strongest[2], strongest[3]), indifference - lead)
    remaining = np.where(seen[..., None], 0, order >= 0).sum(axis=(1, 2)).astype(np.float64)
    left = np.where(undecided & (n > 0), np.minimum(np.minimum(apart, alike), remaining), 0.0)
    open_pairs = np.flatnonzero(undecided & (remaining > 0))
    return PairRanking(verdict.verdict, left, open_pairs[np.argsort(left[open_pairs], kind="stable")])


def order_leads_by_pair(leads: Floats, order: Indices) -> Floats:
    """Return the leads (prompts, pairs) in the given order, by pair (pairs, looks, PROMPTS_PER_LOOK)."""
    return np.stack([order_differences(own, order) for own in leads.T])


def _estimate_remaining_prompts(missing: Floats, gap: Floats) -> Floats:
    """Return the expected number of further prompts until a pair is decided; infinite if its lead (`gap`) is 0.

    `missing` is the amount by which the logarithm of the e-process must still grow. With the best bet, it grows by
    about gap^2 / 2 per prompt if the outcomes are wins and losses.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(gap > 0, 2 * np.maximum(missing, 0) / np.maximum(gap, 1e-9) ** 2, math.inf))

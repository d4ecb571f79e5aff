"""Replays finished scores in random orders to measure the cost and the errors of adaptive comparisons."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.operators.statistics.sequential import (
    A_BETTER,
    ALIKE,
    B_BETTER,
    PROMPTS_PER_LOOK,
    UNDECIDED,
    Decisions,
    Indices,
    add_indifference_evidence,
    compute_evidence,
    decide_sequentially,
    draw_balanced_order,
    order_differences,
)

Floats = NDArray[np.float64]

MIN_PROMPTS = 30
"""Generators that share fewer prompts than this are not compared."""
MIN_NAIVE_PROMPTS = 10
"""Number of prompts at which the naive method first tests the difference."""
ORDERS_AT_ONCE = 100
"""Number of orders drawn at a time, to limit memory."""


class GeneratorPair(NamedTuple):
    """Two generators that were scored on the same prompts."""

    a: str
    b: str
    differences: Floats
    """Score for the image by `a` minus score for the image by `b`, per prompt; nan if either has no score."""

    @property
    def difference(self) -> float:
        """Difference between the two generators' mean scores over all shared prompts."""
        return float(np.nanmean(self.differences))


class RehearsedDecisions(NamedTuple):
    """Decisions about every pair, in many random orders of the same prompts."""

    pairs: Sequence[GeneratorPair]
    prompts: int
    decisions: Decisions
    """Verdict on each pair in each order, and the number of interim tests until then (orders, pairs)."""
    indifference: float

    def measure_cost(self) -> Floats:
        """Return the fraction of prompts that was needed to decide each pair (orders, pairs); 1 for undecided pairs."""
        return np.minimum((self.decisions.look + 1) * PROMPTS_PER_LOOK / self.prompts, 1)

    def measure_total_cost(self) -> Floats:
        """Return the fraction of prompts that was needed to decide all pairs (orders,)."""
        return np.asarray(self.measure_cost().max(axis=-1))

    def find_early_pairs(self) -> NDArray[np.bool_]:
        """Return True for each pair that was decided before the last prompt in at least half of the orders (pairs,)."""
        early: NDArray[np.bool_] = (self.measure_cost() < 1).mean(axis=0) >= 0.5
        return early

    def find_false_verdicts(self) -> NDArray[np.bool_]:
        """Return True for each decision that the full set of prompts contradicts (orders, pairs)."""
        return find_false_decisions(self.decisions.verdict, self.pairs, self.indifference)

    def measure_false_share(self) -> float:
        """Return the fraction of orders with at least one false decision."""
        return float(self.find_false_verdicts().any(axis=-1).mean())


def find_false_decisions(
    verdict: NDArray[np.int8], pairs: Sequence[GeneratorPair], indifference: float
) -> NDArray[np.bool_]:
    """Return True for each verdict (..., pairs) that the full set of prompts contradicts, ignoring rounding errors."""
    truth = np.array([pair.difference for pair in pairs])
    slack = 1e-9 * max(1.0, float(np.abs(truth).max(initial=0)))
    false: NDArray[np.bool_] = (
        ((verdict == A_BETTER) & (truth <= slack))
        | ((verdict == B_BETTER) & (truth >= -slack))
        | ((verdict == ALIKE) & (np.abs(truth) > indifference + slack))
    )
    return false


def pair_generators(scores: pd.DataFrame) -> list[GeneratorPair]:
    """Return all pairs of generators in a table (prompts x generators) that share enough prompts."""
    pairs = [
        GeneratorPair(str(a), str(b), (scores[a] - scores[b]).to_numpy(np.float64)) for a, b in combinations(scores, 2)
    ]
    return [pair for pair in pairs if np.isfinite(pair.differences).sum() >= MIN_PROMPTS]


def equalise_means(pairs: Sequence[GeneratorPair]) -> list[GeneratorPair]:
    """Return the pairs with differences shifted to a mean of 0, so that deciding for either generator is false."""
    return [pair._replace(differences=pair.differences - pair.difference) for pair in pairs]


def rehearse(
    pairs: Sequence[GeneratorPair],
    labels: Sequence[str],
    options: AdaptiveConfig,
    indifferences: Sequence[float],
    orders: int,
) -> list[RehearsedDecisions]:
    """Decide the pairs in random orders of the prompts, balanced by `labels`.

    Returns the decisions for each value of `indifferences`.
    """
    found: list[list[Decisions]] = [[] for _ in indifferences]
    for drawn in _draw_orders(labels, orders, options.seed):
        differences = [order_differences(pair.differences, drawn) for pair in pairs]
        evidences = [compute_evidence(of_pair, options, 0, len(pairs)) for of_pair in differences]
        for indifference, decided in zip(indifferences, found, strict=True):
            of_pairs = [
                add_indifference_evidence(one, of_pair, options, indifference, len(pairs))
                for one, of_pair in zip(evidences, differences, strict=True)
            ]
            decided.append(decide_sequentially(of_pairs, options.alpha))
    return [
        RehearsedDecisions(
            pairs, len(labels), Decisions(*map(np.concatenate, zip(*decided, strict=True))), indifference
        )
        for indifference, decided in zip(indifferences, found, strict=True)
    ]


def _draw_orders(labels: Sequence[str], orders: int, seed: int) -> Iterator[Indices]:
    """Yield balanced random orders, at most ORDERS_AT_ONCE per array (orders, looks, prompts per look).

    A look is an evaluation of the scores during the adaptive sweep.
    """
    for first in range(seed, seed + orders, ORDERS_AT_ONCE):
        seeds = range(first, min(first + ORDERS_AT_ONCE, seed + orders))
        yield np.stack([draw_balanced_order(labels, one) for one in seeds])


def decide_naively(pairs: Sequence[GeneratorPair], labels: Sequence[str], orders: int, seed: int) -> NDArray[np.int8]:
    """Return the verdicts (orders, pairs) of a t-test after every prompt, stopping at the first p-value below 5%."""
    return np.concatenate(
        [
            np.stack(
                [_find_first_significant_verdicts(order_differences(pair.differences, drawn)) for pair in pairs],
                axis=-1,
            )
            for drawn in _draw_orders(labels, orders, seed)
        ]
    )


def _find_first_significant_verdicts(differences: Floats) -> NDArray[np.int8]:
    """Return each order's verdict at the first significant t-test of the mean; UNDECIDED if no test is significant."""
    in_turn = differences.reshape(len(differences), -1)
    there = np.isfinite(in_turn)
    seen, n = np.where(there, in_turn, 0), np.cumsum(there, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.cumsum(seen, axis=1) / n
        error = np.sqrt(np.maximum(np.cumsum(seen**2, axis=1) / n - mean**2, 0) / (n - 1))
        significant = np.abs(mean) > _find_critical_values(in_turn.shape[1])[n] * error
    significant &= (n >= MIN_NAIVE_PROMPTS) & (n < n[:, -1:])
    first = significant.argmax(axis=1)
    every = np.arange(len(in_turn))
    return np.where(significant[every, first], np.sign(mean[every, first]), UNDECIDED).astype(np.int8)


@lru_cache
def _find_critical_values(most: int) -> Floats:
    freedom = np.arange(-1, most)
    return np.where(freedom > 0, scipy.stats.t.ppf(1 - SIGNIFICANCE / 2, np.maximum(freedom, 1)), math.inf)

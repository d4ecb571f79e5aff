"""What an adaptive comparison would have cost, and how often it would have been wrong, on scores that are all there."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from plumbline.operators.statistics.levels import SIGNIFICANCE
from plumbline.operators.statistics.options import Adaptive
from plumbline.operators.statistics.sequential import (
    A_BETTER,
    ALIKE,
    B_BETTER,
    PER_LOOK,
    UNDECIDED,
    Decided,
    Places,
    balanced_order,
    decide,
    evidence,
    in_order,
    with_indifference,
)

Floats = NDArray[np.float64]

FEWEST_PROMPTS = 30
"""Two generators with fewer prompts in common are not compared."""
NAIVE_FIRST = 10
"""Prompts before the first naive look."""
ORDERS_AT_ONCE = 100


class GeneratorPair(NamedTuple):
    """Two generators that were scored on the same prompts."""

    a: str
    b: str
    differences: Floats
    """By prompt; nan of those that one of the two lacks."""

    @property
    def difference(self) -> float:
        """Of their means, over all prompts that both have."""
        return float(np.nanmean(self.differences))


class Rehearsed(NamedTuple):
    """Many orders of the same prompts, each looked at until every pair was decided."""

    pairs: Sequence[GeneratorPair]
    prompts: int
    decided: Decided
    """By order and pair."""
    indifference: float

    def used(self) -> Floats:
        """By order and pair, the share of the prompts after which it was decided; 1 where it was not."""
        return np.minimum((self.decided.look + 1) * PER_LOOK / self.prompts, 1)

    def used_in_all(self) -> Floats:
        """By order, the share of the prompts after which all pairs were decided."""
        return np.asarray(self.used().max(axis=-1))

    def usually_early(self) -> NDArray[np.bool_]:
        """By pair, whether it was decided before the last prompt in half of the orders or more."""
        early: NDArray[np.bool_] = (self.used() < 1).mean(axis=0) >= 0.5
        return early

    def false(self) -> NDArray[np.bool_]:
        """By order and pair, whether what was decided is not so of all prompts."""
        return false_decisions(self.decided.verdict, self.pairs, self.indifference)

    def any_false(self) -> float:
        """The share of orders with a false decision."""
        return float(self.false().any(axis=-1).mean())


def false_decisions(
    verdict: NDArray[np.int8], pairs: Sequence[GeneratorPair], indifference: float
) -> NDArray[np.bool_]:
    """Which verdicts (..., pairs) are not so of all prompts; means that are equal but for rounding are equal."""
    truth = np.array([pair.difference for pair in pairs])
    slack = 1e-9 * max(1.0, float(np.abs(truth).max(initial=0)))
    false: NDArray[np.bool_] = (
        ((verdict == A_BETTER) & (truth <= slack))
        | ((verdict == B_BETTER) & (truth >= -slack))
        | ((verdict == ALIKE) & (np.abs(truth) > indifference + slack))
    )
    return false


def compared_pairs(scores: pd.DataFrame) -> list[GeneratorPair]:
    """Every two generators of a table (prompts x generators) that share enough prompts."""
    pairs = [
        GeneratorPair(str(a), str(b), (scores[a] - scores[b]).to_numpy(np.float64)) for a, b in combinations(scores, 2)
    ]
    return [pair for pair in pairs if np.isfinite(pair.differences).sum() >= FEWEST_PROMPTS]


def tied(pairs: Sequence[GeneratorPair]) -> list[GeneratorPair]:
    """The pairs with their differences so shifted that no generator is better: whatever is decided of them is false."""
    return [pair._replace(differences=pair.differences - pair.difference) for pair in pairs]


def rehearse(
    pairs: Sequence[GeneratorPair],
    labels: Sequence[str],
    options: Adaptive,
    indifferences: Sequence[float],
    orders: int,
) -> list[Rehearsed]:
    """Looks at the pairs in so many balanced random orders of their prompts, each with a label; by indifference."""
    found: list[list[Decided]] = [[] for _ in indifferences]
    for drawn in _orders(labels, orders, options.seed):
        differences = [in_order(pair.differences, drawn) for pair in pairs]
        known = [evidence(of_pair, options, 0, len(pairs)) for of_pair in differences]
        for indifference, decided in zip(indifferences, found, strict=True):
            of_pairs = [
                with_indifference(one, of_pair, options, indifference, len(pairs))
                for one, of_pair in zip(known, differences, strict=True)
            ]
            decided.append(decide(of_pairs, options.alpha))
    return [
        Rehearsed(pairs, len(labels), Decided(*map(np.concatenate, zip(*decided, strict=True))), indifference)
        for indifference, decided in zip(indifferences, found, strict=True)
    ]


def _orders(labels: Sequence[str], orders: int, seed: int) -> Iterator[Places]:
    """Balanced random orders, some at a time: (orders, looks, per_look)."""
    for first in range(seed, seed + orders, ORDERS_AT_ONCE):
        seeds = range(first, min(first + ORDERS_AT_ONCE, seed + orders))
        yield np.stack([balanced_order(labels, one) for one in seeds])


def naive(pairs: Sequence[GeneratorPair], labels: Sequence[str], orders: int, seed: int) -> NDArray[np.int8]:
    """What a t-test after every prompt would say, the first to pass 5% counting: verdicts (orders, pairs)."""
    return np.concatenate(
        [
            np.stack([_first_significant(in_order(pair.differences, drawn)) for pair in pairs], axis=-1)
            for drawn in _orders(labels, orders, seed)
        ]
    )


def _first_significant(differences: Floats) -> NDArray[np.int8]:
    """By order, who is better at the first look at which Student's test of the mean is significant."""
    in_turn = differences.reshape(len(differences), -1)
    there = np.isfinite(in_turn)
    seen, n = np.where(there, in_turn, 0), np.cumsum(there, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.cumsum(seen, axis=1) / n
        error = np.sqrt(np.maximum(np.cumsum(seen**2, axis=1) / n - mean**2, 0) / (n - 1))
        significant = np.abs(mean) > _critical(in_turn.shape[1])[n] * error
    significant &= (n >= NAIVE_FIRST) & (n < n[:, -1:])
    first = significant.argmax(axis=1)
    every = np.arange(len(in_turn))
    return np.where(significant[every, first], np.sign(mean[every, first]), UNDECIDED).astype(np.int8)


@lru_cache
def _critical(most: int) -> Floats:
    """Student's two-sided critical values by number of prompts, 0 to `most`."""
    freedom = np.arange(-1, most)
    return np.where(freedom > 0, scipy.stats.t.ppf(1 - SIGNIFICANCE / 2, np.maximum(freedom, 1)), math.inf)

"""Checks on a judge that compares two images: the influence of their order, and circular choices."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.statistics.bootstrap import Interval
from plumbline.operators.statistics.ordering import compute_sign_flip_p_value
from plumbline.operators.statistics.shares import average_by_prompt, compute_share_interval

Floats = NDArray[np.float64]

CHANCE_CYCLE_SHARE = 0.25
"""Fraction of circular triples if each choice is a coin toss: 2 of the 8 ways to decide three pairs."""
PROMPTS_AT_ONCE = 256


class OrderBias(NamedTuple):
    """Frequency with which the image that is shown first wins, over pairs that were shown in both orders.

    The quality of the images cancels out, because each image is shown first once. Without bias the share is 0.5.
    """

    share: float
    """Mean probability that the first image is better; a tie counts half."""
    interval: Interval
    p_value: float
    """Two-sided p-value of the hypothesis that the order has no influence."""
    agreement: float
    """Fraction of pairs for which both orders favour the same image, or neither image."""
    agreement_interval: Interval
    first_wins: int
    """Number of answers that favour the first image."""
    decided: int
    """Number of answers that favour either image."""
    n_pairs: int
    n_prompts: int


def measure_order_bias(prompts: NDArray[np.int64], first_order: Floats, second_order: Floats) -> OrderBias:
    """Return the order bias of pairs of images that were shown in both orders.

    The p-value is from a sign-flip test over prompts: without bias, the replies to the two orders of a prompt's pairs
    are equally likely to be swapped.

    Args:
        prompts: Index of each pair's prompt (pairs,).
        first_order: Probability that the image shown first is better, in one order (pairs,).
        second_order: The same in the other order, in which the other image is shown first (pairs,).
    """
    shown_first = (first_order + second_order) / 2
    sides = np.sign(np.round(np.stack([first_order, second_order]) - 0.5, 9))
    agrees = (sides[0] == -sides[1]).astype(np.float64)
    share, by_prompt = average_by_prompt(shown_first, prompts)
    agreement, agreement_by_prompt = average_by_prompt(agrees, prompts)
    return OrderBias(
        share=share,
        interval=compute_share_interval(share, by_prompt),
        p_value=compute_sign_flip_p_value(np.bincount(prompts, weights=2 * shown_first - 1).astype(np.float64)),
        agreement=agreement,
        agreement_interval=compute_share_interval(agreement, agreement_by_prompt),
        first_wins=int((sides > 0).sum()),
        decided=int((sides != 0).sum()),
        n_pairs=len(prompts),
        n_prompts=len(by_prompt),
    )


class CycleCounts(NamedTuple):
    """Counts of triples of generators, summed over prompts."""

    triples: int
    """Number of triples whose three pairs the judge decided."""
    circular: int
    """Number of triples in which a beats b, b beats c, and c beats a."""

    @property
    def by_chance(self) -> float:
        """Expected number of circular triples if each choice were a coin toss."""
        return CHANCE_CYCLE_SHARE * self.triples


def count_cycles(first: NDArray[np.intp], second: NDArray[np.intp], won: Floats, generators: int) -> CycleCounts:
    """Count circular triples of generators over all prompts.

    Args:
        first: Index of the first generator of each pair (pairs,).
        second: Index of the second generator of each pair (pairs,).
        won: Share won by the first generator, by prompt and pair (prompts, pairs); nan if a pair was not compared. A
            share of 0.5 is undecided.
        generators: Number of generators.
    """
    sides = np.nan_to_num(np.sign(np.round(won - 0.5, 9)))
    triples = circular = 0.0
    for start in range(0, len(sides), PROMPTS_AT_ONCE):
        own = sides[start : start + PROMPTS_AT_ONCE]
        beats = np.zeros((len(own), generators, generators))
        beats[:, first, second], beats[:, second, first] = own > 0, own < 0
        decided = beats + beats.transpose(0, 2, 1)
        circular += np.einsum("pij,pji->", beats @ beats, beats) / 3  # each circle is found from all three corners
        triples += np.einsum("pij,pji->", decided @ decided, decided) / 6
    return CycleCounts(round(triples), round(circular))

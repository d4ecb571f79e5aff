"""Answers to an image's questions made into its score: each by itself, or only where the questions above hold too."""

from collections.abc import Mapping, Sequence
from typing import Literal

from plumbline.operators.metrics.dsg import holding

Accumulation = Literal["none", "direct", "recursive"]
"""Whether a right answer counts by itself (TIFA), where those of its parents are right (the DSG release), or where
those of all its ancestors are (T2IScoreScore)."""
Missing = Literal["wrong", "left_out"]
"""What a question without an answer counts as: a wrong answer, or no question."""


def accumulate(
    right: Mapping[str, bool | None],
    parents: Mapping[str, Sequence[str]],
    accumulation: Accumulation,
    missing: Missing,
) -> float | None:
    """The share of an image's questions that count, by whether each was answered right; None where none is left.

    A parent that is no question of the image, or is left out, counts as holding.
    """
    answered = {name: bool(given) for name, given in right.items() if given is not None or missing == "wrong"}
    if not answered:
        return None
    counting = answered if accumulation == "none" else holding(answered, parents, accumulation)
    return sum(counting.values()) / len(answered)

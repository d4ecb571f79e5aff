"""Whether a rater agrees less with the others than these do with each other: an exact test for any scale of ratings."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_ANSWERS = 3
"""Answers that a task needs: a rater's, and two others' that may agree better."""
FIRST_DRAWS = 499
DRAWS = 9999
OPEN = 0.1
"""Further draws are made only where the first leave a p-value up to this."""
DRAWN_TOGETHER = 1 << 18
"""Answers that are drawn at a time."""


def exchange_test(answers: Floats, templates: NDArray[np.intp], rater: int, seed: int = 0) -> float:
    """Return the p-value that a rater answers as the others do; small if the others agree better with each other.

    Raters who are alike could have exchanged their answers to any task. So the test puts the answers to each task in
    random order and counts how often a rater drawn by chance stands out as much (a permutation test within tasks). It
    holds for few tasks and for answers that are nearly all the same, because it takes no distribution for granted.

    Args:
        answers: Answers as numbers (tasks, raters), nan where a rater gave none.
        templates: The template of each task (tasks,). Answers are standardised by template.
        rater: The rater's column.
        seed: Of the draws.

    Returns:
        The p-value, one-sided; 1 where no task has the rater's answer and two others, or all answers are equal.
    """
    given = np.isfinite(answers)
    tasks = given[:, rater] & (given.sum(axis=1) >= MIN_ANSWERS)
    if not tasks.any():
        return 1.0
    exchanged = _Exchanged(_standardised(answers[tasks], templates[tasks]))
    own = exchanged.places[:, rater]
    random = np.random.default_rng(seed)
    observed = float(exchanged.lack_of_agreement(own[None])[0])
    above, drawn = 0, 0
    for draws in (FIRST_DRAWS, DRAWS - FIRST_DRAWS):
        above += exchanged.count_at_least(observed, draws, random)
        drawn += draws
        if (1 + above) / (1 + drawn) > OPEN:
            break
    return (1 + above) / (1 + drawn)


def _standardised(answers: Floats, templates: NDArray[np.intp]) -> Floats:
    """Of all raters together, so that no exchange changes it; 0 where all answers by a template are equal."""
    result = np.full(answers.shape, math.nan)
    for template in np.unique(templates):
        rows = templates == template
        spread = float(np.nanstd(answers[rows]))
        result[rows] = (answers[rows] - np.nanmean(answers[rows])) / spread if spread > 1e-12 else answers[rows] * 0
    return result


class _Exchanged:
    """What each answer to a task would say as the rater's own, beside the others to that task."""

    def __init__(self, answers: Floats) -> None:
        given = np.isfinite(answers)
        self.counts = given.sum(axis=1)
        order = np.argsort(~given, axis=1, kind="stable")
        self.places = np.argsort(order, axis=1)
        """By rater, the place of the answer among those that were given."""
        own = np.nan_to_num(np.take_along_axis(answers, order, axis=1))
        sums, squares = ((own**power).sum(axis=1, keepdims=True) for power in (1, 2))
        others = self.counts[:, None] - 1
        rest, rest_squares = sums - own, squares - own**2
        self.parts = np.stack(
            [own, rest / others, own * rest / others, (rest**2 - rest_squares) / (others * (others - 1))]
        )
        """The answer, the others' mean, their product, and the mean product of two others (4, tasks, raters)."""

    def lack_of_agreement(self, own: NDArray[np.intp]) -> Floats:
        """The covariance of two others less the rater's with the others, of the places of the rater's answers (draws,
        tasks). Taking off the means leaves out how severe a rater is.
        """
        tasks = np.arange(len(self.counts))
        mine, theirs, product, pairs = (part[tasks, own].mean(axis=1) for part in self.parts)
        return np.asarray((pairs - theirs**2) - (product - mine * theirs))

    def count_at_least(self, observed: float, draws: int, random: np.random.Generator) -> int:
        """How many of so many draws lack as much agreement."""
        size, found = max(1, DRAWN_TOGETHER // len(self.counts)), 0
        for first in range(0, draws, size):
            shape = (min(size, draws - first), len(self.counts))
            own = (random.random(shape) * self.counts).astype(np.intp)
            found += int((self.lack_of_agreement(own) >= observed - 1e-9).sum())
        return found

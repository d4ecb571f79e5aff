"""Exact test of whether a rater agrees less with the others than they do with each other, for any scale of ratings."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_ANSWERS = 3
"""Answers that a task needs: the rater's, and those of two others that may agree better."""
FIRST_DRAWS = 499
DRAWS = 9999
OPEN = 0.1
"""More draws are made only if the p-value of the first draws is at most this."""
DRAWN_TOGETHER = 1 << 18
"""Answers that are drawn at a time."""


def exchange_test(answers: Floats, templates: NDArray[np.intp], rater: int, seed: int = 0) -> float:
    """Return the p-value that a rater answers as the others do; small if the others agree better with each other.

    Raters who are alike could have exchanged their answers to any task. So the test puts the answers to each task in
    random order and counts how often a random rater deviates as much (a permutation test within tasks). It holds for
    few tasks and for answers that are nearly all the same, because it assumes no distribution.

    Args:
        answers: Answers as numbers (tasks, raters), nan if a rater did not answer a task.
        templates: The template of each task (tasks,). Answers are standardised by template.
        rater: The rater's column.
        seed: Seed of the draws.

    Returns:
        The one-sided p-value; 1 if no task has an answer of the rater and of two others, or if all answers are equal.
    """
    given = np.isfinite(answers)
    tasks = given[:, rater] & (given.sum(axis=1) >= MIN_ANSWERS)
    if not tasks.any():
        return 1.0
    exchanged = _ExchangedAnswers(_standardise(answers[tasks], templates[tasks]))
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


def _standardise(answers: Floats, templates: NDArray[np.intp]) -> Floats:
    """Standardise by template over all raters together, so that no exchange changes the result.

    The result is 0 if all answers by a template are equal.
    """
    result = np.full(answers.shape, math.nan)
    for template in np.unique(templates):
        rows = templates == template
        spread = float(np.nanstd(answers[rows]))
        result[rows] = (answers[rows] - np.nanmean(answers[rows])) / spread if spread > 1e-12 else answers[rows] * 0
    return result


class _ExchangedAnswers:
    """The terms of the test statistic for each answer to a task, as if the rater had given it."""

    def __init__(self, answers: Floats) -> None:
        given = np.isfinite(answers)
        self.counts = given.sum(axis=1)
        order = np.argsort(~given, axis=1, kind="stable")
        self.places = np.argsort(order, axis=1)
        """The place of each rater's answer among the given answers (tasks, raters)."""
        own = np.nan_to_num(np.take_along_axis(answers, order, axis=1))
        sums, squares = ((own**power).sum(axis=1, keepdims=True) for power in (1, 2))
        others = self.counts[:, None] - 1
        rest, rest_squares = sums - own, squares - own**2
        self.parts = np.stack(
            [own, rest / others, own * rest / others, (rest**2 - rest_squares) / (others * (others - 1))]
        )
        """The answer, the others' mean, their product, and the mean product of two others (4, tasks, raters)."""

    def lack_of_agreement(self, own: NDArray[np.intp]) -> Floats:
        """Return the covariance of two others less the covariance of the rater with the others (draws,).

        `own` has the places of the rater's answers (draws, tasks). Subtracting the means ignores how severe a rater is.
        """
        places = own + np.arange(len(self.counts)) * self.parts.shape[-1]
        mine, theirs, product, pairs = (part.ravel().take(places).mean(axis=1) for part in self.parts)
        return np.asarray((pairs - theirs**2) - (product - mine * theirs))

    def count_at_least(self, observed: float, draws: int, random: np.random.Generator) -> int:
        """Count the draws whose lack of agreement is at least the observed one."""
        size, found = max(1, DRAWN_TOGETHER // len(self.counts)), 0
        for first in range(0, draws, size):
            shape = (min(size, draws - first), len(self.counts))
            own = (random.random(shape) * self.counts).astype(np.intp)
            found += int((self.lack_of_agreement(own) >= observed - 1e-9).sum())
        return found

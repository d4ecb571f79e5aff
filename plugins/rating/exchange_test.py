"""Exact test of whether a rater agrees less with the others than the others agree with each other, on any scale."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_ANSWERS = 3
"""Number of answers that a task needs: the rater's, and those of two others that may agree better."""
FIRST_DRAWS = 499
DRAWS = 9999
"""Number of draws if the p-value of the first draws is at most MAX_FIRST_P_VALUE."""
MAX_FIRST_P_VALUE = 0.1
ANSWERS_AT_ONCE = 1 << 18
"""Number of answers that are drawn at a time."""


def exchange_test(answers: Floats, templates: NDArray[np.intp], rater: int, seed: int = 0) -> float:
    """Return the p-value that a rater answers as the others do; small if the others agree better with each other.

    If raters are alike, they could have exchanged their answers to any task. So the test shuffles the answers to each
    task and counts how often a random rater deviates as much (a permutation test within tasks). It assumes no
    distribution, so it is valid for few tasks and for answers that are nearly all equal.

    Args:
        answers: Answers as numbers (tasks, raters), nan if a rater did not answer a task.
        templates: The template of each task (tasks,). Answers are standardised by template.
        rater: The rater's column.
        seed: Seed of the draws.

    Returns:
        The one-sided p-value; 1 if no task has an answer of the rater and of two others, or if all answers are equal.
    """
    answered = np.isfinite(answers)
    tasks = answered[:, rater] & (answered.sum(axis=1) >= MIN_ANSWERS)
    if not tasks.any():
        return 1.0
    exchanged = _ExchangedAnswers(_standardise(answers[tasks], templates[tasks]))
    own = exchanged.positions[:, rater]
    random = np.random.default_rng(seed)
    observed = float(exchanged.lack_of_agreement(own[None])[0])
    above, drawn = 0, 0
    for draws in (FIRST_DRAWS, DRAWS - FIRST_DRAWS):
        above += exchanged.count_at_least(observed, draws, random)
        drawn += draws
        if (1 + above) / (1 + drawn) > MAX_FIRST_P_VALUE:
            break
    return (1 + above) / (1 + drawn)


def _standardise(answers: Floats, templates: NDArray[np.intp]) -> Floats:
    """Standardise by template over all raters together, so that exchanges do not change it; equal answers become 0."""
    result = np.full(answers.shape, math.nan)
    for template in np.unique(templates):
        rows = templates == template
        spread = float(np.nanstd(answers[rows]))
        result[rows] = (answers[rows] - np.nanmean(answers[rows])) / spread if spread > 1e-12 else answers[rows] * 0
    return result


class _ExchangedAnswers:
    """The terms of the test statistic for every answer to a task, as if it were the rater's."""

    def __init__(self, answers: Floats) -> None:
        answered = np.isfinite(answers)
        self.counts = answered.sum(axis=1)
        order = np.argsort(~answered, axis=1, kind="stable")
        self.positions = np.argsort(order, axis=1)
        """Position of each rater's answer among the answers to the task (tasks, raters)."""
        own = np.nan_to_num(np.take_along_axis(answers, order, axis=1))
        sums, squares = ((own**power).sum(axis=1, keepdims=True) for power in (1, 2))
        others = self.counts[:, None] - 1
        rest, rest_squares = sums - own, squares - own**2
        self.parts = np.stack(
            [own, rest / others, own * rest / others, (rest**2 - rest_squares) / (others * (others - 1))]
        )
        """The answer, the mean of the others, their product, and the mean product of two others (4, tasks, raters)."""

    def lack_of_agreement(self, own: NDArray[np.intp]) -> Floats:
        """Return the covariance of two others minus the covariance of the rater with the others (draws,).

        `own` has the positions of the rater's answers (draws, tasks). Covariances ignore how severe a rater is.
        """
        indices = own + np.arange(len(self.counts)) * self.parts.shape[-1]
        mine, theirs, product, pairs = (part.ravel().take(indices).mean(axis=1) for part in self.parts)
        return np.asarray((pairs - theirs**2) - (product - mine * theirs))

    def count_at_least(self, observed: float, draws: int, random: np.random.Generator) -> int:
        """Count the draws whose lack of agreement is at least the observed one."""
        size, found = max(1, ANSWERS_AT_ONCE // len(self.counts)), 0
        for first in range(0, draws, size):
            shape = (min(size, draws - first), len(self.counts))
            own = (random.random(shape) * self.counts).astype(np.intp)
            found += int((self.lack_of_agreement(own) >= observed - 1e-9).sum())
        return found

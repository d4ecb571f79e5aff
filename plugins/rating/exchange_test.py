"""Exact test of whether one rater agrees less with the other raters than they agree with each other, on any scale."""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_ANSWERS_PER_TASK = 3
"""Minimum number of answers per task: one by the tested rater, and two by other raters to compare with each other."""
N_FIRST_DRAWS = 499
N_DRAWS = 9999
"""Number of random draws for the final p-value, if the first p-value is at most MAX_FIRST_P_VALUE."""
MAX_FIRST_P_VALUE = 0.1
"""Maximum p-value after N_FIRST_DRAWS draws at which further draws make it more precise."""
ANSWERS_PER_BATCH = 1 << 18
"""Maximum number of answers drawn at a time, to limit memory."""


def run_exchange_test(answers: Floats, templates: NDArray[np.intp], rater: int, seed: int = 0) -> float:
    """Return the p-value of the hypothesis that a rater answers like the others.

    It is small if the others agree better with each other than with this rater.

    If all raters answer alike, exchanging their answers to a task changes nothing. So the test shuffles the answers to
    each task and counts how often a random rater deviates as much (a permutation test within tasks). It assumes no
    distribution, so it is valid even for few tasks and for answers that are nearly all equal.

    Args:
        answers: Answers as numbers (tasks, raters), nan if a rater did not answer a task.
        templates: The template of each task (tasks,). Answers are standardised by template.
        rater: The rater's column.
        seed: Seed for the random draws.

    Returns:
        The one-sided p-value; 1 if no task was answered by the rater and two others, or if all answers are equal.
    """
    answered = np.isfinite(answers)
    tasks = answered[:, rater] & (answered.sum(axis=1) >= MIN_ANSWERS_PER_TASK)
    if not tasks.any():
        return 1.0
    exchanged = _ExchangedAnswers(_standardise_answers(answers[tasks], templates[tasks]))
    own = exchanged.positions[:, rater]
    random = np.random.default_rng(seed)
    observed = float(exchanged.measure_disagreement(own[None])[0])
    above, drawn = 0, 0
    for draws in (N_FIRST_DRAWS, N_DRAWS - N_FIRST_DRAWS):
        above += exchanged.count_extreme_draws(observed, draws, random)
        drawn += draws
        if (1 + above) / (1 + drawn) > MAX_FIRST_P_VALUE:
            break
    return (1 + above) / (1 + drawn)


def _standardise_answers(answers: Floats, templates: NDArray[np.intp]) -> Floats:
    """Return the answers (tasks, raters) scaled to mean 0 and standard deviation 1 within each template.

    Missing answers stay NaN. If all answers to a template are equal, they become 0. All raters are standardised
    together, so that exchanging their answers does not change the result.
    """
    result = np.full(answers.shape, math.nan)
    for template in np.unique(templates):
        rows = templates == template
        spread = float(np.nanstd(answers[rows]))
        result[rows] = (answers[rows] - np.nanmean(answers[rows])) / spread if spread > 1e-12 else answers[rows] * 0
    return result


class _ExchangedAnswers:
    """Terms of the test statistic, computed for each answer to a task as if the tested rater had given it."""

    def __init__(self, answers: Floats) -> None:
        answered = np.isfinite(answers)
        self.counts = answered.sum(axis=1)
        order = np.argsort(~answered, axis=1, kind="stable")
        self.positions = np.argsort(order, axis=1)
        """Position of each rater's answer among the answers given to the task (tasks, raters)."""
        own = np.nan_to_num(np.take_along_axis(answers, order, axis=1))
        sums, squares = ((own**power).sum(axis=1, keepdims=True) for power in (1, 2))
        others = self.counts[:, None] - 1
        rest, rest_squares = sums - own, squares - own**2
        self.parts = np.stack(
            [own, rest / others, own * rest / others, (rest**2 - rest_squares) / (others * (others - 1))]
        )
        """Four terms for each answer: the answer, the mean of the others' answers, the product of both, and the mean
        product of two others' answers (4, tasks, raters).
        """

    def measure_disagreement(self, own: NDArray[np.intp]) -> Floats:
        """Return the covariance among the other raters minus their covariance with the rater, for each draw (draws,).

        `own` contains the positions of the rater's answers (draws, tasks). Covariances ignore how severe a rater is.
        """
        indices = own + np.arange(len(self.counts)) * self.parts.shape[-1]
        mine, theirs, product, pairs = (part.ravel().take(indices).mean(axis=1) for part in self.parts)
        return np.asarray((pairs - theirs**2) - (product - mine * theirs))

    def count_extreme_draws(self, observed: float, draws: int, random: np.random.Generator) -> int:
        """Return the number of random draws whose disagreement is at least as large as the observed one."""
        size, found = max(1, ANSWERS_PER_BATCH // len(self.counts)), 0
        for first in range(0, draws, size):
            shape = (min(size, draws - first), len(self.counts))
            own = (random.random(shape) * self.counts).astype(np.intp)
            found += int((self.measure_disagreement(own) >= observed - 1e-9).sum())
        return found

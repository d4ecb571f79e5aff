"""Whether a trainer seems to game the reward of a service: its newest images beside a run's, or its own first ones."""

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.metrics.metric import Metric
from plumbline.operators.results.reward_hacking import Movement, describe_alarm, find_suspicious
from plumbline.operators.statistics.levels import SIGNIFICANCE
from plumbline.operators.statistics.ordering import holm
from plumbline.plugins.reward_server.wires.wire import MetricAnswer

Floats = NDArray[np.float64]

FALSE_ALARMS = SIGNIFICANCE
"""The probability that a service ever raises an alarm where nothing but the reward changes."""
TEST = f"Mann-Whitney test by prompt, Holm, at most {FALSE_ALARMS:.0%} false alarms over all looks"
LOG = logging.getLogger(__name__)


class Sentinel:
    """Compares every `images` images with a baseline; what it remembers is a row of sums a prompt."""

    def __init__(self, reward: str, metrics: Mapping[str, Metric], images: int, baseline: Floats | None = None) -> None:
        """`metrics` are those that are watched, by name; the reward is one too, unless several are combined to it.

        `baseline` has the means of a prompt's images, a row a prompt, first of the reward and then of each metric; None
        takes the first `images` images.
        """
        self.reward, self.metrics, self.images = reward, metrics, images
        self.names = tuple(dict.fromkeys([reward, *metrics]))
        self.baseline = baseline
        self.newest: dict[str, Floats] = {}
        self.count = self.looks = 0
        self.moved: list[str] = []
        """The metrics that the last look found to have moved while the reward did not become worse."""

    def wanted(self, asked: Sequence[str]) -> tuple[str, ...]:
        """The metrics of a request, and where the reward is one of them, those that are watched."""
        return tuple(dict.fromkeys([*asked, *self.names])) if self.reward in asked else tuple(asked)

    def see(self, prompt: str, answers: Mapping[str, MetricAnswer]) -> None:
        """Takes an image's scores; one that lacks any of them is left out."""
        scores = [answers[name].score if name in answers else None for name in self.names]
        if None in scores:
            return
        self.newest[prompt] = self.newest.get(prompt, np.zeros(len(scores) + 1)) + np.array([*scores, 1.0], float)
        self.count += 1
        if self.count >= self.images:
            self._look()

    def _look(self) -> None:
        sums = np.stack([*self.newest.values()])
        means = sums[:, :-1] / sums[:, -1:]
        self.newest, self.count = {}, 0
        if self.baseline is None:
            self.baseline = means
            return
        self.looks += 1
        moves = self._movements(self.baseline, means)
        trained = moves.pop(self.reward)
        moved = find_suspicious(trained, [*moves.values()], self.metrics)
        self.moved = [move.metric for move in moved]
        if moved:
            LOG.warning("%s", describe_alarm("The generator", trained, moved, TEST))

    def _movements(self, before: Floats, after: Floats) -> dict[str, Movement]:
        """Of means by prompt and metric. The k-th look is at 6 / (pi k)^2 of FALSE_ALARMS, which sum to all of it."""
        tests = [scipy.stats.mannwhitneyu(later, earlier) for later, earlier in zip(after.T, before.T, strict=True)]
        corrected = holm([float(test.pvalue) for test in tests])
        level = FALSE_ALARMS * 6 / (math.pi * self.looks) ** 2
        signs = [int(np.sign(test.statistic - len(before) * len(after) / 2)) for test in tests]
        return {
            name: Movement(name, float(earlier.mean()), float(later.mean()), sign if p < level else 0)
            for name, earlier, later, sign, p in zip(self.names, before.T, after.T, signs, corrected, strict=True)
        }

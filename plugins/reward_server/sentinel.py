"""Detects a gamed reward: compares a service's newest images with those of a run, or with its own first images."""

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.metrics.metric import Metric
from plumbline.operators.results.reward_hacking import Movement, describe_alarm, find_suspicious
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.operators.statistics.ordering import holm
from plumbline.plugins.reward_server.wires.wire import MetricAnswer

Floats = NDArray[np.float64]

FALSE_ALARMS = SIGNIFICANCE
"""Probability that a service ever raises an alarm although only the reward changes."""
TEST = f"Mann-Whitney test by prompt, Holm, at most {FALSE_ALARMS:.0%} false alarms over all looks"
LOG = logging.getLogger(__name__)


class Sentinel:
    """Compares each `images` images with a baseline; keeps only a row of sums for each prompt."""

    def __init__(self, reward: str, metrics: Mapping[str, Metric], images: int, baseline: Floats | None = None) -> None:
        """Watch these metrics: several others, and the reward unless it is a combination.

        The `baseline` has mean scores with a row for each prompt: the reward first, then each metric. By default, the
        first `images` images are the baseline.
        """
        self.reward, self.metrics, self.images = reward, metrics, images
        self.names = tuple(dict.fromkeys([reward, *metrics]))
        self.baseline = baseline
        self.newest: dict[str, Floats] = {}
        self.count = self.looks = 0
        self.moved: list[str] = []
        """Metrics that moved in the last look while the reward did not become worse."""

    def add_watched(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return the requested metrics, with the watched metrics if the reward is among them."""
        return tuple(dict.fromkeys([*metrics, *self.names])) if self.reward in metrics else tuple(metrics)

    def add_image(self, prompt: str, answers: Mapping[str, MetricAnswer]) -> None:
        """Add an image's scores; an image without one of the scores is skipped."""
        scores = [answers[name].score if name in answers else None for name in self.names]
        if None in scores:
            return
        self.newest[prompt] = self.newest.get(prompt, np.zeros(len(scores) + 1)) + np.array([*scores, 1.0], float)
        self.count += 1
        if self.count >= self.images:
            self._compare()

    def _compare(self) -> None:
        sums = np.stack([*self.newest.values()])
        means = sums[:, :-1] / sums[:, -1:]
        self.newest, self.count = {}, 0
        if self.baseline is None:
            self.baseline = means
            return
        self.looks += 1
        movements = self._test_movements(self.baseline, means)
        trained = movements.pop(self.reward)
        moved = find_suspicious(trained, [*movements.values()], self.metrics)
        self.moved = [movement.metric for movement in moved]
        if moved:
            LOG.warning("%s", describe_alarm("The generator", trained, moved, TEST))

    def _test_movements(self, before: Floats, after: Floats) -> dict[str, Movement]:
        """Test each metric's means by prompt; the k-th look has the level FALSE_ALARMS * 6 / (pi k)^2.

        These levels sum to FALSE_ALARMS over all looks.
        """
        tests = [scipy.stats.mannwhitneyu(later, earlier) for later, earlier in zip(after.T, before.T, strict=True)]
        corrected = holm([float(test.pvalue) for test in tests])
        level = FALSE_ALARMS * 6 / (math.pi * self.looks) ** 2
        signs = [int(np.sign(test.statistic - len(before) * len(after) / 2)) for test in tests]
        return {
            name: Movement(name, float(earlier.mean()), float(later.mean()), sign if p < level else 0)
            for name, earlier, later, sign, p in zip(self.names, before.T, after.T, signs, corrected, strict=True)
        }

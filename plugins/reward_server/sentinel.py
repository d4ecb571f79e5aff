"""Detects reward hacking by comparing a service's newest images with those of a run, or with its own first images."""

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from plumbline.operators.metrics.metric import Metric
from plumbline.operators.results.reward_hacking import Movement, describe_alarm, find_suspicious_movements
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.operators.statistics.ordering import holm
from plumbline.plugins.reward_server.wires.wire import MetricAnswer

Floats = NDArray[np.float64]

MAX_FALSE_ALARM_PROBABILITY = SIGNIFICANCE
"""Maximum probability that a service ever raises a false alarm."""
TEST_DESCRIPTION = (
    f"Mann-Whitney test by prompt, Holm, at most {MAX_FALSE_ALARM_PROBABILITY:.0%} false alarms over all looks"
)
LOG = logging.getLogger(__name__)


class Sentinel:
    """Detector of reward hacking. After every `images` new images, it compares them with a baseline.

    It stores one row of sums per prompt instead of the images' scores.
    """

    def __init__(self, reward: str, metrics: Mapping[str, Metric], images: int, baseline: Floats | None = None) -> None:
        """Watch the reward (unless it is a combination) and several other metrics.

        `baseline` contains mean scores with one row per prompt: the reward first, followed by each metric. By default,
        the first `images` images are the baseline.
        """
        self.reward, self.metrics, self.images = reward, metrics, images
        self.names = tuple(dict.fromkeys([reward, *metrics]))
        self.baseline = baseline
        self.newest: dict[str, Floats] = {}
        self.count = self.comparisons = 0
        self.moved: list[str] = []
        """Metrics that changed in the latest comparison although the reward did not get worse."""

    def add_watched_metrics(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return the requested metrics; if the reward is among them, add the watched metrics."""
        return tuple(dict.fromkeys([*metrics, *self.names])) if self.reward in metrics else tuple(metrics)

    def add_image(self, prompt: str, answers: Mapping[str, MetricAnswer]) -> None:
        """Add the scores of an image. An image that lacks one of the scores is skipped."""
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
        self.comparisons += 1
        movements = self._test_movements(self.baseline, means)
        trained = movements.pop(self.reward)
        moved = find_suspicious_movements(trained, [*movements.values()], self.metrics)
        self.moved = [movement.metric for movement in moved]
        if moved:
            LOG.warning("%s", describe_alarm("The generator", trained, moved, TEST_DESCRIPTION))

    def _test_movements(self, before: Floats, after: Floats) -> dict[str, Movement]:
        """Return each metric's mean before and after, and the direction in which its means per prompt changed, if any.

        The k-th comparison has the significance level MAX_FALSE_ALARM_PROBABILITY * 6 / (pi k)^2. These levels sum to
        MAX_FALSE_ALARM_PROBABILITY over all comparisons.
        """
        tests = [scipy.stats.mannwhitneyu(later, earlier) for later, earlier in zip(after.T, before.T, strict=True)]
        corrected = holm([float(test.pvalue) for test in tests])
        level = MAX_FALSE_ALARM_PROBABILITY * 6 / (math.pi * self.comparisons) ** 2
        signs = [int(np.sign(test.statistic - len(before) * len(after) / 2)) for test in tests]
        return {
            name: Movement(name, float(earlier.mean()), float(later.mean()), sign if p < level else 0)
            for name, earlier, later, sign, p in zip(self.names, before.T, after.T, signs, corrected, strict=True)
        }

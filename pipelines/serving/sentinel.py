"""Whether a trainer seems to game the reward of a service: its newest images beside a run's, or its own first ones."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import stats

from plumbline.operators.errors import ConfigError
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.reward_hacking import Movement, alarm, suspicious
from plumbline.operators.sentences import names
from plumbline.operators.statistics.ordering import holm
from plumbline.operators.wires.wire import Answer
from plumbline.pipelines.cells.runs import find_run
from plumbline.pipelines.cells.store import Store

Floats = NDArray[np.float64]

FALSE_ALARMS = 0.05
"""The probability that a service ever raises an alarm where nothing but the reward changes."""
TEST = f"Mann-Whitney test by prompt, Holm, at most {FALSE_ALARMS:.0%} false alarms over all looks"
LEAST = 20
"""Prompts that a stored baseline needs: of fewer no test tells much."""
LOG = logging.getLogger(__name__)


class Sentinel:
    """Compares every `images` images with a baseline; what it remembers is a row of sums a prompt."""

    def __init__(self, reward: str, metrics: Mapping[str, Metric], images: int, baseline: Floats | None = None) -> None:
        """`metrics` are the reward and those that are watched, by name.

        `baseline` has the means of a prompt's images by metric, a row a prompt; None takes the first `images` images.
        """
        self.reward, self.metrics, self.images = reward, metrics, images
        self.baseline = baseline
        self.newest: dict[str, Floats] = {}
        self.count = self.looks = 0
        self.moved: list[str] = []
        """The metrics that the last look found to have moved while the reward did not become worse."""

    def wanted(self, asked: Sequence[str]) -> tuple[str, ...]:
        """The metrics of a request, and where the reward is one of them, those that are watched."""
        return tuple(dict.fromkeys([*asked, *self.metrics])) if self.reward in asked else tuple(asked)

    def see(self, prompt: str, answers: Mapping[str, Answer]) -> None:
        """Takes an image's scores; one that lacks any of them is left out."""
        scores = [answers[name].score if name in answers else None for name in self.metrics]
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
        moved = suspicious(trained, [*moves.values()], self.metrics)
        self.moved = [move.metric for move in moved]
        if moved:
            LOG.warning("%s", alarm("The generator", trained, moved, TEST))

    def _movements(self, before: Floats, after: Floats) -> dict[str, Movement]:
        """Of means by prompt and metric. The k-th look is at 6 / (pi k)^2 of FALSE_ALARMS, which sum to all of it."""
        tests = [stats.mannwhitneyu(later, earlier) for later, earlier in zip(after.T, before.T, strict=True)]
        corrected = holm([float(test.pvalue) for test in tests])
        level = FALSE_ALARMS * 6 / (math.pi * self.looks) ** 2
        signs = [int(np.sign(test.statistic - len(before) * len(after) / 2)) for test in tests]
        return {
            name: Movement(name, float(earlier.mean()), float(later.mean()), sign if p < level else 0)
            for name, earlier, later, sign, p in zip(self.metrics, before.T, after.T, signs, corrected, strict=True)
        }


COLUMNS = ["image_id", "prompt_id", "generator", "metric", "score"]


def read_baseline(store: Store, run: str, generator: str | None, recipes: Mapping[str, str]) -> Floats:
    """The mean scores of one generator's images, a row for each prompt, a column for each metric of `recipes`.

    `recipes` are the digests of the scores' recipes, by metric. Images that one of the metrics could not score are left
    out. Raises ConfigError where the run lacks a metric or has it otherwise, the generator is none of its own, or fewer
    than LEAST prompts have scores.
    """
    run_id = find_run(store, run, key="baseline")
    scores = pd.concat(_scores(store, run_id, recipes), ignore_index=True)
    _require_alike(store, run_id, set(scores.metric), recipes)
    chosen = scores[scores.generator == _generator(generator, run_id, [str(x) for x in scores.generator.unique()])]
    images = chosen.set_index(["prompt_id", "image_id", "metric"]).score.unstack()
    means = images[list(recipes)].dropna().groupby("prompt_id").mean()
    if len(means) < LEAST:
        raise ConfigError(f"baseline: run {run_id} has scores on {len(means)} prompts, expected at least {LEAST}")
    return np.asarray(means.to_numpy(), np.float64)


def _scores(store: Store, run_id: str, metrics: Mapping[str, str]) -> Iterator[pd.DataFrame]:
    """Of these metrics, part by part."""
    for path in store.files(f"runs/{run_id}/scores.parquet"):
        table = store.read_table(path, COLUMNS)
        yield table.filter(pc.is_in(table.column("metric"), pa.array(metrics, pa.string()))).to_pandas()


def _require_alike(store: Store, run_id: str, of_run: set[str], recipes: Mapping[str, str]) -> None:
    """Raises ConfigError for a metric that the run lacks, or whose numbers are others than those of the service."""
    absent = [name for name in recipes if name not in of_run]
    if absent:
        raise ConfigError(
            f"baseline: run {run_id} has no scores of {names(absent)}; score them there: python -m jobs.sweep"
        )
    paths = store.read_table(f"runs/{run_id}/cells.parquet", ["path"]).column("path").to_pylist()
    folders = {path.rsplit("/", 2)[0] for path in paths}
    altered = [name for name, digest in recipes.items() if f"scores/{digest[:8]}" not in folders]
    if altered:
        raise ConfigError(
            f"baseline: {names(altered)} is not the same metric in run {run_id} and in this service, so its scores are "
            "not compared; give both the same options and models"
        )


def _generator(wanted: str | None, run_id: str, of_run: list[str]) -> str:
    """Whose images are compared: those of another generator are another thing, whatever it was trained on."""
    if wanted is None and len(of_run) == 1:
        return of_run[0]
    if wanted not in of_run:
        raise ConfigError(
            f"baseline_generator: expected one of run {run_id}, of {', '.join(of_run)}, got {wanted or 'none'}"
        )
    return wanted

"""The scores of a run that others are judged by: a service's reward and its sentinel, the units of a combination."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import names
from plumbline.operators.rewards.combination import REWARD, Reward, Scale, Unit, scales_of
from plumbline.operators.rewards.values import Floats
from plumbline.pipelines.cells.runs import find_run
from plumbline.pipelines.cells.store import Store

LEAST = 20
"""Prompts that a stored baseline of a test needs: of fewer no test tells much."""
COLUMNS = ["image_id", "prompt_id", "generator", "metric", "score"]


class Baseline(NamedTuple):
    """The images of a run that all of some metrics scored."""

    run_id: str
    images: pd.DataFrame
    """A column of scores by each metric, a row an image, by prompt, generator and id of the image."""

    def scales(self, unit: Unit) -> dict[str, Scale]:
        """Of the metrics, the units that a combination has them in; raises ConfigError where they do not differ."""
        prompts = self.images.index.get_level_values("prompt_id").factorize()[0].astype(np.int32)
        scores = {str(name): np.asarray(column, np.float64) for name, column in self.images.items()}
        return scales_of(scores, prompts, unit, f"baseline {self.run_id}")

    def with_reward(self, reward: Reward | None) -> "Baseline":
        """The same with a column of the combined reward beside its parts, where several metrics make one."""
        if reward is None:
            return self
        scores = {name: self.images[name].to_numpy(np.float64) for name in reward.parts}
        return self._replace(images=self.images.assign(**{REWARD: reward.of_all(scores)}).dropna())

    def prompt_means(self, columns: Sequence[str]) -> Floats:
        """The mean scores of the images of a prompt, a row for each prompt, a column for each that is named.

        Raises ConfigError where the images are of several generators, or of fewer than LEAST prompts.
        """
        generators = self.images.index.unique("generator")
        if len(generators) > 1:
            raise ConfigError(
                f"baseline_generator: expected one of run {self.run_id}, of {', '.join(generators)}, got none"
            )
        means = self.images[list(columns)].groupby("prompt_id").mean()
        if len(means) < LEAST:
            raise ConfigError(
                f"baseline: run {self.run_id} has scores on {len(means)} prompts, expected at least {LEAST}"
            )
        return np.asarray(means.to_numpy(), np.float64)


def read_baseline(store: Store, run: str, generator: str | None, recipes: Mapping[str, str]) -> Baseline:
    """The scores of one generator's images, or of all where it is None, by each metric of `recipes`.

    `recipes` are the digests of the scores' recipes, by metric, or their first eight characters. Images that one of the
    metrics could not score are left out. Raises ConfigError where the run lacks a metric or has it otherwise, or the
    generator is none of its own.
    """
    run_id = find_run(store, run, key="baseline")
    scores = pd.concat(_scores(store, run_id, recipes), ignore_index=True)
    _require_alike(store, run_id, set(scores.metric), recipes)
    if generator is not None:
        of_run = [str(name) for name in scores.generator.unique()]
        if generator not in of_run:
            raise ConfigError(
                f"baseline_generator: expected one of run {run_id}, of {', '.join(of_run)}, got {generator}"
            )
        scores = scores[scores.generator == generator]
    known = scores[scores.score.notna()].set_index(["prompt_id", "generator", "image_id", "metric"])
    return Baseline(run_id, known.score.unstack().reindex(columns=list(recipes)).dropna())


def _scores(store: Store, run_id: str, metrics: Mapping[str, str]) -> Iterator[pd.DataFrame]:
    """Of these metrics, part by part."""
    for path in store.files(f"runs/{run_id}/scores.parquet"):
        table = store.read_table(path, COLUMNS)
        yield table.filter(pc.is_in(table.column("metric"), pa.array(metrics, pa.string()))).to_pandas()


def _require_alike(store: Store, run_id: str, of_run: set[str], recipes: Mapping[str, str]) -> None:
    """Raises ConfigError for a metric that the run lacks, or whose numbers are others than those beside it."""
    absent = [name for name in recipes if name not in of_run]
    if absent:
        raise ConfigError(f"baseline: run {run_id} has no scores of {names(absent)}; score them there: plumbline sweep")
    paths = store.read_table(f"runs/{run_id}/cells.parquet", ["path"]).column("path").to_pylist()
    folders = {path.rsplit("/", 2)[0] for path in paths}
    altered = [name for name, digest in recipes.items() if f"scores/{digest[:8]}" not in folders]
    if altered:
        raise ConfigError(
            f"baseline: {names(altered)} is not the same metric in run {run_id} and here, so its scores are not "
            "compared; give both the same options and models"
        )

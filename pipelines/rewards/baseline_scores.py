"""Scores of a baseline run, used to scale combined rewards and as a reference for a service's reward and sentinel."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import format_names
from plumbline.operators.rewards.combination import REWARD_NAME, Reward, Unit, UnitScale, compute_scales
from plumbline.operators.rewards.values import Floats
from plumbline.pipelines.store.runs import find_run
from plumbline.pipelines.store.store import Store

MIN_PROMPTS = 20
"""Minimum number of prompts for a test against a baseline."""
READ_COLUMNS = ["image_id", "prompt_id", "generator", "metric", "score"]


class BaselineScores(NamedTuple):
    """Scores of a run's images, limited to images that every metric has scored."""

    run_id: str
    images: pd.DataFrame
    """A row per image, indexed by prompt_id, generator and image_id, with a column of scores for each metric."""

    def compute_scales(self, unit: Unit) -> dict[str, UnitScale]:
        """Return the scale that converts scores to a unit, by metric; empty for the unit `score`.

        Raises ConfigError if all scores of a metric are equal.
        """
        prompts = self.images.index.get_level_values("prompt_id").factorize()[0].astype(np.int32)
        scores = {str(name): np.asarray(column, np.float64) for name, column in self.images.items()}
        return compute_scales(scores, prompts, unit, f"baseline {self.run_id}")

    def add_reward(self, reward: Reward | None) -> "BaselineScores":
        """Return the scores with an additional column for the combined reward, or unchanged if `reward` is None."""
        if reward is None:
            return self
        scores = {name: self.images[name].to_numpy(np.float64) for name in reward.parts}
        return self._replace(images=self.images.assign(**{REWARD_NAME: reward.compute_all(scores)}).dropna())

    def compute_prompt_means(self, columns: Sequence[str]) -> Floats:
        """Return the mean score of each prompt in each of the `columns`, as an array of shape (prompts, columns).

        Raises ConfigError if there are several generators or fewer than MIN_PROMPTS prompts.
        """
        generators = self.images.index.unique("generator")
        if len(generators) > 1:
            raise ConfigError(
                f"baseline_generator: expected a generator of run {self.run_id} ({', '.join(generators)}), got none"
            )
        means = self.images[list(columns)].groupby("prompt_id").mean()
        if len(means) < MIN_PROMPTS:
            raise ConfigError(
                f"baseline: run {self.run_id} has scores on {len(means)} prompts, expected at least {MIN_PROMPTS}"
            )
        return np.asarray(means.to_numpy(), np.float64)


def read_baseline(store: Store, run: str, generator: str | None, recipes: Mapping[str, str]) -> BaselineScores:
    """Read the scores of images from one generator, or from all generators if `generator` is None.

    `recipes` contains the digest of each metric's recipe, or its first eight characters. Images that lack a score from
    any metric are left out. Raises ConfigError if the run lacks the generator or a metric, or has a different recipe
    for a metric.
    """
    run_id = find_run(store, run, key="baseline")
    parts = []
    for path in store.files(f"runs/{run_id}/scores.parquet"):
        table = store.read_table(path, READ_COLUMNS)
        parts.append(table.filter(pc.is_in(table.column("metric"), pa.array(recipes, pa.string()))).to_pandas())
    scores = pd.concat(parts, ignore_index=True)
    _require_recipes(store, run_id, set(scores.metric), recipes)
    if generator is not None:
        generators = [str(name) for name in scores.generator.unique()]
        if generator not in generators:
            raise ConfigError(
                f"baseline_generator: expected a generator of run {run_id} ({', '.join(generators)}), got {generator}"
            )
        scores = scores[scores.generator == generator]
    known = scores[scores.score.notna()].set_index(["prompt_id", "generator", "image_id", "metric"])
    return BaselineScores(run_id, known.score.unstack().reindex(columns=list(recipes)).dropna())


def _require_recipes(store: Store, run_id: str, metrics: set[str], recipes: Mapping[str, str]) -> None:
    absent = [name for name in recipes if name not in metrics]
    if absent:
        raise ConfigError(
            f"baseline: run {run_id} has no scores for {format_names(absent)}; add these metrics to it with "
            f"plumbline sweep"
        )
    paths = store.read_table(f"runs/{run_id}/cells.parquet", ["path"]).column("path").to_pylist()
    folders = {path.rsplit("/", 2)[0] for path in paths}
    changed = [name for name, digest in recipes.items() if f"scores/{digest[:8]}" not in folders]
    if changed:
        raise ConfigError(
            f"baseline: {format_names(changed)} is not the same metric in run {run_id} and here, so its scores are not "
            "compared; use the same options and models for both"
        )

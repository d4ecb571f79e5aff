"""What a run's images scored, prompt by prompt, as the baseline of a service's sentinel."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.errors import ConfigError
from plumbline.operators.words import names
from plumbline.pipelines.cells.runs import find_run
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.serving.sentinel import LEAST, Floats

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

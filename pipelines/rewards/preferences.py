"""Determines which of two images a run's metric prefers."""

from collections.abc import Callable

import numpy as np

from plumbline.operators.metrics.judges.pairwise import PairwiseConfig
from plumbline.pipelines.rewards.scored_images import ScoredRun
from plumbline.pipelines.store.store import Store

Preference = Callable[[int, int], bool]
"""Function of two images, given as indices in the run; True if the metric prefers the first."""
COMPARISON_COLUMNS = ("metric", "first_generator", "first_image_id", "second_generator", "second_image_id", "p_first")


def open_preference(run: ScoredRun, store: Store, metric: str) -> Preference:
    """Return a metric's preference, based on its comparisons if it compares images, otherwise on its scores."""
    if isinstance(run.metrics[metric], PairwiseConfig):
        return _read_comparisons(run, store, metric)
    scores = run.get_oriented_scores(metric)
    return lambda first, second: bool(scores[first] > scores[second])


def _read_comparisons(run: ScoredRun, store: Store, metric: str) -> Preference:
    """Return a judge's preference between two images, averaged over both orders; none if either order failed."""
    index_of = {(run.get_generator(image), run.get_image_id(image)): image for image in range(len(run.prompts))}
    p_of: dict[tuple[int, int], float] = {}
    for file in store.files(f"runs/{run.run_id}/comparisons.parquet"):
        for row in store.read_table(file, list(COMPARISON_COLUMNS)).to_pylist():
            if row["metric"] == metric and row["p_first"] is not None:
                first = index_of.get((row["first_generator"], row["first_image_id"]), -1)
                second = index_of.get((row["second_generator"], row["second_image_id"]), -1)
                p_of[first, second] = row["p_first"]

    def prefers(first: int, second: int) -> bool:
        # p is the probability that the image shown first is better; nan compares as False
        return p_of.get((first, second), np.nan) > p_of.get((second, first), np.nan)

    return prefers

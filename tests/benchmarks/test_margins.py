"""A margin is useful: beyond it, the image with the better score is truly better more often than within it."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pandas as pd

from plumbline.operators.rewards.selection import SelectionConfig
from plumbline.operators.rewards.values import MAX_TIE_FRACTION, measure_noise
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.rewards.scored_images import ScoredRun, gather_scores
from plumbline.pipelines.store.store import Store
from tests.bench_of import SHAPES_FOLDER
from tests.benchmarks.size import HERE_OPTIONS, choose_size, expect, run_module

METRICS = ("vqascore", "gecko", "clipscore")
TINY_OPTIONS = choose_size((), (*HERE_OPTIONS, "limit=3", f"metric=[{','.join(METRICS)}]"))
NAME_BY_TRUTH = {1: "better", 0: "as good", -1: "worse"}


def read_requirements_met() -> dict[str, float]:
    """Return the fraction of requirements that each image of the embedded benchmark truly meets, by image id."""
    expect = pd.read_parquet(SHAPES_FOLDER / "requirements.parquet").groupby("prompt_id").size()
    images = pd.read_parquet(SHAPES_FOLDER / "truth.parquet")
    return {row.image_id: 1 - len(row.broken) / expect[row.prompt_id] for row in images.itertuples()}


def list_pairs(run: ScoredRun, metric: str) -> Iterator[tuple[float, int]]:
    """Yield (margin in units of noise, truth) for each pair of images of the same prompt with different scores.

    The truth is 1 if the image with the better score is truly better, 0 if both are equally good, and -1 otherwise.
    """
    scores, truth = run.get_oriented_scores(metric), read_requirements_met()
    noise = measure_noise(scores, run.prompts)
    for images in pd.Series(range(len(scores))).groupby(run.prompts).indices.values():
        for first, second in combinations(images, 2):
            better, worse = (first, second) if scores[first] > scores[second] else (second, first)
            margin = (scores[better] - scores[worse]) / noise
            gap = truth[run.get_image_id(better)] - truth[run.get_image_id(worse)]
            if margin > MAX_TIE_FRACTION:
                yield float(margin), int(gap > 0) - int(gap < 0)


def count_pairs(store: Path) -> dict[str, dict[bool, Counter[int]]]:
    """Return the number of pairs of images by metric, by whether they are within the default margin, and by truth.

    The function `list_pairs` defines the truth: 1, 0 or -1. Pairs whose scores are tied are not counted.
    """
    run = gather_scores(Store(StorageConfig().locate(str(store))), "latest", METRICS)
    counts = {metric: {True: Counter[int](), False: Counter[int]()} for metric in METRICS}
    for metric in METRICS:
        for margin, verdict in list_pairs(run, metric):
            counts[metric][margin < SelectionConfig().margin][verdict] += 1
    return counts


def test_pairs_within_the_default_margin_are_mostly_equally_good(tmp_path: Path) -> None:
    run_module("jobs.sweep", "sweep=shapes", f"store={tmp_path}/store", *TINY_OPTIONS)
    for metric, sides in count_pairs(tmp_path / "store").items():
        for near, counts in sides.items():
            total = max(counts.total(), 1)
            parts = ", ".join(f"{counts[verdict] / total:.0%} {name}" for verdict, name in NAME_BY_TRUTH.items())
            print(
                f"\n{metric}, margin {'below' if near else 'of at least'} 0.5 times the noise: {total:,} pairs, {parts}"
            )
        close, wide = sides[True], sides[False]
        expect(close[0] > close.total() / 2 and wide[1] > wide.total() / 2)

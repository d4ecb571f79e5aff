"""Percentile ranks of scores among all images in a store.

A run stores a sketch of the scores for each metric and generator: evenly spaced quantiles. The sketches of several runs
are merged with weights. A percentile rank computed from a sketch is accurate to a quarter of a percent.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.sentences import format_number
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.statistics.percentiles import compute_percentile_rank

Floats = NDArray[np.float64]

MAX_KEPT_VALUES = 200
"""Maximum number of values in a sketch. A sketch of fewer scores contains all of them."""
MIN_IMAGES = 20
"""Minimum number of images for a percentile rank."""


class Sketch(NamedTuple):
    """Summary of the scores of `n` images as at most MAX_KEPT_VALUES values of equal weight."""

    n: int
    values: Floats

    @property
    def weight(self) -> float:
        """Number of images that each value represents."""
        return self.n / max(len(self.values), 1)


EMPTY_SKETCH = Sketch(0, np.zeros(0))
SKETCH_QUANTILES = (np.arange(MAX_KEPT_VALUES) + 0.5) / MAX_KEPT_VALUES


def combine_sketches(sketches: Sequence[Sketch]) -> Sketch:
    """Return one sketch of all scores that the given sketches (at least one) summarise."""
    n = sum(part.n for part in sketches)
    values = np.concatenate([part.values for part in sketches])
    if n <= MAX_KEPT_VALUES:
        return Sketch(n, np.sort(values))
    weights = np.repeat([part.weight for part in sketches], [len(part.values) for part in sketches])
    return Sketch(n, np.quantile(values, SKETCH_QUANTILES, weights=weights, method="inverted_cdf"))


def make_sketch(scores: pa.ChunkedArray) -> Sketch:
    """Return a sketch of the scores; nulls are ignored."""
    values = scores.drop_null().to_numpy().astype(np.float64)
    return combine_sketches([Sketch(len(values), values)])


class SketchKey(NamedTuple):
    """The metric and the generator whose scores a sketch summarises."""

    metric: str
    generator: str


def merge_sketches(parts: Iterable[tuple[SketchKey, Sketch]]) -> pa.Table:
    """Merge the sketches of a run's parts by metric and generator into a table (schema USUAL_SCORES)."""
    by_key: dict[SketchKey, list[Sketch]] = {}
    for key, part in parts:
        by_key.setdefault(key, []).append(part)
    merged = {key: combine_sketches(sketches) for key, sketches in by_key.items()}
    records = [
        {**key._asdict(), "n": whole.n, "values": whole.values.tolist()} for key, whole in merged.items() if whole.n
    ]
    return rows.table(records, schemas.USUAL_SCORES)


def select_largest_sketches(tables: Iterable[pa.Table]) -> dict[SketchKey, Sketch]:
    """Return the largest sketch of each metric and generator; the first one if several are equally large.

    A generator that was scored in several runs therefore counts only once. Empty sketches are left out.
    """
    largest: dict[SketchKey, Sketch] = {}
    for row in (row for table in tables for row in table.to_pylist()):
        key = SketchKey(row["metric"], row["generator"])
        if row["n"] > largest.get(key, EMPTY_SKETCH).n:
            largest[key] = Sketch(row["n"], np.asarray(row["values"], np.float64))
    return largest


class ScoreLocation(NamedTuple):
    """Percentile rank of a score among the scores of all images, and the number of these images."""

    rank: float
    """Percentile rank of the score; a better score has a higher rank."""
    images: int


class UsualScores:
    """Sketches of all scores that a store has for a benchmark, by metric, for comparison with a new score."""

    def __init__(
        self, benchmark: str, sketches: Mapping[SketchKey, Sketch], lower_is_better: frozenset[str], left_out: int = 0
    ) -> None:
        """Group the sketches by metric; `left_out` is the number of runs whose sketches could not be read."""
        self.benchmark, self.left_out = benchmark, left_out
        self._lower_is_better = lower_is_better
        self._by_metric: dict[str, list[Sketch]] = {}
        for key, part in sketches.items():
            self._by_metric.setdefault(key.metric, []).append(part)

    def locate(self, metric: str, score: float) -> ScoreLocation | None:
        """Return a score's percentile rank and the number of images; None if fewer than MIN_IMAGES have a score."""
        sketches = self._by_metric.get(metric, ())
        images = sum(part.n for part in sketches)
        if images < MIN_IMAGES:
            return None
        towards = get_direction(metric, self._lower_is_better)
        worse = sum(part.weight * int((towards * part.values < towards * score).sum()) for part in sketches)
        equal = sum(part.weight * int((part.values == score).sum()) for part in sketches)
        return ScoreLocation(compute_percentile_rank(worse, equal, images), images)

    def describe(self, metric: str, score: float) -> str:
        """Return text with a score's percentile rank among all images; empty for fewer than MIN_IMAGES images."""
        location = self.locate(metric, score)
        if location is None:
            return ""
        among = f"{location.images:,} images scored so far on {self.benchmark}"
        return f"{format_number(score)} has percentile rank {location.rank:.0%} among the {among}"


NO_USUAL_SCORES = UsualScores("", {}, frozenset())

"""What is a usual score: where a score stands among those of all images that a store has scored so far.

A run keeps of each metric and generator some scores that stand for all, evenly by rank; those of several runs are put
together, each as often as it stands for images. A place is right to a quarter of a percent of the images.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.sentences import number
from plumbline.operators.metrics.metric import direction
from plumbline.operators.statistics.percentiles import percentile_rank

Floats = NDArray[np.float64]

MOST_KEPT = 200
"""Scores of one generator; of fewer images all are kept."""
FEWEST_IMAGES = 20
"""Among fewer nothing is called usual."""


class Sketch(NamedTuple):
    """Scores of so many images, by some of them."""

    n: int
    values: Floats
    """Each stands for as many images as the others."""

    @property
    def weight(self) -> float:
        """The images that each value stands for."""
        return self.n / max(len(self.values), 1)


EMPTY = Sketch(0, np.zeros(0))
EVENLY = (np.arange(MOST_KEPT) + 0.5) / MOST_KEPT


def merge(sketches: Sequence[Sketch]) -> Sketch:
    """All of them together, some at least."""
    n = sum(one.n for one in sketches)
    values = np.concatenate([one.values for one in sketches])
    if n <= MOST_KEPT:
        return Sketch(n, np.sort(values))
    weights = np.repeat([one.weight for one in sketches], [len(one.values) for one in sketches])
    return Sketch(n, np.quantile(values, EVENLY, weights=weights, method="inverted_cdf"))


def sketch(scores: pa.ChunkedArray) -> Sketch:
    """Of scores, of which nulls are left out."""
    values = scores.drop_null().to_numpy().astype(np.float64)
    return merge([Sketch(len(values), values)])


class OfGenerator(NamedTuple):
    """Whose scores a sketch is of."""

    metric: str
    generator: str


def usual_table(parts: Iterable[tuple[OfGenerator, Sketch]]) -> pa.Table:
    """Sketches of parts of a run's scores, put together by metric and generator (schema USUAL_SCORES)."""
    of_each: dict[OfGenerator, list[Sketch]] = {}
    for whose, part in parts:
        of_each.setdefault(whose, []).append(part)
    merged = {whose: merge(sketches) for whose, sketches in of_each.items()}
    records = [{**whose._asdict(), "n": one.n, "values": one.values.tolist()} for whose, one in merged.items() if one.n]
    return rows.table(records, schemas.USUAL_SCORES)


def largest_sketches(tables: Iterable[pa.Table]) -> dict[OfGenerator, Sketch]:
    """By metric and generator the sketch of the most images, of equal ones the first: a generator that several runs
    scored counts once.
    """
    largest: dict[OfGenerator, Sketch] = {}
    for row in (row for table in tables for row in table.to_pylist()):
        whose = OfGenerator(row["metric"], row["generator"])
        if row["n"] > largest.get(whose, EMPTY).n:
            largest[whose] = Sketch(row["n"], np.asarray(row["values"], np.float64))
    return largest


class Place(NamedTuple):
    """Where a score stands."""

    rank: float
    """Percentile rank."""
    images: int


class UsualScores:
    """Scores of all images of a benchmark, by metric."""

    def __init__(
        self, benchmark: str, sketches: Mapping[OfGenerator, Sketch], falling: frozenset[str], left_out: int = 0
    ) -> None:
        """By the metrics `falling` a lower score is better; `left_out` runs have no sketches."""
        self.benchmark, self.left_out = benchmark, left_out
        self._falling = falling
        self._of: dict[str, list[Sketch]] = {}
        for whose, one in sketches.items():
            self._of.setdefault(whose.metric, []).append(one)

    def place(self, metric: str, score: float) -> Place | None:
        """None where too few images have been scored."""
        sketches = self._of.get(metric, ())
        images = sum(one.n for one in sketches)
        if images < FEWEST_IMAGES:
            return None
        towards = direction(metric, self._falling)
        worse = sum(one.weight * int((towards * one.values < towards * score).sum()) for one in sketches)
        equal = sum(one.weight * int((one.values == score).sum()) for one in sketches)
        return Place(percentile_rank(worse, equal, images), images)

    def say(self, metric: str, score: float) -> str:
        """It in words; empty where too few images have been scored."""
        place = self.place(metric, score)
        if place is None:
            return ""
        among = f"{place.images:,} images scored so far on {self.benchmark}"
        return f"{number(score)} has percentile rank {place.rank:.0%} among the {among}"


NOTHING_USUAL = UsualScores("", {}, frozenset())

"""Estimates the differences between generators from the existing ratings, and selects the images to rate next."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from plumbline.operators.base.sentences import format_number, format_signed
from plumbline.operators.metaeval.judgement import compute_group_means
from plumbline.operators.statistics.prediction_powered import (
    MIN_LABELS,
    PoweredMeans,
    estimate_labels_needed,
    powered_mean,
)
from plumbline.operators.statistics.sequential import NO_PROMPT_INDEX, draw_balanced_order

Floats = NDArray[np.float64]

UNKNOWN_CELL = "–"


class PairLabels(NamedTuple):
    """Two generators and the ratings of their images."""

    a: str
    b: str
    people: Floats
    """People's rating of the image by `a` minus that of the image by `b`, per prompt; nan if either is unrated."""
    metric: Floats
    """The metric's score for the image by `a` minus that for the image by `b`, per prompt; positive if `a` is better.
    """
    estimate: PoweredMeans | None
    """The estimated difference; None if too few prompts are rated."""
    level: float
    """Confidence level of the difference's interval."""
    max_difference: float
    """The largest possible difference between two ratings."""

    @property
    def labels(self) -> Floats:
        """Differences between people's ratings, for prompts whose two images are both rated and scored."""
        return np.asarray(self.people[np.isfinite(self.people) & np.isfinite(self.metric)])

    @property
    def rated(self) -> int:
        """Number of prompts with a label."""
        return len(self.labels)

    @property
    def better(self) -> str | None:
        """The generator that people prefer; None if the interval contains 0, or if there is no estimate."""
        if self.estimate is None or not self.estimate.excludes(np.zeros(()), self.level, self.max_difference):
            return None
        return self.a if self.estimate.residuals.mean() > 0 else self.b

    def count_missing_prompts(self, chance: float) -> int | None:
        """Return how many more prompts must be rated to decide the pair.

        Returns None if rating all scored prompts would not be enough.
        """
        if self.estimate is None:
            return MIN_LABELS - self.rated
        wanted = estimate_labels_needed(self.estimate, self.level, chance, self.max_difference)
        return None if wanted is None else max(wanted - self.rated, 0)


def pivot_by_generator(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean score for each prompt (row) and generator (column); each row of `frame` is one image's score."""
    known = frame.dropna(subset=["prompt_id", "generator", "score"])
    return compute_group_means(known, ("prompt_id", "generator"), "score").unstack("generator")


def subtract_pairs(wide: pd.DataFrame) -> pd.DataFrame:
    """Return the difference between each pair of columns, first minus second (prompts x pairs).

    `wide` has the shape prompts x generators.
    """
    pairs = {(a, b): wide[a] - wide[b] for a, b in combinations(map(str, wide), 2)}
    return pd.DataFrame(pairs, index=wide.index, dtype=np.float64)


def estimate_pairs(
    people: pd.DataFrame, metric: pd.DataFrame, level: float, max_difference: float
) -> Iterator[PairLabels]:
    """Yield each pair with its estimate.

    Args:
        people: Differences between people's ratings of the two generators (prompts x pairs).
        metric: Differences between a metric's scores for the two generators; all zeros to ignore the metric.
        level: Confidence level of each pair's interval.
        max_difference: The largest possible difference between two ratings.
    """
    for a, b in metric:
        rated, scored = (of[a, b].to_numpy(np.float64) for of in (people, metric))
        labelled = np.isfinite(rated) & np.isfinite(scored)
        others = np.isfinite(scored) & ~labelled
        known = scored[labelled], scored[others]
        if others.sum() < 2:  # all are rated, so the metric adds nothing
            known = np.zeros(labelled.sum()), np.zeros(2)
        estimate = powered_mean(rated[labelled], *known) if labelled.sum() >= MIN_LABELS else None
        yield PairLabels(a, b, rated, scored, estimate, level, max_difference)


def order_prompts(prompts: Sequence[str], skills: Mapping[str, Sequence[str]], seed: int) -> list[int]:
    """Return the prompts' indices in random order, with each skill spread evenly over the order."""
    labels = ["\0".join(sorted(skills.get(prompt, ()))) for prompt in prompts]
    return [int(place) for place in draw_balanced_order(labels, seed).ravel() if place != NO_PROMPT_INDEX]


def select_images(
    pairs: Sequence[PairLabels], prompts: Sequence[str], order: Sequence[int], chance: float
) -> list[tuple[str, str]]:
    """Return the unrated images (prompt, generator) that undecided pairs still need, in the order of the prompts."""
    wanted: set[tuple[int, str]] = set()
    for pair in (pair for pair in pairs if pair.better is None):
        unrated = [place for place in order if np.isnan(pair.people[place]) and np.isfinite(pair.metric[place])]
        wanted |= {
            (place, name) for place in unrated[: pair.count_missing_prompts(chance)] for name in (pair.a, pair.b)
        }
    names = list(dict.fromkeys(name for pair in pairs for name in (pair.a, pair.b)))
    return [(prompts[place], name) for place in order for name in names if (place, name) in wanted]


def format_pair(pair: PairLabels, chance: float) -> tuple[str, ...]:
    """Return a row of the table: the results for a pair, and how many more prompts must be rated."""
    name, rated = f"{pair.a}, {pair.b}", str(pair.rated)
    wanted = pair.count_missing_prompts(chance)
    further = "more than available" if wanted is None else str(wanted)
    if pair.estimate is None:
        return name, rated, UNKNOWN_CELL, UNKNOWN_CELL, UNKNOWN_CELL, _explain_undecided(pair), further
    low, high = pair.estimate.interval(pair.level, pair.max_difference)
    interval = f"{format_signed(float(low))} to {format_signed(float(high))}"
    estimates = (format_number(float(pair.estimate.worth), 2), format_signed(float(pair.estimate.estimate)), interval)
    return name, rated, *estimates, pair.better or "undecided", "0" if pair.better else further


def _explain_undecided(pair: PairLabels) -> str:
    return f"fewer than {MIN_LABELS} prompts rated" if pair.rated else "no prompt rated for both"

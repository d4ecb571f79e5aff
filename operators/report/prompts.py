"""The prompts that are shown side by side: those on which generators' images differ most."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.run_scores import NONE, Hashes, RunScores, ScoreColumns
from plumbline.operators.statistics.poisson import uniform

MOST_PROMPTS = 16
MOST_SIDES = 12
"""Generators side by side; of more, those whose images rank best."""
MOST_COMPARED = 1 << 16
"""So many images have their ranks by all metrics in memory at once; of more, prompts are drawn by their hashes."""

Floats = NDArray[np.float64]


class Side(NamedTuple):
    """An image beside others of its prompt."""

    image: int
    """Its hash."""
    row: int
    """One of its rows in the run's scores."""


class Differing:
    """The ranks by every metric of each generator's first image of a prompt."""

    def __init__(self, scores: RunScores) -> None:
        generators = max(len(scores.generators), 1)
        share = MOST_COMPARED / max(len(scores.prompts) * generators, 1)
        self._prompts: Hashes = scores.prompts[uniform(scores.prompts) < share]
        self._images = np.full((len(self._prompts), generators), NONE)
        self._rows = np.zeros(self._images.shape, np.int64)
        self._ranks: list[Floats] = []

    def add(self, columns: ScoreColumns, ranks: Floats) -> None:
        """A metric's images, each once, with the share of images that score worse."""
        if not len(self._prompts):
            return
        place = np.minimum(np.searchsorted(self._prompts, columns.prompt), len(self._prompts) - 1)
        known = np.flatnonzero(self._prompts[place] == columns.prompt)
        cells = np.ravel_multi_index((place[known], columns.generator[known]), self._images.shape)
        first, at = np.unique(cells, return_index=True)
        new = self._images.flat[first] == NONE
        self._images.flat[first[new]] = columns.image[known[at[new]]]
        self._rows.flat[first[new]] = columns.row[known[at[new]]]
        shown = self._images.flat[cells] == columns.image[known]
        of_metric = np.full(self._images.shape, np.nan)
        of_metric.flat[cells[shown]] = ranks[known[shown]]
        self._ranks.append(of_metric)

    def chosen(self, most: int) -> list[list[Side]]:
        """Images of the prompts that differ most, no more than `most` in all; of each prompt in the generators' order.

        Prompts of which more generators have an image come first, then those of which the standard deviation of the
        generators' ranks is the largest, its mean over the metrics.
        """
        if not self._ranks or self._images.shape[1] < 2 or not len(self._prompts):
            return []
        ranks = np.stack(self._ranks)
        sides = np.sort(np.argsort(-_mean(ranks, (0, 1)), kind="stable")[: min(MOST_SIDES, most)])
        images, rows, ranks = self._images[:, sides], self._rows[:, sides], ranks[:, :, sides]
        there = (images != NONE).sum(axis=1)
        deviations = np.sqrt(_mean((ranks - _mean(ranks, 2)[:, :, None]) ** 2, 2))
        order = np.lexsort((-_mean(deviations, 0), -there))
        wanted = min(MOST_PROMPTS, most // len(sides)) if len(sides) > 1 else 0
        return [_sides(images[place], rows[place]) for place in order[:wanted] if there[place] > 1]


def _mean(values: Floats, axes: int | tuple[int, ...]) -> Floats:
    """The mean of those that are numbers; 0 of none."""
    numbers = np.isfinite(values)
    total = np.where(numbers, values, 0.0).sum(axis=axes)
    return np.asarray(total / np.maximum(numbers.sum(axis=axes), 1))


def _sides(images: Hashes, rows: NDArray[np.int64]) -> list[Side]:
    return [Side(image, row) for image, row in zip(images.tolist(), rows.tolist(), strict=True) if image != int(NONE)]

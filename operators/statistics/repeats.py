"""How much of the noise of a mean is the seed: the variance between images of a prompt, and that between prompts."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Repeats(NamedTuple):
    """The two variances of scores of several images a prompt."""

    images: float
    """Of a prompt, on average."""
    between: float
    """Variance between prompts, of what their seeds leave."""
    within: float
    """Variance between the images of a prompt."""

    @property
    def share(self) -> float:
        """Of the variance of a mean over prompts, how much is the seed; nan where nothing varies."""
        seeds = self.within / self.images
        return seeds / (self.between + seeds) if self.between + seeds > 0 else math.nan

    @property
    def with_twice_the_images(self) -> float:
        """How wide the interval of a mean would be with twice the images of each prompt, as a share of what it is."""
        return math.sqrt(1 - self.share / 2)


WITH_TWICE_THE_PROMPTS = math.sqrt(1 / 2)
"""How wide the interval of a mean would be with twice the prompts."""


def repeats_of(prompts: NDArray[np.intp], scores: NDArray[np.float64]) -> Repeats | None:
    """The variances of scores, each of one of the prompts by its number; None where no prompt has two, or all are one.

    One-way random effects of groups of unequal size, by the method of moments (ANOVA estimators; Searle, Casella and
    McCulloch 1992, Variance Components, section 3.6); a variance between prompts below 0 is taken as 0.
    """
    counts = np.bincount(prompts)
    groups, total = int((counts > 0).sum()), len(scores)
    if not 1 < groups < total:
        return None
    centred = scores - scores.mean()
    sums = np.bincount(prompts, weights=centred)
    of_means = float((sums[counts > 0] ** 2 / counts[counts > 0]).sum())
    within = max(float((centred**2).sum()) - of_means, 0.0) / (total - groups)
    size = (total - float((counts.astype(np.float64) ** 2).sum()) / total) / (groups - 1)
    return Repeats(total / groups, max(of_means / (groups - 1) - within, 0.0) / size, within)


def pooled(each: Sequence[Repeats]) -> Repeats:
    """The mean of several generators' variances."""
    images, between, within = np.mean(np.array(each), axis=0).tolist()
    return Repeats(images, between, within)

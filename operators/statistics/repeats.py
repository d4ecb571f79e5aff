"""Variance of scores between the images of a prompt (seed noise) and between prompts."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

WIDTH_WITH_TWICE_THE_PROMPTS = math.sqrt(1 / 2)  # relative width of a mean's interval with twice the prompts


class RepeatVariances(NamedTuple):
    """Variances of scores between prompts and between images of a prompt, for prompts with several images."""

    images: float  # mean number of images per prompt
    between: float  # variance between prompts, without the seed's noise
    within: float  # variance between images of a prompt

    @property
    def share(self) -> float:
        """Fraction of the variance of a mean over prompts that is due to the seed; nan if nothing varies."""
        seeds = self.within / self.images
        return seeds / (self.between + seeds) if self.between + seeds > 0 else math.nan

    @property
    def width_with_twice_the_images(self) -> float:
        """Width of a mean's interval with twice the images per prompt, relative to the present width."""
        return math.sqrt(1 - self.share / 2)


def estimate_repeat_variances(prompts: NDArray[np.intp], scores: NDArray[np.float64]) -> RepeatVariances | None:
    """Return the variances of scores (n,), given the index of each score's prompt (n,).

    Return None if there is only one prompt, or if no prompt has two images. The model is a one-way random-effects model
    with unequal group sizes, estimated by the method of moments (Searle, Casella and McCulloch 1992, Variance
    Components, section 3.6); a negative variance between prompts becomes 0.
    """
    counts = np.bincount(prompts)
    groups, total = int((counts > 0).sum()), len(scores)
    if not 1 < groups < total:
        return None
    centred = scores - scores.mean()
    sums = np.bincount(prompts, weights=centred)
    squares_of_means = float((sums[counts > 0] ** 2 / counts[counts > 0]).sum())
    within = max(float((centred**2).sum()) - squares_of_means, 0.0) / (total - groups)
    size = (total - float((counts.astype(np.float64) ** 2).sum()) / total) / (groups - 1)
    return RepeatVariances(total / groups, max(squares_of_means / (groups - 1) - within, 0.0) / size, within)


def pool_repeats(each: Sequence[RepeatVariances]) -> RepeatVariances:
    """Return the means of the fields over several generators."""
    images, between, within = np.mean(np.array(each), axis=0).tolist()
    return RepeatVariances(images, between, within)

"""Noise, z-scores and ranks of rewards within a prompt."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
"""Index of each image's prompt, counted from 0 (n,)."""
StdKind = Literal["population", "sample"]

MAX_TIE_FRACTION = 1e-9
"""Fraction of the noise that a difference must exceed; smaller differences are rounding errors and count as ties."""


def measure_noise(values: Floats, prompts: Codes) -> float:
    """Return the pooled standard deviation of values (n,) within a prompt; 0 if no prompt has two values.

    The result is sqrt(sum of squared deviations from the prompt's mean / (number of values - number of prompts)), over
    the images of all generators.
    """
    known = ~np.isnan(values)
    deviations = values[known] - compute_prompt_means(values, prompts)[known]
    freedom = int(known.sum()) - len(np.unique(prompts[known]))
    if freedom <= 0:
        return 0.0
    noise = math.sqrt(math.fsum(deviations**2) / freedom)
    largest = float(np.max(np.abs(values[known])))
    return noise if noise > MAX_TIE_FRACTION * largest else 0.0  # rounding errors of equal values


def compute_prompt_means(values: Floats, prompts: Codes) -> Floats:
    """Return, for each image, the mean of all values of its prompt (n,); nan if the prompt has no values."""
    with np.errstate(invalid="ignore"):
        means: Floats = (_sum_by_prompt(values, prompts) / _count_by_prompt(values, prompts))[prompts]
    return means


def compute_z_scores(values: Floats, prompts: Codes, noise: float, std: StdKind, epsilon: float) -> Floats:
    """Return (value - mean) / (std + epsilon x noise), using the mean and std of each prompt.

    nan stays nan, and equal values become 0. With `std=population` the squared deviations are divided by n, as is
    NumPy's default; with `sample` by n - 1, as in torch.
    """
    if noise == 0:
        return np.where(np.isnan(values), np.nan, 0.0)
    deviations = values - compute_prompt_means(values, prompts)
    degrees = _count_by_prompt(values, prompts) - (1 if std == "sample" else 0)
    spread = np.sqrt(_sum_by_prompt(deviations**2, prompts) / np.maximum(degrees, 1))[prompts]
    equal = spread <= MAX_TIE_FRACTION * noise
    scores = np.where(equal, 0.0, deviations / np.where(equal, 1.0, spread + epsilon * noise))
    return np.where(np.isnan(values), np.nan, scores)


def compute_rank_advantages(values: Floats, prompts: Codes, noise: float) -> Floats:
    """Return each image's rank within its prompt, from -1 (worst) to 1 (best).

    Tied images get the mean of their ranks. The only image of a prompt gets 0.
    """
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((values[known], prompts[known]))]
    advantages = np.where(np.isnan(values), np.nan, 0.0)
    if noise == 0:
        return advantages
    starts = np.flatnonzero(np.diff(prompts[order], prepend=-1))
    for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
        images = order[first:last]
        ascending, n = values[images], last - first
        # equal values are one run
        runs = np.cumsum(np.diff(ascending, prepend=ascending[0]) > MAX_TIE_FRACTION * noise)
        ranks = (np.bincount(runs, np.arange(n)) / np.bincount(runs))[runs]
        advantages[images] = (2 * ranks - (n - 1)) / max(n - 1, 1)
    return advantages


def _sum_by_prompt(values: Floats, prompts: Codes) -> Floats:
    return np.asarray(np.bincount(prompts, np.nan_to_num(values)), np.float64)


def _count_by_prompt(values: Floats, prompts: Codes) -> NDArray[np.int64]:
    known = (~np.isnan(values)).astype(np.float64)
    return np.bincount(prompts, known).astype(np.int64)

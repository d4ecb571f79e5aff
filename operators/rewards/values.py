"""One reward an image: metrics oriented, combined, and put beside the other images of the same prompt."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
"""The prompt of every image, as a number from 0."""
Combine = Literal["normalise_then_sum", "sum_then_normalise"]
Std = Literal["population", "sample"]

TIE = 1e-9
"""Differences below this share of the noise are rounding, and so ties."""


def combine_metrics(
    scores: Mapping[str, Floats], weights: Mapping[str, float], prompts: Codes, how: Combine, std: Std, epsilon: float
) -> Floats:
    """The reward of every image, higher being better; nan where one of the metrics is.

    Of one metric its own scores. `normalise_then_sum`: every metric's z-scores within the prompt, weighted and summed;
    `sum_then_normalise`: every metric in units of its noise over the run, weighted and summed, so that only the
    z-scores of the sum are taken within the prompt. Neither changes where a metric's scale or offset does.
    """
    if len(scores) == 1:
        return next(iter(scores.values()))
    whole = ~np.isnan(np.stack(list(scores.values()))).any(axis=0)
    total = np.where(whole, 0.0, np.nan)
    for name, values in scores.items():
        known = np.where(whole, values, np.nan)
        noise = within_prompt_noise(known, prompts)
        if how == "normalise_then_sum":
            total += weights[name] * z_scores(known, prompts, noise, std, epsilon)
        elif noise > 0:
            total += weights[name] * (known - np.nanmean(known)) / noise
    return total


def within_prompt_noise(values: Floats, prompts: Codes) -> float:
    """The pooled standard deviation of the values within a prompt; 0 where no prompt has two.

    sqrt(sum of squared deviations from the prompt's mean / (values - prompts)): how far images of one prompt usually
    lie from their mean, over all generators.
    """
    known = ~np.isnan(values)
    deviations = values[known] - prompt_means(values, prompts)[known]
    freedom = int(known.sum()) - len(np.unique(prompts[known]))
    if freedom <= 0:
        return 0.0
    noise = float(np.sqrt(np.sum(deviations**2) / freedom))
    largest = float(np.max(np.abs(values[known])))
    return noise if noise > TIE * largest else 0.0  # rounding of values that are all alike


def prompt_means(values: Floats, prompts: Codes) -> Floats:
    """For every image the mean of its prompt's values; nan where it has none."""
    with np.errstate(invalid="ignore"):
        means: Floats = (_sums(values, prompts) / _counts(values, prompts))[prompts]
    return means


def z_scores(values: Floats, prompts: Codes, noise: float, std: Std, epsilon: float) -> Floats:
    """(value - mean) / (std + epsilon x noise), both of the prompt; nan stays, and images that are all alike get 0.

    `std`: `population` divides the squares by n (NumPy's), `sample` by n - 1 (torch's). `epsilon` is in units of the
    metric's noise, so that no scale of it matters.
    """
    if noise == 0:
        return np.where(np.isnan(values), np.nan, 0.0)
    deviations = values - prompt_means(values, prompts)
    degrees = _counts(values, prompts) - (1 if std == "sample" else 0)
    spread = np.sqrt(_sums(deviations**2, prompts) / np.maximum(degrees, 1))[prompts]
    alike = spread <= TIE * noise
    return np.where(
        np.isnan(values), np.nan, np.where(alike, 0.0, deviations / np.where(alike, 1.0, spread + epsilon * noise))
    )


def rank_advantages(values: Floats, prompts: Codes, noise: float) -> Floats:
    """The image's rank in its prompt from -1 (worst) to 1 (best), ties sharing their mean; 0 for a prompt's only."""
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((values[known], prompts[known]))]
    advantages = np.where(np.isnan(values), np.nan, 0.0)
    if noise == 0:
        return advantages
    starts = np.flatnonzero(np.diff(prompts[order], prepend=-1))
    for first, last in zip(starts, [*starts[1:], len(order)], strict=True):
        advantages[order[first:last]] = _centred_ranks(values[order[first:last]], TIE * noise)
    return advantages


def _centred_ranks(ascending: Floats, tie: float) -> Floats:
    n = len(ascending)
    runs = np.cumsum(np.diff(ascending, prepend=ascending[0]) > tie)
    ranks = (np.bincount(runs, np.arange(n)) / np.bincount(runs))[runs]
    return np.asarray((2 * ranks - (n - 1)) / max(n - 1, 1), np.float64)


def _sums(values: Floats, prompts: Codes) -> Floats:
    return np.asarray(np.bincount(prompts, np.nan_to_num(values), _size(prompts)), np.float64)


def _counts(values: Floats, prompts: Codes) -> NDArray[np.int64]:
    return np.asarray(np.bincount(prompts[~np.isnan(values)], minlength=_size(prompts)), np.int64)


def _size(prompts: Codes) -> int:
    return int(prompts.max()) + 1 if len(prompts) else 0

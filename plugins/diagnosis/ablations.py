"""Measures how a metric's scores change if an input, such as the image, is withheld.

See "What makes a good metric?", section 4.
"""

import math
from typing import NamedTuple

import numpy as np

from plumbline.operators.results.run_scores import RunScores, ScoreColumns
from plumbline.operators.statistics.agreement import STATISTICS
from plumbline.operators.statistics.bootstrap import Prompts
from plumbline.operators.statistics.options import Sampling

INTERVAL_SAMPLING = Sampling(resamples=200)


class AblationEffect(NamedTuple):
    """Comparison of a metric's scores with and without an input, on all generators' images that have both scores."""

    metric: str
    denied: str
    """The missing input, or the model that answered instead of the metric's own model."""
    whole: float
    """Mean score with the input."""
    left: float
    """Mean score without the input."""
    difference: float
    """Mean score without the input minus mean score with the input: `left` - `whole`."""
    low: float
    """Lower end of the difference's 95% interval, bootstrapped over prompts."""
    high: float
    rho: float
    """Spearman's rank correlation of the scores with and without the input; nan if either set of scores is constant."""
    order: float
    """Kendall's tau-b of the generators' means with and without the input.

    Means are rounded to six decimals, so that rounding errors of the models do not affect the order.
    """
    n: int
    n_null: int
    """Number of images that have a score with the input but none without it."""


def measure_effect(scores: RunScores, metric: str, denied: str, variant: str) -> AblationEffect:
    """Compare a metric's scores with those of its variant without the input `denied`; `scores` must contain both."""
    whole, reduced = scores.select_rows(metric).select_scored(), scores.select_rows(variant).select_scored()
    _, rows_whole, rows_reduced = np.intersect1d(whole.image, reduced.image, return_indices=True)
    n, n_null = len(rows_whole), len(whole.row) - len(rows_whole)
    whole, reduced = whole.select(rows_whole), reduced.select(rows_reduced)
    difference = reduced.score - whole.score
    low, high = Prompts([str(prompt) for prompt in whole.prompt.tolist()], INTERVAL_SAMPLING).mean_interval(difference)
    means = [np.round(_compute_means(columns, len(scores.generators)), 6) for columns in (whole, reduced)]
    ranked = np.isfinite(means[0]) & np.isfinite(means[1])
    return AblationEffect(
        metric=metric,
        denied=denied,
        whole=float(whole.score.mean()) if n else math.nan,
        left=float(reduced.score.mean()) if n else math.nan,
        difference=float(difference.mean()) if n else math.nan,
        low=low,
        high=high,
        rho=STATISTICS["spearman"](whole.score, reduced.score),
        order=STATISTICS["kendall_b"](means[0][ranked], means[1][ranked]),
        n=n,
        n_null=n_null,
    )


def _compute_means(columns: ScoreColumns, generators: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    counts = np.bincount(columns.generator, minlength=generators)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(columns.generator, columns.score, generators) / counts)

"""What is left of a metric that is denied something ("What makes a good metric?", sec. 4)."""

import math
from typing import NamedTuple

import numpy as np

from plumbline.operators.results.run_scores import RunScores, ScoreColumns
from plumbline.operators.statistics.agreement import STATISTICS
from plumbline.operators.statistics.bootstrap import Prompts
from plumbline.operators.statistics.options import Sampling

SAMPLING = Sampling(resamples=200)


class AblationEffect(NamedTuple):
    """A metric with and without something, over the images that both scored, all generators together."""

    metric: str
    denied: str
    """What it went without, or who answered in place of its own model."""
    whole: float
    """The mean with it."""
    left: float
    """The mean without."""
    difference: float
    """Without less with."""
    low: float
    """Its 95% interval, bootstrapped over prompts."""
    high: float
    rho: float
    """Spearman's rank correlation of the scores with and without; nan where one side is the same everywhere."""
    order: float
    """Kendall's tau-b of the generators' means with and without, to six decimals: below is the models' rounding."""
    n: int
    n_null: int
    """Images that the metric scored and that have no score without."""


def effect(scores: RunScores, metric: str, denied: str, variant: str) -> AblationEffect:
    """Of a metric and of its variant that is denied something, which are both among the scores."""
    whole, left = scores.select_rows(metric).scored(), scores.select_rows(variant).scored()
    _, here, there = np.intersect1d(whole.image, left.image, return_indices=True)
    own, others = whole.where(here), left.where(there)
    difference = others.score - own.score
    low, high = Prompts([str(prompt) for prompt in own.prompt.tolist()], SAMPLING).mean_interval(difference)
    means = [np.round(_means(columns, len(scores.generators)), 6) for columns in (own, others)]
    ranked = np.isfinite(means[0]) & np.isfinite(means[1])
    return AblationEffect(
        metric=metric,
        denied=denied,
        whole=float(own.score.mean()) if len(here) else math.nan,
        left=float(others.score.mean()) if len(here) else math.nan,
        difference=float(difference.mean()) if len(here) else math.nan,
        low=low,
        high=high,
        rho=STATISTICS["spearman"](own.score, others.score),
        order=STATISTICS["kendall_b"](means[0][ranked], means[1][ranked]),
        n=len(here),
        n_null=len(whole.row) - len(here),
    )


def _means(columns: ScoreColumns, generators: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Each generator's mean score."""
    counts = np.bincount(columns.generator, minlength=generators)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(columns.generator, columns.score, generators) / counts)

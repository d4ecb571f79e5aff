"""How well scores agree with ratings over images: correlations and the area under the ROC curve, undefined as nan."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Statistic = Callable[[Floats, Floats], float]


def pearson(human: Floats, metric: Floats) -> float:
    """Pearson's r in [-1, 1]; nan where either side is constant."""
    return float(stats.pearsonr(human, metric).statistic) if _varies(human, metric) else math.nan


def spearman(human: Floats, metric: Floats) -> float:
    """Spearman's rho with average ranks for ties, in [-1, 1]; nan where either side is constant."""
    return float(stats.spearmanr(human, metric).statistic) if _varies(human, metric) else math.nan


def kendall_b(human: Floats, metric: Floats) -> float:
    """Kendall's tau-b, which allows for ties on both sides, in [-1, 1]; nan where either side is constant."""
    return float(stats.kendalltau(human, metric, variant="b").statistic) if _varies(human, metric) else math.nan


def kendall_c(human: Floats, metric: Floats) -> float:
    """Kendall's tau-c (Stuart), for sides with different numbers of values; nan where either side is constant."""
    return float(stats.kendalltau(human, metric, variant="c").statistic) if _varies(human, metric) else math.nan


def auroc(human: Floats, metric: Floats) -> float:
    """The chance that an image of the higher label gets the higher score, ties counting half; nan with one label.

    Raises ValueError where there are more than two labels.
    """
    labels = np.unique(human)
    if len(labels) > 2:
        raise ValueError(f"AUROC needs two labels, found {len(labels)}")
    if len(labels) < 2:
        return math.nan
    positive = human == labels[1]
    ranks = stats.rankdata(metric)
    positives = int(positive.sum())
    above = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(human) - positives)))


STATISTICS: Mapping[str, Statistic] = {
    "pearson": pearson,
    "spearman": spearman,
    "kendall_b": kendall_b,
    "kendall_c": kendall_c,
    "auroc": auroc,
}


def _varies(human: Floats, metric: Floats) -> bool:
    return len(human) > 1 and bool(np.ptp(human) > 0) and bool(np.ptp(metric) > 0)

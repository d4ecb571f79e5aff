"""How well scores agree with ratings over images: correlations and the area under the ROC curve, undefined as nan."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Statistic = Callable[[Floats, Floats], float]


def auroc(human: Floats, metric: Floats) -> float:
    """The chance that an image of the higher label gets the higher score, ties counting half; nan with one label.

    Raises ValueError where there are more than two labels.
    """
    labels = np.unique(human)
    if len(labels) > 2:
        raise ValueError(f"AUROC needs two labels, found {len(labels)}")
    if len(labels) < 2:
        return math.nan
    low, high = metric[human == labels[0]], metric[human == labels[1]]
    return float(stats.mannwhitneyu(high, low, method="asymptotic").statistic / (len(low) * len(high)))


def _correlation(correlate: Callable[..., Any], **options: str) -> Statistic:
    """A correlation of scipy's, nan where either side is constant."""

    def statistic(human: Floats, metric: Floats) -> float:
        varies = len(human) > 1 and bool(np.ptp(human) > 0) and bool(np.ptp(metric) > 0)
        return float(correlate(human, metric, **options).statistic) if varies else math.nan

    return statistic


STATISTICS: Mapping[str, Statistic] = {
    "pearson": _correlation(stats.pearsonr),
    "spearman": _correlation(stats.spearmanr),
    "kendall_b": _correlation(stats.kendalltau, variant="b"),
    "kendall_c": _correlation(stats.kendalltau, variant="c"),
    "auroc": auroc,
}
"""All in [-1, 1] but AUROC: Pearson's r, Spearman's rho with average ranks for ties, Kendall's tau-b, which allows for
ties on both sides, and tau-c (Stuart), for sides with different numbers of values."""

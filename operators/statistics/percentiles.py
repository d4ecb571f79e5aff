"""Percentile ranks, defined once so that reports, pages and the terminal show the same rank for the same score."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Counts = TypeVar("Counts", float, NDArray[np.float64])


def compute_percentile_rank(worse: Counts, equal: Counts, total: float) -> Counts:
    """Return percentile ranks in [0, 1]: the fraction of scores that are worse, counting each equal score as half.

    Args:
        worse: Number of scores that are worse.
        equal: Number of scores that are equal, including the ranked score itself if it is among them.
        total: Number of scores, above 0.
    """
    return (2 * worse + equal) / (2 * total)

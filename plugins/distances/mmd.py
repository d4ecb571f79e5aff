"""The maximum mean discrepancy between two sets of embeddings (CMMD), with its sampling error.

CMMD is 1000 times the squared discrepancy under the kernel exp(-|x - y|^2 / (2 * 10^2)) (Jayasumana et al. 2024,
Rethinking FID, sec. 4; google-research/google-research, cmmd/distance.py).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.plugins.distances.features import ClusterSums, FeatureBatch, PromptEffects

SIGMA, SCALE = 10.0, 1000.0
"""Bandwidth of the kernel, and factor of the discrepancy, as in the release."""
ROWS_AT_ONCE = 2048
"""Number of embeddings on each side of a block of the kernel matrix; a block has 16 MB."""


class MmdEstimate(NamedTuple):
    """The release's estimate of the discrepancy between two sets, an unbiased estimate, and the prompts' effects."""

    value: float
    """The release's estimate. It includes the pairs of an image with itself, so it is too large by about c / n."""
    unbiased: float
    """The estimate from pairs of different prompts alone; it may be negative."""
    effects: PromptEffects


class _Distances(NamedTuple):
    """Sums of 1 - k(x, y) over the second set, for each embedding of the first set."""

    all: NDArray[np.float64]
    other_prompts: NDArray[np.float64]
    """Sums without the embeddings of the same prompt."""
    n_other_prompts: NDArray[np.float64]
    """Number of embeddings of other prompts."""

    @property
    def mean(self) -> float:
        return float(self.all.mean())

    @property
    def unbiased_mean(self) -> float:
        return float(self.other_prompts.sum() / max(self.n_other_prompts.sum(), 1))


def estimate_mmd(first: FeatureBatch, second: FeatureBatch) -> MmdEstimate:
    """Return the discrepancy between two sets of unit-length embeddings, each with at least two prompts."""
    n, m = len(first.features), len(second.features)
    within, between = _sum_distances(first, first), _sum_distances(first, second)
    within_second, between_second = _sum_distances(second, second), _sum_distances(second, first)
    value = 2 * between.mean / m - within.mean / n - within_second.mean / m
    unbiased = 2 * between.unbiased_mean - within.unbiased_mean - within_second.unbiased_mean
    sums = ClusterSums()
    for batch, own, other in ((first, within, between), (second, within_second, between_second)):
        means = [each.other_prompts / np.maximum(each.n_other_prompts, 1) for each in (other, own)]
        effect = 2 * (means[0] - means[0].mean()) - 2 * (means[1] - means[1].mean())
        sums.add(batch.prompts, SCALE * effect / len(batch.features))
    return MmdEstimate(SCALE * value, SCALE * unbiased, sums.sum_by_prompt())


def _sum_distances(first: FeatureBatch, second: FeatureBatch) -> _Distances:
    total = np.zeros(len(first.features))
    same, n_same = np.zeros(len(total)), np.zeros(len(total))
    order = np.argsort(second.prompts, kind="stable")
    prompts, features = second.prompts[order], second.features[order]
    for rows in _list_slices(len(total)):
        for columns in _list_slices(len(features)):
            block = _compute_distance_block(first.features[rows], features[columns])
            total[rows] += block.sum(axis=1, dtype=np.float64)
            if _have_common_values(first.prompts[rows], prompts[columns]):
                shared = first.prompts[rows, None] == prompts[None, columns]
                same[rows] += (block * shared).sum(axis=1, dtype=np.float64)
                n_same[rows] += shared.sum(axis=1)
    return _Distances(total, total - same, len(features) - n_same)


def _have_common_values(values: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> bool:
    """Return True if the two arrays have a value in common; `ordered` is sorted."""
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return bool((ordered[places] == values).any())


def _compute_distance_block(rows: NDArray[np.float32], columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 1 - k(x, y) for x in `rows` and y in `columns`, because float32 cannot resolve values of k near 1."""
    lengths = [np.square(side).sum(axis=1) for side in (rows, columns)]
    squares = np.clip(lengths[0][:, None] + lengths[1][None] - 2 * (rows @ columns.T), 0, None)
    block: NDArray[np.float32] = -np.expm1(squares * np.float32(-0.5 / SIGMA**2))
    return block


def _list_slices(length: int) -> Sequence[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, length, ROWS_AT_ONCE)]

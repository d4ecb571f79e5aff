"""The Fréchet distance between two sets of features (FID), with its bias and its sampling error.

FID compares the means and covariances of the features (Heusel et al. 2017, GANs Trained by a Two Time-Scale Update
Rule, eq. 6). The covariance of a finite sample is wrong in every direction, which makes FID too large: by about c / n
for n images, where c depends on the generator (Chong and Forsyth 2020, Effectively Unbiased FID and Inception Score and
Where to Find Them, sec. 3). So the distance for infinitely many images is extrapolated from random halves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.plugins.distances.features import FeatureBatch, Floats

N_SPLITS = 4
"""Number of times that the images are split into random halves, to extrapolate FID."""
RELATIVE_TOLERANCE = 1e-10
"""Singular values up to this fraction of the largest one count as 0."""


@dataclass(slots=True)
class Moments:
    """The number, the sum and the second moments of features, which are all that FID needs."""

    width: int
    n: int = 0
    sums: NDArray[np.float64] | None = None
    products: NDArray[np.float64] | None = None

    def add(self, features: Floats) -> None:
        """Add features (n, width)."""
        if self.sums is None or self.products is None:
            self.sums, self.products = np.zeros(self.width), np.zeros((self.width, self.width))
        values = features.astype(np.float64)
        self.n += len(values)
        self.sums += values.sum(axis=0)
        self.products += values.T @ values

    def subtract(self, other: "Moments") -> "Moments":
        """Return the moments of the features that remain if the features in `other` are removed."""
        assert self.sums is not None and self.products is not None
        if other.sums is None or other.products is None:
            return self
        return Moments(self.width, self.n - other.n, self.sums - other.sums, self.products - other.products)

    @property
    def mean(self) -> NDArray[np.float64]:
        assert self.sums is not None
        return self.sums / self.n

    @property
    def covariance(self) -> NDArray[np.float64]:
        """The sample covariance, with n - 1 in the denominator, as in the release."""
        assert self.products is not None
        return (self.products - self.n * np.outer(self.mean, self.mean)) / (self.n - 1)


class SplitMoments(NamedTuple):
    """Moments of a set of images, and of a random half of it for each of N_SPLITS splits."""

    whole: Moments
    halves: Sequence[Moments]

    def list_splits(self) -> list[tuple[Moments, Moments]]:
        """Return both halves of each split."""
        return [(half, self.whole.subtract(half)) for half in self.halves]


def sum_moments(batches: Iterable[FeatureBatch], width: int) -> SplitMoments:
    """Return the moments of all features, and of one half for each split.

    The hash of a prompt decides which half its images belong to, so they are never separated.
    """
    whole, halves = Moments(width), [Moments(width) for _ in range(N_SPLITS)]
    for batch in batches:
        whole.add(batch.features)
        for split, half in enumerate(halves):
            chosen = (batch.prompts >> np.uint64(split)) & np.uint64(1) == 1
            half.add(batch.features[chosen])
    return SplitMoments(whole, halves)


def compute_frechet_distance(first: Moments, second: Moments) -> float:
    """Return the squared Fréchet distance between two normal distributions with these means and covariances."""
    factor = _factorise(second.covariance)
    squares = np.linalg.eigvalsh(factor.T @ first.covariance @ factor)
    cross = np.sqrt(np.clip(squares, 0, None)).sum()
    shift = first.mean - second.mean
    traces = np.trace(first.covariance) + np.trace(second.covariance)
    return max(float(shift @ shift + traces - 2 * cross), 0.0)


def extrapolate_distance(first: SplitMoments, second: SplitMoments, value: float) -> tuple[float, float]:
    """Return the distance for infinitely many images, and the standard error that the random halves add to it.

    `value` is the distance between all images. Its bias is proportional to 1 / n, so the distances between the halves
    have about twice that bias.
    """
    estimates = []
    for one, other in zip(first.list_splits(), second.list_splits(), strict=True):
        halves = [compute_frechet_distance(*both) for both in zip(one, other, strict=True)]
        growth = np.mean([_compare_sizes(moments, split) for moments, split in ((first, one), (second, other))])
        estimates.append(value - (np.mean(halves) - value) / (growth - 1))
    return float(np.mean(estimates)), float(np.std(estimates, ddof=1) / np.sqrt(len(estimates)))


def _compare_sizes(moments: SplitMoments, split: tuple[Moments, Moments]) -> float:
    """Return how many times larger the mean of 1 / n is in the halves than in the whole; 2 for equal halves."""
    return float(np.mean([moments.whole.n / half.n for half in split]))


class FrechetInfluence(NamedTuple):
    """Effect of each image on the Fréchet distance between the two sets, to first order."""

    shift: NDArray[np.float64]
    """Difference of the means (width,), first minus second."""
    first: NDArray[np.float64]
    """Derivative of the distance with respect to the covariance of the first set (width, width)."""
    second: NDArray[np.float64]

    def measure_first(self, features: Floats, moments: Moments) -> NDArray[np.float64]:
        """Return the influence (n,) of images of the first set; the mean over the set is 0."""
        return _compute_influence(features, moments, 2 * self.shift, self.first)

    def measure_second(self, features: Floats, moments: Moments) -> NDArray[np.float64]:
        """Return the influence (n,) of images of the second set; the mean over the set is 0."""
        return _compute_influence(features, moments, -2 * self.shift, self.second)


def differentiate_frechet_distance(first: Moments, second: Moments) -> FrechetInfluence:
    """Return the derivatives of the distance.

    The derivative of tr (R S R)^(1/2) with respect to S is half of R (R S R)^(-1/2) R, where R is the root of the other
    covariance. For both sets, it follows from the singular value decomposition of the product of the two roots.
    """
    roots = [_compute_square_root(moments.covariance) for moments in (first, second)]
    left, singular, right = np.linalg.svd(roots[0] @ roots[1])
    inverse = np.zeros_like(singular)
    np.divide(1, singular, out=inverse, where=singular > RELATIVE_TOLERANCE * singular.max(initial=0))
    sides = (roots[1] @ right.T, roots[0] @ left)
    derivatives = [np.eye(first.width) - (side * inverse) @ side.T for side in sides]
    return FrechetInfluence(first.mean - second.mean, *derivatives)


def _factorise(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a matrix whose product with its transpose is the covariance."""
    try:
        return np.asarray(np.linalg.cholesky(covariance), np.float64)  # a fraction of the time of a root
    except np.linalg.LinAlgError:  # a feature is constant, or there are fewer images than features
        return _compute_square_root(covariance)


def _compute_square_root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(covariance)
    root: NDArray[np.float64] = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    return root


def _compute_influence(
    features: Floats, moments: Moments, slope: NDArray[np.float64], derivative: NDArray[np.float64]
) -> NDArray[np.float64]:
    centred = features.astype(np.float64) - moments.mean
    quadratic = np.einsum("ij,ij->i", centred @ derivative, centred)
    influence: NDArray[np.float64] = centred @ slope + quadratic - np.sum(derivative * moments.covariance)
    return influence

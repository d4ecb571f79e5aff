"""Intervals for CMMD and FID contain the true distance about as often as they should.

The true distance is the limit for infinitely many images. The simulations draw features from distributions whose
distance is known. They also show why uncorrected values have no intervals: a finite number of images makes them too
large.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import scipy.linalg

from plumbline.plugins.distances.features import ClusterSums, FeatureBatch, Floats
from plumbline.plugins.distances.frechet import (
    compute_frechet_distance,
    differentiate_frechet_distance,
    extrapolate_distance,
    sum_moments,
)
from plumbline.plugins.distances.measuring import MIN_IMAGES_PER_FEATURE, MIN_PROMPTS, Z_95, Estimate
from plumbline.plugins.distances.mmd import estimate_mmd

Draw = Callable[[np.random.Generator, int], FeatureBatch]


class SimulationResult(NamedTuple):
    """Fractions of intervals that contain the true distance, and means of the estimates."""

    coverage: float
    plain_coverage: float
    mean: float
    plain_mean: float
    error_ratio: float
    """Mean standard error divided by the standard deviation of the estimates."""


def simulate(estimate: Callable[[], tuple[float, float, float]], truth: float, repeats: int) -> SimulationResult:
    """Summarize repeated calls of `estimate`, which returns an uncorrected value, an estimate and its error."""
    plain, values, errors = np.array([estimate() for _ in range(repeats)]).T
    return SimulationResult(
        float(np.mean(abs(values - truth) < Z_95 * errors)),
        float(np.mean(abs(plain - truth) < Z_95 * errors)),
        float(values.mean()),
        float(plain.mean()),
        float(errors.mean() / values.std()),
    )


def hash_randomly(random: np.random.Generator, n: int, per_prompt: int = 1) -> np.ndarray:
    return np.repeat(random.integers(0, 2**63, n // per_prompt).astype(np.uint64), per_prompt)


def estimate_fid(first: FeatureBatch, second: FeatureBatch) -> tuple[float, float, float]:
    moments = [sum_moments([batch], batch.features.shape[1]) for batch in (first, second)]
    value = compute_frechet_distance(moments[0].whole, moments[1].whole)
    influence = differentiate_frechet_distance(moments[0].whole, moments[1].whole)
    sums = ClusterSums()
    sums.add(first.prompts, influence.measure_first(first.features, moments[0].whole) / len(first.features))
    sums.add(second.prompts, influence.measure_second(second.features, moments[1].whole) / len(second.features))
    extrapolated, split_error = extrapolate_distance(*moments, value)
    return value, extrapolated, float(np.hypot(sums.sum_by_prompt().standard_error, split_error))


def make_gaussian(root: np.ndarray, mean: np.ndarray, skewed: bool, per_prompt: int = 1) -> Draw:
    """Return a function that draws features with the covariance root @ root.T and this mean.

    Half of the variance is shared by the images of a prompt if there are several.
    """

    def draw(random: np.random.Generator, n: int) -> FeatureBatch:
        shape = (n, root.shape[1])
        noise = random.exponential(size=shape) - 1 if skewed else random.standard_normal(shape)
        if per_prompt > 1:
            shared = np.repeat(random.standard_normal((n // per_prompt, shape[1])), per_prompt, axis=0)
            noise = (noise + shared) / np.sqrt(2)
        return FeatureBatch(hash_randomly(random, n, per_prompt), (noise @ root.T + mean).astype(np.float32))

    return draw


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize("apart", [0.0, 1.0])
@pytest.mark.parametrize("per_feature", [MIN_IMAGES_PER_FEATURE, 12])
@pytest.mark.parametrize("width", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_intervals_of_fid_cover_the_distance_of_infinitely_many_images(
    skewed: bool, apart: float, per_feature: int, width: int
) -> None:
    random = np.random.default_rng(0)
    root = np.diag(np.sqrt(1 / (1 + np.arange(width))))
    turn, _ = np.linalg.qr(random.standard_normal((width, width)))
    other, mean = (np.eye(width) + 0.3 * apart * turn) @ root, 0.3 * apart * (np.arange(width) < 4)
    cross = scipy.linalg.sqrtm(other @ other.T @ root @ root.T).real
    truth = float(mean @ mean + np.trace(other @ other.T + root @ root.T - 2 * cross))
    draws = make_gaussian(other, mean, skewed), make_gaussian(root, np.zeros(width), skewed)

    def estimate() -> tuple[float, float, float]:
        first, second = (draw(random, per_feature * width) for draw in draws)
        return estimate_fid(first, second)

    found = simulate(estimate, truth, repeats=100)
    assert found.coverage >= 0.9 and 0.8 <= found.error_ratio <= 2.5
    assert abs(found.mean - truth) < 0.35 * (found.plain_mean - truth), "most of the bias is removed"
    assert apart or found.plain_coverage < 0.2, "an interval around the plain FID misses"


def test_images_of_a_prompt_are_not_counted_as_independent() -> None:
    random, width = np.random.default_rng(1), 8
    root, mean = np.eye(width), np.full(width, 0.5)
    draws = make_gaussian(root, mean, False, per_prompt=4), make_gaussian(root, np.zeros(width), False)

    def estimate() -> tuple[float, float, float]:
        first, second = (draw(random, 400) for draw in draws)
        return estimate_fid(first, second)

    found = simulate(estimate, float(mean @ mean), repeats=100)
    assert found.coverage >= 0.9
    assert (
        simulate(lambda: _estimate_without_prompts(estimate_fid, draws, random), float(mean @ mean), 100).error_ratio
        < 0.85
    )


def _estimate_without_prompts(
    estimate: Callable[[FeatureBatch, FeatureBatch], tuple[float, float, float]],
    draws: tuple[Draw, Draw],
    random: np.random.Generator,
) -> tuple[float, float, float]:
    first, second = (draw(random, 400)._replace(prompts=hash_randomly(random, 400)) for draw in draws)
    return estimate(first, second)


def draw_embeddings(random: np.random.Generator, n: int, shift: float, per_prompt: int) -> FeatureBatch:
    width = 16
    noise = random.standard_normal((n, width))
    shared = np.repeat(random.standard_normal((n // per_prompt, width)), per_prompt, axis=0)
    values = (noise + shared) / np.sqrt(2) if per_prompt > 1 else noise
    values[:, 0] += 2
    values[:, 1] += shift
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    return FeatureBatch(hash_randomly(random, n, per_prompt), unit.astype(np.float32))


@pytest.mark.parametrize("per_prompt", [1, 4])
@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0])
def test_intervals_of_cmmd_cover_the_distance_of_infinitely_many_images(shift: float, per_prompt: int) -> None:
    random = np.random.default_rng(2)
    many = estimate_mmd(draw_embeddings(random, 4000, shift, 1), draw_embeddings(random, 4000, 0, 1))

    def estimate() -> tuple[float, float, float]:
        n = MIN_PROMPTS * per_prompt
        found = estimate_mmd(draw_embeddings(random, n, shift, per_prompt), draw_embeddings(random, n, 0, per_prompt))
        return found.value, found.unbiased, found.effects.standard_error

    found = simulate(estimate, many.unbiased, repeats=200)
    assert found.coverage >= 0.9 and 0.8 <= found.error_ratio <= 2
    assert shift or found.plain_coverage < 0.6, "an interval around the released number misses"
    assert found.plain_mean > found.mean


def compute_released_cmmd(x: Floats, y: Floats) -> float:
    """Return google-research/google-research's `mmd` (cmmd/distance.py, 4c42994), in double precision."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    gamma = 1 / (2 * 10**2)

    def average(one: np.ndarray, other: np.ndarray) -> float:
        squares = (one**2).sum(1)[:, None] + (other**2).sum(1)[None] - 2 * one @ other.T
        return float(np.exp(-gamma * squares).mean())

    return 1000 * (average(x, x) + average(y, y) - 2 * average(x, y))


def test_cmmd_and_fid_equal_the_released_implementations() -> None:
    random = np.random.default_rng(3)
    first, second = draw_embeddings(random, 2100, 0.2, 1), draw_embeddings(random, 300, 0, 1)
    found = estimate_mmd(first, second)
    assert found.value == pytest.approx(compute_released_cmmd(first.features, second.features), abs=1e-5)
    covariances = [np.cov(batch.features.astype(np.float64), rowvar=False) for batch in (first, second)]
    shift = first.features.astype(np.float64).mean(0) - second.features.astype(np.float64).mean(0)
    root = scipy.linalg.sqrtm(covariances[0] @ covariances[1]).real
    expected = shift @ shift + np.trace(covariances[0] + covariances[1] - 2 * root)
    moments = [sum_moments([batch], 16).whole for batch in (first, second)]
    assert compute_frechet_distance(*moments) == pytest.approx(float(expected), rel=1e-6)


def test_a_negative_estimate_has_an_interval_that_begins_at_zero() -> None:
    random = np.random.default_rng(4)
    found = estimate_mmd(draw_embeddings(random, 40, 0, 1), draw_embeddings(random, 40, 0, 1))
    assert Estimate(-0.5, 0.1, found.effects).interval == (0, 0)
    assert Estimate(-0.1, 0.1, found.effects).interval == (0, pytest.approx(0.096, abs=1e-3))

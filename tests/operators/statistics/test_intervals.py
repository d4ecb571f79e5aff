"""95% intervals miss the truth in at most 5% of studies, in 2,000 simulated studies of each hard case."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from plumbline.operators.statistics.bootstrap import CORRELATIONS, SHARES, UNDEFINED_INTERVAL, Interval, Prompts, Scale
from plumbline.operators.statistics.options import Sampling
from plumbline.operators.statistics.poisson_bootstrap import compute_ratio_intervals, draw_poisson_weights
from plumbline.statistics import STATISTICS

N_STUDIES = 2000
MAX_ERROR_SHARE = 0.05 + 2 * (0.05 * 0.95 / N_STUDIES) ** 0.5
LIKERT_SCALE = Scale(1.0, 5.0)
Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Function that draws a study's values, one for each of n prompts."""


def draw_rare_twos(random: np.random.Generator, n: int) -> np.ndarray:
    return np.where(random.random((n, 3)) < 0.07, 2.0, 5.0).mean(axis=1)


def draw_very_rare_ones(random: np.random.Generator, n: int) -> np.ndarray:
    return np.where(random.random((n, 3)) < 0.02, 1.0, 5.0).mean(axis=1)


def draw_equally_likely_grades(random: np.random.Generator, n: int) -> np.ndarray:
    return random.integers(1, 6, n).astype(float)


def draw_nearly_all_right(random: np.random.Generator, n: int) -> np.ndarray:
    return (random.random(n) < 0.95).astype(float)


def draw_multiples_of_a_third(random: np.random.Generator, n: int) -> np.ndarray:
    return random.binomial(3, 0.95, n) / 3


def draw_values_near_0_and_1(random: np.random.Generator, n: int) -> np.ndarray:
    return random.beta(0.3, 0.1, n)


HARD_CASES: dict[str, tuple[Draw, float, Scale]] = {
    "7% twos": (draw_rare_twos, 5 - 3 * 0.07, LIKERT_SCALE),
    "2% ones": (draw_very_rare_ones, 5 - 4 * 0.02, LIKERT_SCALE),
    "all grades": (draw_equally_likely_grades, 3.0, LIKERT_SCALE),
    "95% right": (draw_nearly_all_right, 0.95, SHARES),
    "k of 3": (draw_multiples_of_a_third, 0.95, SHARES),
    "mostly ends": (draw_values_near_0_and_1, 0.75, SHARES),
}


def compute_miss_rate(intervals: list[Interval], truth: float) -> float:
    """Return the fraction of intervals that do not contain the truth; a missing interval does not count as a miss."""
    return sum(one.low > truth + 1e-9 or one.high < truth - 1e-9 for one in intervals) / len(intervals)


@pytest.mark.parametrize("prompts", [10, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", HARD_CASES)
def test_a_mean_on_a_known_scale_always_has_a_valid_interval(case: str, prompts: int) -> None:
    draw, truth, scale = HARD_CASES[case]
    random, names = np.random.default_rng(0), [str(n) for n in range(prompts)]
    found = [
        Prompts(names, Sampling(resamples=400, seed=seed)).mean_interval(draw(random, prompts), scale)
        for seed in range(N_STUDIES)
    ]
    assert not any(math.isnan(one.low) for one in found)
    assert compute_miss_rate(found, truth) <= MAX_ERROR_SHARE
    assert all(scale.least <= one.low and one.high <= scale.greatest for one in found)


def test_equal_images_of_a_prompt_count_once() -> None:
    random, names = np.random.default_rng(1), [str(n) for n in range(15) for _ in range(4)]
    found = [
        Prompts(names, Sampling(resamples=400, seed=seed)).mean_interval(
            np.repeat(draw_multiples_of_a_third(random, 15), 4), SHARES
        )
        for seed in range(N_STUDIES)
    ]
    assert compute_miss_rate(found, 0.95) <= MAX_ERROR_SHARE


@pytest.mark.parametrize("prompts", [6, 10, 25])
@pytest.mark.parametrize("case", HARD_CASES)
def test_a_summary_mean_on_an_unknown_scale_has_a_valid_interval_or_none(case: str, prompts: int) -> None:
    draw, truth, _ = HARD_CASES[case]
    random = np.random.default_rng(2)
    values = np.array([draw(random, prompts) for _ in range(N_STUDIES)])
    hashes = random.integers(0, 2**63, (N_STUDIES, prompts), dtype=np.uint64)
    weights = draw_poisson_weights(hashes.ravel()).reshape(N_STUDIES, prompts, -1)
    totals = sum(values[:, each, None] * weights[:, each] for each in range(prompts))
    found = compute_ratio_intervals(totals, weights.sum(axis=1, dtype=np.float64))
    assert compute_miss_rate([Interval(*ends) for ends in found.T.tolist()], truth) <= MAX_ERROR_SHARE


def test_ten_equal_ratings_have_no_interval_unless_the_scale_is_known() -> None:
    prompts = Prompts([str(n) for n in range(10)])
    unknown, known = (prompts.mean_interval(np.full(10, 5.0), scale) for scale in (None, LIKERT_SCALE))
    assert math.isnan(unknown.low)
    assert "too few of 10 prompts differ" in prompts.describe(unknown)
    assert known.high == 5 and known.low == pytest.approx(5 - 4 * (1 - 0.025**0.1), abs=0.15), "Clopper and Pearson's"
    assert "Gaffke's, 10 prompts, scale from 1 to 5" in prompts.describe(known, LIKERT_SCALE)


def draw_ratings_and_scores(random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ratings, most of them 5, and metric scores; half of the scores' variance is due to image quality."""
    quality = random.normal(size=n)
    bad = np.where(quality < -1.3, 0.6, 0.01)[:, None]
    return np.where(random.random((n, 3)) < bad, 2.0, 5.0).mean(axis=1), quality + random.normal(size=n)


def draw_correlated_normals(random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    quality = random.normal(size=n)
    return quality, quality + 0.8 * random.normal(size=n)


@pytest.mark.parametrize(
    "draw", [draw_ratings_and_scores, pytest.param(draw_correlated_normals, marks=pytest.mark.slow)]
)
def test_a_correlation_has_a_valid_interval_or_none(
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]],
) -> None:
    random = np.random.default_rng(3)
    truth = float(np.corrcoef(*draw(random, 400_000))[0, 1])
    for n in (10, 25):
        names, found = [str(one) for one in range(n)], list[Interval]()
        for seed in range(N_STUDIES):
            human, score = draw(random, n)
            prompts = Prompts(names, Sampling(resamples=60, seed=seed))
            interval = UNDEFINED_INTERVAL
            if prompts.have_enough_variation(human, score):
                interval = prompts.interval(lambda rows: compute_pearson(human[rows], score[rows]), CORRELATIONS)  # noqa: B023
            found.append(interval)
        assert compute_miss_rate(found, truth) <= MAX_ERROR_SHARE


def compute_pearson(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / size if size else math.nan


def test_a_statistic_stays_on_its_scale_and_one_that_never_varies_has_no_interval() -> None:
    random = np.random.default_rng(4)
    human = random.normal(size=30)
    prompts = Prompts([str(n) for n in range(30)], Sampling(resamples=100))
    score = human + 0.05 * random.normal(size=30)
    low, high = prompts.interval(lambda rows: STATISTICS["spearman"](human[rows], score[rows]), CORRELATIONS)
    assert 0.9 < low < high <= 1
    assert math.isnan(prompts.interval(lambda rows: 1.0, CORRELATIONS).low)

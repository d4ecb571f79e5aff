"""Significance tests and intervals are wrong in at most 5 of 100 simulated studies, even in hard cases."""

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from plumbline.operators.statistics.agreement import STATISTICS, compute_alpha_interval
from plumbline.operators.statistics.bootstrap import CORRELATIONS, Prompts
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.operators.statistics.options import Sampling, ZeroHandling
from plumbline.statistics import holm, permutation, signed_rank

N_STUDIES = 2000
MAX_ERROR_SHARE = SIGNIFICANCE + 2 * (SIGNIFICANCE * (1 - SIGNIFICANCE) / N_STUDIES) ** 0.5
Draw = Callable[[np.random.Generator, int, int], np.ndarray]
"""Function that draws scores of equally good generators, of shape (generators, prompts)."""


def draw_rare_losses(random: np.random.Generator, generators: int, prompts: int) -> np.ndarray:
    return (random.random((generators, prompts)) < 0.95).astype(float)


def draw_fractions(random: np.random.Generator, generators: int, prompts: int) -> np.ndarray:
    """Return fractions whose denominator differs between prompts, but not between the generators on a prompt.

    Many differences are therefore equal except for rounding.
    """
    n = random.integers(1, 8, prompts)
    return random.binomial(n, 0.7, (generators, prompts)) / n


def draw_clustered_means(random: np.random.Generator, generators: int, prompts: int) -> np.ndarray:
    """Return means over four images per prompt; the images of a prompt mostly succeed or fail together."""
    luck = random.normal(size=(generators, prompts, 1))
    return np.asarray((luck + 0.2 * random.normal(size=(generators, prompts, 4)) > 0).mean(axis=2))


def draw_prompts_of_different_spread(random: np.random.Generator, generators: int, prompts: int) -> np.ndarray:
    return random.normal(size=(generators, prompts)) * random.lognormal(0, 2, prompts)


HARD_CASES = [draw_rare_losses, draw_fractions, draw_clustered_means, draw_prompts_of_different_spread]


def mark_slow_cases(*slow: Draw) -> list[object]:
    """Return the functions in HARD_CASES as test parameters; those in `slow` only run in `make slow`."""
    return [pytest.param(draw, marks=pytest.mark.slow) if draw in slow else draw for draw in HARD_CASES]


@pytest.mark.parametrize("draw", HARD_CASES)
@pytest.mark.parametrize(("prompts", "zeros"), [(10, "wilcox"), (60, "pratt")])
def test_two_equal_generators_differ_significantly_in_at_most_5_of_100_studies(
    draw: Draw, prompts: int, zeros: ZeroHandling
) -> None:
    random = np.random.default_rng(0)
    found = [signed_rank(*draw(random, 2, prompts), zeros=zeros).p_value for _ in range(N_STUDIES)]
    assert np.mean(np.array(found) < SIGNIFICANCE) <= MAX_ERROR_SHARE


@pytest.mark.parametrize("draw", mark_slow_cases(draw_rare_losses, draw_clustered_means))
def test_equal_generators_next_to_a_flattered_one_get_different_letters_in_at_most_5_of_100_studies(
    draw: Draw,
) -> None:
    """Four generators are equal, and the metric flatters the fifth; the four must not differ significantly."""
    random, false = np.random.default_rng(1), 0
    for _ in range(N_STUDIES):
        scores = draw(random, 5, 25)
        scores[4] += 0.5
        pairs = list(combinations(range(5), 2))
        corrected = holm([signed_rank(scores[a], scores[b]).p_value for a, b in pairs])
        false += any(p_value < SIGNIFICANCE for (_, b), p_value in zip(pairs, corrected, strict=True) if b != 4)
    assert false / N_STUDIES <= MAX_ERROR_SHARE


@pytest.mark.parametrize("draw", mark_slow_cases(draw_fractions, draw_prompts_of_different_spread))
def test_nights_that_differ_only_by_chance_report_a_regression_in_at_most_5_of_100(draw: Draw) -> None:
    """Three generators are compared with the previous night, overall and for three skills of eight prompts each.

    Properties of a prompt, such as its number of questions, are the same in both nights.
    """
    random, false = np.random.default_rng(4), 0
    for _ in range(N_STUDIES):
        nights = draw(random, 6, 24).reshape(3, 2, 24)
        changes = nights[:, 1] - nights[:, 0]
        parts = [change[part] for change in changes for part in (slice(24), slice(8), slice(8, 16), slice(16, 24))]
        tests = [signed_rank(part, np.zeros(len(part))) for part in parts]
        corrected = holm([test.p_value for test in tests])
        false += any(p < SIGNIFICANCE and test.difference < 0 for p, test in zip(corrected, tests, strict=True))
    assert false / N_STUDIES <= MAX_ERROR_SHARE


def test_equal_scores_on_all_prompts_are_not_significant() -> None:
    for n in (1, 5, 1000):
        found = signed_rank(np.full(n, 0.7), np.full(n, 0.1 * 7))
        assert (found.p_value, found.effect, found.differing) == (1.0, 0.0, 0)


@pytest.mark.parametrize("prompts", [8, pytest.param(30, marks=pytest.mark.slow)])
def test_sign_flips_find_a_difference_between_equal_metrics_in_at_most_5_of_100_studies(prompts: int) -> None:
    """Differences of pairwise accuracies are 0 for most prompts, and multiples of a third for the others."""
    random = np.random.default_rng(2)
    found = []
    for seed in range(N_STUDIES):
        differences = random.choice([-2, -1, 0, 0, 0, 0, 0, 0, 1, 2], prompts) / 3
        found.append(permutation(differences, resamples=199, seed=seed))
    assert np.mean(np.array(found) < SIGNIFICANCE) <= MAX_ERROR_SHARE


@pytest.mark.parametrize("prompts", [25, pytest.param(60, marks=pytest.mark.slow)])
def test_an_interval_for_agreement_on_nearly_equal_ratings_misses_the_truth_in_at_most_5_of_100_studies(
    prompts: int,
) -> None:
    """Three raters rate each image 5 or 2: the probability of a 2 is 70% for a bad image, and 2% for other images."""
    bad, seen, unseen = 0.15, 0.7, 0.02
    twos = bad * seen + (1 - bad) * unseen
    disagreement = bad * seen * (1 - seen) + (1 - bad) * unseen * (1 - unseen)
    truth = 1 - disagreement / (twos * (1 - twos))
    random, missed = np.random.default_rng(3), 0
    units = np.repeat(np.arange(prompts), 3)
    for seed in range(N_STUDIES):
        chance = np.where(random.random(prompts) < bad, seen, unseen)[:, None]
        said = np.where(random.random((prompts, 3)) < chance, 2.0, 5.0).ravel()
        ratings = pd.DataFrame({"unit": units, "prompt_id": units.astype(str), "rating": said})
        low, high = compute_alpha_interval(ratings, Sampling(resamples=100, seed=seed))
        missed += low > truth or high < truth
    assert missed / N_STUDIES <= MAX_ERROR_SHARE


def draw_rarely_varying_scores(random: np.random.Generator, prompts: int) -> np.ndarray:
    """Return scores by two versions of a metric, each of which gives 90% of the images nearly the same score."""
    old = np.where(random.random(prompts) < 0.1, random.random(prompts) / 2, 1)
    return np.array([old, 0.1 + 0.8 * old + 0.02 * random.normal(size=prompts)])


def draw_multiples_of_a_third(random: np.random.Generator, prompts: int) -> np.ndarray:
    return random.binomial(3, random.beta(3, 0.6, prompts), (2, prompts)) / 3


def draw_nearly_the_same_order(random: np.random.Generator, prompts: int) -> np.ndarray:
    old = random.lognormal(size=prompts)
    return np.array([old, old * random.lognormal(0, 0.3, prompts)])


@pytest.mark.slow
@pytest.mark.parametrize("draw", [draw_rarely_varying_scores, draw_multiples_of_a_third, draw_nearly_the_same_order])
def test_an_interval_of_a_rank_correlation_misses_the_truth_in_at_most_5_of_100_studies(
    draw: Callable[[np.random.Generator, int], np.ndarray],
) -> None:
    spearman, random, prompts, missed = STATISTICS["spearman"], np.random.default_rng(9), 60, 0
    truth = spearman(*draw(random, 400_000))
    for seed in range(N_STUDIES):
        old, new = draw(random, prompts)
        resampled = Prompts([str(number) for number in range(prompts)], Sampling(resamples=400, seed=seed))
        if resampled.have_enough_variation(old, new):
            low, high = resampled.interval(lambda rows: spearman(old[rows], new[rows]), CORRELATIONS)  # noqa: B023
            missed += low > truth or high < truth
    assert missed / N_STUDIES <= MAX_ERROR_SHARE

"""Tests of difference: against scipy and published worked numbers, with nothing and with ties."""

import math

import numpy as np
import pytest
from scipy import stats

from operators.statistics.ordering import holm, permutation, permuted_correlations, signed_rank


def test_the_signed_rank_test_is_scipys_with_its_effect_and_wins() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(0.3, 1, 80), random.normal(0, 1, 80)
    found = signed_rank(a, b)
    assert found.p_value == pytest.approx(stats.wilcoxon(a, b).pvalue)
    assert found.difference == pytest.approx(float((a - b).mean()))
    assert found.win_rate == pytest.approx(float((a > b).mean()))
    assert -1 <= found.effect <= 1


def test_zeros_are_dropped_or_ranked_as_asked() -> None:
    a = np.array([0, 0, 0, -1, 2, 3, 4, 5], float)
    dropped, ranked = signed_rank(a, 0 * a), signed_rank(a, 0 * a, zeros="pratt")
    assert dropped.effect == pytest.approx((14 - 1) / 15)
    assert ranked.effect == pytest.approx((5 + 6 + 7 + 8 - 4) / 30)
    assert dropped.n == ranked.n == 8


def test_equal_values_do_not_differ_and_missing_pairs_are_left_out() -> None:
    same = signed_rank(np.ones(5), np.ones(5))
    assert (same.p_value, same.effect, same.win_rate, same.n) == (1.0, 0.0, 0.5, 5)
    assert signed_rank(np.array([1, math.nan]), np.array([math.nan, 1])).n == 0
    assert signed_rank(np.array([2.0, 3.0, math.nan]), np.array([1.0, 1.0, 1.0])).n == 2


def test_holm_multiplies_by_what_is_left_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, math.nan]) == pytest.approx([0.01, math.nan], nan_ok=True)
    assert holm([]) == []


def equal_metrics(random: np.random.Generator, prompts: int, images: int) -> tuple[list[np.ndarray], list[str]]:
    """Ratings and two equally good metrics, whose errors the images of a prompt share."""

    def errors() -> np.ndarray:
        return np.repeat(random.normal(size=prompts), images) + 0.3 * random.normal(size=prompts * images)

    truth = errors()
    return [truth, truth + errors(), truth + errors()], [str(row // images) for row in range(prompts * images)]


def test_equal_metrics_are_told_apart_in_5_of_100_cases_though_images_of_a_prompt_share_their_errors() -> None:
    random = np.random.default_rng(0)
    told = 0
    for case in range(400):
        columns, prompt_ids = equal_metrics(random, 30, 5)
        told += permuted_correlations(*columns, prompt_ids, resamples=99, seed=case) < 0.05
    assert 6 <= told <= 36


def test_the_permutation_of_correlations_sees_the_better_metric_and_no_difference_of_one_with_itself() -> None:
    random = np.random.default_rng(1)
    prompt_ids = [str(row // 4) for row in range(200)]
    truth, noise = random.normal(size=(2, 200))
    assert permuted_correlations(truth, truth + noise, noise, prompt_ids) == 1 / 10_000
    assert permuted_correlations(truth, noise, 3 * noise + 1, prompt_ids) == 1.0


def test_a_difference_of_correlations_is_undefined_for_one_prompt_and_for_equal_scores() -> None:
    truth, noise = np.random.default_rng(2).normal(size=(2, 20))
    assert math.isnan(permuted_correlations(truth, truth, noise, ["p"] * 20))
    assert math.isnan(permuted_correlations(truth, np.full(20, 0.1), noise, list(map(str, range(20)))))
    assert math.isnan(permuted_correlations(*np.empty((3, 0)), []))


def test_the_permutation_test_sees_a_shift_and_not_noise() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(size=60)
    assert permutation(noise - noise.mean() + 0.01) > 0.5
    assert permutation(noise + 2) < 0.001
    assert math.isnan(permutation(np.array([])))
    assert math.isnan(permutation(np.array([0.5]))), "a single prompt says nothing of others"

"""Significance tests agree with scipy and published worked examples, even with ties or without any differences."""

import math
from itertools import combinations, product

import numpy as np
import pytest
from scipy import stats

from plumbline.operators.statistics.options import ZeroHandling
from plumbline.operators.statistics.ordering import (
    DEFAULT_POWER,
    compute_correlation_p_value,
    compute_min_pairs,
    estimate_pairs_needed,
    holm,
    permutation,
    signed_rank,
)


def test_the_signed_rank_test_equals_scipys_and_returns_effect_and_win_rate() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(0.3, 1, 80), random.normal(0, 1, 80)
    found = signed_rank(a, b)
    assert found.p_value == pytest.approx(stats.wilcoxon(a, b).pvalue)
    assert found.difference == pytest.approx(float((a - b).mean()))
    assert found.win_rate == pytest.approx(float((a > b).mean()))
    assert -1 <= found.effect <= 1


def enumerate_p_value(differences: np.ndarray, zeros: ZeroHandling) -> float:
    """Return the two-sided p-value, by enumerating all combinations of the differences' signs."""
    ranked = differences if zeros == "pratt" else differences[differences != 0]
    ranks = stats.rankdata(np.abs(ranked))[ranked != 0]
    sums = [np.dot(signs, ranks) for signs in product((-1, 1), repeat=len(ranks))]
    own = float(np.dot(np.sign(ranked[ranked != 0]), ranks))
    return float(np.mean(np.abs(sums) >= abs(own) - 1e-9))


@pytest.mark.parametrize("zeros", ["wilcox", "pratt"])
def test_the_p_value_of_few_pairs_equals_the_enumeration_of_all_signs(zeros: ZeroHandling) -> None:
    random = np.random.default_rng(0)
    for n in [*range(1, 12)] * 4:
        differences = random.choice([-0.5, -0.25, 0.0, 0.25, 0.5, 1.0], n)
        if differences.any():
            found = signed_rank(differences, np.zeros(n), zeros=zeros)
            assert found.p_value == pytest.approx(enumerate_p_value(differences, zeros))


@pytest.mark.parametrize("n", [5, 20, 60, 300])
def test_wins_and_losses_of_equal_size_are_compared_by_the_exact_sign_test(n: int) -> None:
    won = n // 2 + int(math.sqrt(n)) + 1
    wins = np.array([1.0] * won + [-1.0] * (n - won) + [0.0] * 40)
    exact = stats.binomtest(won, n).pvalue
    assert signed_rank(wins, 0 * wins).p_value == pytest.approx(exact)


def test_no_outcome_of_five_prompts_is_significant() -> None:
    for differences in ([1.0] * 5, [0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.5, 0.5, 0.2, 0.2]):
        assert signed_rank(np.array(differences), np.zeros(5)).p_value == 0.0625


def test_equal_generators_with_few_score_levels_differ_significantly_in_at_most_5_of_100_cases() -> None:
    random = np.random.default_rng(0)
    for n in (6, 8, 15, 40):
        found = [signed_rank(*random.integers(0, 3, (2, n)).astype(float)).p_value for _ in range(600)]
        assert np.mean(np.array(found) < 0.05) <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 600)


def test_zeros_are_dropped_or_ranked_as_requested() -> None:
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


def test_holm_multiplies_by_the_number_of_remaining_tests_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, math.nan]) == pytest.approx([0.01, math.nan], nan_ok=True)
    assert holm([]) == []


def simulate_equal_metrics(
    random: np.random.Generator, prompts: int, images: int
) -> tuple[list[np.ndarray], list[str]]:
    """Return ratings and the scores of two equally good metrics; errors on images of the same prompt are correlated."""

    def draw_errors() -> np.ndarray:
        return np.repeat(random.normal(size=prompts), images) + 0.3 * random.normal(size=prompts * images)

    truth = draw_errors()
    return [truth, truth + draw_errors(), truth + draw_errors()], [
        str(row // images) for row in range(prompts * images)
    ]


def test_equal_metrics_with_errors_shared_within_prompts_differ_in_at_most_5_of_100_cases() -> None:
    random = np.random.default_rng(0)
    told = 0
    for case in range(400):
        columns, prompt_ids = simulate_equal_metrics(random, 30, 5)
        told += compute_correlation_p_value(*columns, prompt_ids, resamples=99, seed=case) < 0.05
    assert 6 <= told <= 36


def test_permuted_correlations_find_the_better_metric_and_no_difference_from_itself() -> None:
    random = np.random.default_rng(1)
    prompt_ids = [str(row // 4) for row in range(200)]
    truth, noise = random.normal(size=(2, 200))
    assert compute_correlation_p_value(truth, truth + noise, noise, prompt_ids) == 1 / 10_000
    assert compute_correlation_p_value(truth, noise, 3 * noise + 1, prompt_ids) == 1.0


def test_shared_draws_equal_those_of_separate_comparisons() -> None:
    random = np.random.default_rng(3)
    human, *metrics = random.normal(size=(4, 40))
    prompt_ids = [str(row // 3) for row in range(40)]
    shared = [compute_correlation_p_value(human, a, b, prompt_ids, resamples=700) for a, b in combinations(metrics, 2)]
    alone = []
    for a, b in combinations(metrics, 2):
        compute_correlation_p_value(
            human[:20], a[:20], b[:20], prompt_ids[:20], resamples=10
        )  # makes other draws in between
        alone.append(compute_correlation_p_value(human, a, b, prompt_ids, resamples=700))
    assert shared == alone and len(set(shared)) == 3


def test_a_difference_of_correlations_is_undefined_for_one_prompt_and_for_equal_scores() -> None:
    truth, noise = np.random.default_rng(2).normal(size=(2, 20))
    assert math.isnan(compute_correlation_p_value(truth, truth, noise, ["p"] * 20))
    assert math.isnan(compute_correlation_p_value(truth, np.full(20, 0.1), noise, list(map(str, range(20)))))
    assert math.isnan(compute_correlation_p_value(*np.empty((3, 0)), []))


def test_the_permutation_test_finds_a_shift_but_not_noise() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(size=60)
    assert permutation(noise - noise.mean() + 0.01) > 0.5
    assert permutation(noise + 2) < 0.001
    assert math.isnan(permutation(np.array([])))
    assert math.isnan(permutation(np.array([0.5]))), "a single prompt says nothing about others"


@pytest.mark.parametrize("tests", [1, 3, 10, 29, 435])
def test_the_minimum_number_of_pairs_can_be_significant_and_one_pair_less_cannot(tests: int) -> None:
    for pairs, significant in ((compute_min_pairs(tests, 0.05), True), (compute_min_pairs(tests, 0.05) - 1, False)):
        least = signed_rank(np.arange(1.0, pairs + 1), np.zeros(pairs)).p_value
        assert (holm([least, *[1.0] * (tests - 1)])[0] < 0.05) == significant


@pytest.mark.parametrize(("shift", "tests"), [(0.3, 1), (0.5, 1), (0.5, 29), (0.8, 435)])
def test_the_recommended_number_of_pairs_has_about_the_promised_power(shift: float, tests: int) -> None:
    random = np.random.default_rng(0)
    many = random.normal(shift, 1, 4_000)
    pairs = estimate_pairs_needed(signed_rank(many, np.zeros(len(many))).effect, tests, 0.05)
    found = [signed_rank(random.normal(shift, 1, pairs), np.zeros(pairs)).p_value for _ in range(300)]
    shown = np.mean(np.array(found) * tests < 0.05)
    assert DEFAULT_POWER - 0.1 < shown < DEFAULT_POWER + 0.17

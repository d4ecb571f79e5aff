"""Tests of difference: against scipy and published worked numbers, with nothing and with ties."""

import math

import numpy as np
import pytest
from scipy import stats

from operators.statistics.ordering import holm, permutation, signed_rank, williams


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


def test_williams_test_keeps_its_level_where_metrics_are_alike() -> None:
    random = np.random.default_rng(0)
    rejected = 0
    for _ in range(400):
        truth = random.normal(size=60)
        a, b = truth + random.normal(size=60), truth + random.normal(size=60)
        r = np.corrcoef([truth, a, b])
        rejected += williams(r[0, 1], r[0, 2], r[1, 2], 60) < 0.05
    assert 6 <= rejected <= 36


def test_williams_test_is_undefined_for_few_images_and_1_for_one_metric_twice() -> None:
    assert math.isnan(williams(0.5, 0.4, 0.1, 3))
    assert math.isnan(williams(math.nan, 0.4, 0.1, 30))
    assert williams(0.5, 0.5, 1.0, 30) == 1.0


def test_the_permutation_test_sees_a_shift_and_not_noise() -> None:
    random = np.random.default_rng(0)
    noise = random.normal(size=60)
    assert permutation(noise - noise.mean() + 0.01) > 0.5
    assert permutation(noise + 2) < 0.001
    assert math.isnan(permutation(np.array([])))

"""Numbers that differ only by rounding count as equal."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from plumbline.operators.statistics.rounding import (
    choose_step,
    compute_exact_means,
    compute_order_independent_sums,
    merge_equal,
    round_to_step,
)
from plumbline.statistics import calibrate_ties, signed_rank


def draw_fractions(random: np.random.Generator, n: int) -> list[Fraction]:
    return [Fraction(int(random.integers(0, k + 1)), int(k)) for k in random.integers(1, 13, n)]


def test_shares_with_equal_differences_are_tied_like_exact_fractions() -> None:
    random = np.random.default_rng(0)
    for n in (20, 60, 400):
        a, b = draw_fractions(random, n), draw_fractions(random, n)
        apart = [x - y for x, y in zip(a, b, strict=True)]
        common = math.lcm(*(one.denominator for one in apart))
        whole = np.array([int(one * common) for one in apart], float)
        exact = signed_rank(whole, np.zeros(n))
        found = signed_rank(np.array(a, float), np.array(b, float))
        assert found.p_value == exact.p_value and found.effect == exact.effect
        assert (found.win_rate, found.differing) == (exact.win_rate, exact.differing)


def test_equal_gains_and_losses_of_a_third_are_no_difference() -> None:
    found = signed_rank(np.array([1.0] * 30 + [0.0] * 30), np.array([2 / 3] * 30 + [1 / 3] * 30))
    assert (found.p_value, found.effect, found.difference) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("scale", [1e-200, 1e-7, 1.0, 1e9, 1e200])
def test_the_result_does_not_depend_on_the_scale_of_scores_or_one_enormous_score(scale: float) -> None:
    random = np.random.default_rng(1)
    a, b = random.normal(0.3, 1, (2, 40))
    usual = signed_rank(a, b)
    assert signed_rank(scale * a, scale * b)[:2] == usual[:2]
    failed = signed_rank(np.append(a, -1e30), np.append(b, 0.0))
    assert failed.differing == 41


def test_scores_that_differ_only_by_rounding_are_equal() -> None:
    a = np.array([0.1 + 0.2, 0.7, 1 - 0.9])
    found = signed_rank(a, np.array([0.3, 0.7, 0.1]))
    assert (found.differing, found.p_value, found.win_rate) == (0, 1.0, 0.5)
    values = np.array([0.3, 0.1 + 0.2, math.nan, 0.30001, -math.inf, 1e-78, 1e-155, 0.0])
    assert merge_equal(values).tolist()[:2] == [0.3, 0.3]
    assert np.array_equal(merge_equal(values)[2:], values[2:], equal_nan=True)


def test_values_are_rounded_by_at_most_a_billionth_of_their_typical_size() -> None:
    values = np.random.default_rng(2).lognormal(size=1000)
    step = choose_step(values)
    assert np.abs(round_to_step(values, step) - values).max() <= step / 2 <= 1e-9 * np.median(values)
    assert choose_step(np.zeros(3)) > 0


def test_tie_calibration_is_the_same_for_fractions_as_for_whole_numbers() -> None:
    random = np.random.default_rng(3)
    for case in range(30):
        n = 40
        metric = draw_fractions(random, n)
        common = math.lcm(*(one.denominator for one in metric))
        thirds = random.integers(3, 16, n)
        whole = calibrate_ties(thirds.astype(float), np.array([int(one * common) for one in metric], float))
        found = calibrate_ties(thirds / 3, np.array([float(one) for one in metric]))
        assert found.accuracy == whole.accuracy, case
        assert found.epsilon == pytest.approx(whole.epsilon / common)


def test_sums_and_means_do_not_depend_on_the_order_of_the_values() -> None:
    random = np.random.default_rng(4)
    values, groups = random.lognormal(0, 8, 600), random.integers(0, 90, 600)
    order = random.permutation(600)
    for add in (compute_exact_means, compute_order_independent_sums):
        assert np.array_equal(add(values, groups, 91), add(values[order], groups[order], 91), equal_nan=True)
    exact = [math.fsum(values[groups == group]) / max((groups == group).sum(), 1) for group in range(90)]
    assert compute_exact_means(values, groups, 91)[:90].tolist() == exact
    assert math.isnan(compute_exact_means(values, groups, 91)[90])


def test_the_p_value_with_equal_ranks_equals_scipys_for_the_exact_differences() -> None:
    random = np.random.default_rng(5)
    whole = random.integers(-6, 7, 300)
    sixths = signed_rank(1 + whole / 6, np.ones(300))
    assert sixths.p_value == pytest.approx(stats.wilcoxon(whole[whole != 0], method="asymptotic").pvalue)

"""Exact intervals for proportions are correct, even for clustered data and after correcting for a test's errors."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from plumbline.operators.statistics.shares import Share, correct_share, estimate_share


def test_images_of_different_prompts_have_clopper_and_pearsons_interval() -> None:
    found = estimate_share(np.array([True] * 9 + [False]), np.arange(10))
    assert (found.value, found.n, found.effective) == (0.9, 10, 10)
    assert found.interval == pytest.approx(stats.binomtest(9, 10).proportion_ci(0.95, "exact"))
    assert estimate_share(np.ones(8, bool), np.arange(8)).interval == pytest.approx((0.025 ** (1 / 8), 1))
    assert math.isnan(estimate_share(np.zeros(0, bool), np.arange(0)).interval.low)


def test_images_of_a_prompt_with_equal_outcomes_count_as_one() -> None:
    prompts = np.repeat(np.arange(20), 5)
    alike = estimate_share(prompts < 12, prompts)  # 12 of 20 prompts, five images each
    assert (alike.value, alike.n) == (0.6, 100)
    # design effect 99 / 19 x 20 / 20 for 100 images; Student's quantiles for 99 and 19 degrees of freedom
    quantiles = stats.t.ppf(0.975, 99) / stats.t.ppf(0.975, 19)
    assert alike.effective == pytest.approx(100 * 19 / 99 * quantiles**2)
    every = estimate_share(np.ones(100, bool), prompts)
    assert (every.value, every.effective) == (1, 20)
    mixed = estimate_share(np.tile([True, True, True, False, False], 20), prompts)
    assert mixed.effective == 100  # if prompts do not differ, their images count like independent ones


def test_a_corrected_share_equals_the_published_example_of_llm_judge_reporting() -> None:
    """In the example, 40% of 1,000 outputs pass; the test passes 90% of 200 good and 30% of 200 bad outputs.

    The package is UW-Madison-Lee-Lab/LLM-judge-reporting at commit 082884d; the example is in its README.
    """
    found = correct_share(Share(0.4, 1000, 1000), Share(0.9, 200, 200), Share(0.7, 200, 200))
    assert found.value == pytest.approx((0.4 + 0.7 - 1) / 0.6)
    # worked out by hand: p, sensitivity and specificity with z^2, 2 and 2 extra rows, half of which pass
    p, right, wrong = 401.9207 / 1003.8415, 181 / 202, 141 / 202
    middle = (p + wrong - 1) / (right + wrong - 1)
    a, b = right * (1 - right) / 202, wrong * (1 - wrong) / 202
    error = math.sqrt(p * (1 - p) / 1003.8415 + middle**2 * a + (1 - middle) ** 2 * b) / (right + wrong - 1)
    shift = 2 * 3.841459 * (middle * a - (1 - middle) * b)
    ends = middle + shift - 1.959964 * error, middle + shift + 1.959964 * error
    assert found.interval == pytest.approx(ends, abs=1e-6)


def test_a_test_that_may_be_no_better_than_chance_gives_no_corrected_share() -> None:
    found = correct_share(Share(0.5, 100, 100), Share(0.6, 20, 20), Share(0.5, 20, 20))
    assert math.isnan(found.value)
    assert "1.10" in found.note
    assert correct_share(Share(0.5, 100, 100), Share(0.6, 20, 20), estimate_share(np.zeros(0, bool), np.arange(0))).note


def test_intervals_are_valid_if_images_of_a_prompt_are_similar() -> None:
    """In 200 simulations, half of the variance in fit and in the metric's errors is shared by a prompt's images."""
    draws, rated = np.random.default_rng(0), 30
    prompts = np.repeat(np.arange(200)[:, None], 4, axis=1)
    truths = 0.9, 0.7, 0.85  # sensitivity, specificity, and fraction that fits
    right_below, wrong_below, fits_below = stats.norm.ppf([0.9, 0.3, 0.85])

    def draw_shared_noise() -> NDArray[np.float64]:
        return (draws.normal(size=(200, 1)) + draws.normal(size=prompts.shape)) / math.sqrt(2)

    held = np.zeros(3)
    for _ in range(200):
        fitting = draw_shared_noise() < fits_below
        passing = draw_shared_noise() < np.where(fitting, right_below, wrong_below)
        good, passed, of = fitting[:rated], passing[:rated], prompts[:rated]
        right, wrong = estimate_share(passed[good], of[good]), estimate_share(~passed[~good], of[~good])
        corrected = correct_share(estimate_share(passing[:, 0], prompts[:, 0]), right, wrong)
        intervals = zip((right.interval, wrong.interval, corrected.interval), truths, strict=True)
        held += [math.isnan(interval.low) or interval.low <= truth <= interval.high for interval, truth in intervals]
    assert (held / 200 > 0.92).all()

"""A mean beside a bound: Student's test, what so many prompts can show, and means that few prompts carry."""

import numpy as np
import pytest
from scipy import stats

from plumbline.operators.statistics.margins import (
    FEWEST_CARRIERS,
    carriers,
    margin_test,
    power,
    prompts_needed,
    smallest_seen,
)

DRAWN = np.random.default_rng(3)


def test_the_test_is_students_against_the_bound() -> None:
    """By hand: 60 values of mean 0.02, standard deviation 0.1 and margin 0.005 have t = 0.025 / (0.1 / sqrt(60))."""
    values = stats.zscore(DRAWN.normal(size=60), ddof=1) * 0.1 + 0.02
    found = margin_test(values, -0.005, 0.05, -1, 1)
    assert found.p_above == pytest.approx(stats.t.sf(1.93649, 59), rel=1e-4)
    assert found.p_above == pytest.approx(stats.ttest_1samp(values, -0.005, alternative="greater").pvalue)
    assert found.p_above + found.p_below == pytest.approx(1)
    assert (found.low, found.high) == pytest.approx((0.02 - 1.67109 * 0.0129099, 0.02 + 1.67109 * 0.0129099), rel=1e-4)
    assert margin_test(values, found.low, 0.05, -1, 1).p_above == pytest.approx(0.05)


def test_power_is_that_of_published_tables() -> None:
    """Cohen 1988, table 2.3 for one mean: 27 pairs show half a standard deviation one-sidedly at 0.05 with 80%."""
    assert prompts_needed(0.5, 0.05) == 27
    assert power(0.5, 26, 0.05) < 0.8 <= power(0.5, 27, 0.05)
    assert smallest_seen(27, 0.05) == pytest.approx(2.4865 / 27**0.5 * (1 + 1.645**2 / 108), abs=2e-3)
    assert power(smallest_seen(60, 0.025), 60, 0.025) == pytest.approx(0.8)
    assert prompts_needed(0.001, 0.05) == pytest.approx((1.64485 + 0.84162) ** 2 / 0.001**2, rel=1e-4)
    drawn = DRAWN.normal(0.5, 1, (4000, 27))
    assert np.mean(stats.ttest_1samp(drawn, 0, axis=1, alternative="greater").pvalue <= 0.05) == pytest.approx(
        0.8, abs=0.03
    )


def test_a_mean_that_few_prompts_carry_is_bounded_by_what_might_have_been_missed() -> None:
    """Of losses that are whole or none, the bound is Clopper and Pearson's; of none seen, by hand, 0.95 ** 24."""
    unchanged = np.zeros(24)
    assert margin_test(unchanged, -0.05, 0.05, -1, 1).p_above == pytest.approx(0.95**24, abs=0.02)
    few = np.append(np.zeros(97), [-1.0, -1.0, -1.0])
    assert carriers(few) == pytest.approx(3, abs=0.3) and carriers(few) < FEWEST_CARRIERS
    found = margin_test(few, -0.08, 0.05, -1, 1)
    assert found.p_above == pytest.approx(stats.binom.cdf(3, 100, 0.08), abs=0.01)
    assert found.low == pytest.approx(-stats.binomtest(3, 100).proportion_ci(0.9, "exact").high, abs=0.004)
    many = np.append(np.zeros(9_997), [-1.0, -1.0, -1.0])
    assert margin_test(many, -0.001, 0.05, -1, 1).p_above == pytest.approx(stats.poisson.cdf(3, 10), abs=0.01)
    assert margin_test(np.ones(1), 0.5, 0.05, 0, 1).p_above == pytest.approx(0.5, abs=0.02), "one prompt says little"


@pytest.mark.parametrize("loss", ["by little on all", "wholly on few", "on a skewed lot"])
def test_a_truly_worse_checkpoint_is_passed_in_at_most_alpha_of_studies(loss: str) -> None:
    """Its mean is worse by just the margin, 0.05, in 400 studies of 40 prompts; 0.033 are three standard errors."""
    random = np.random.default_rng(11)
    draws = {
        "by little on all": lambda: random.normal(-0.05, 0.2, 40),
        "wholly on few": lambda: -(random.random(40) < 0.05).astype(float),
        "on a skewed lot": lambda: -np.minimum(random.exponential(0.05, 40), 1.0),
    }
    passed = np.mean([margin_test(draws[loss](), -0.05, 0.05, -1, 1).p_above <= 0.05 for _ in range(400)])
    assert passed <= 0.05 + 0.033

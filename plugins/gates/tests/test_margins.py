"""Gaffke's test of a mean respects its error rate in hard cases, and its power is reported correctly.

The error rate is computed exactly if the outcomes can be enumerated. Otherwise it is estimated from 4,000 simulated
studies; at most 5% plus three standard errors (1%) of them may be wrong.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from plumbline.plugins.gates.margins import (
    MAX_DISTINCT_VALUES,
    compute_p_value,
    count_needed_prompts,
    find_smallest_difference,
    make_sample,
    run_margin_test,
)

Floats = NDArray[np.float64]
PAGE_FILE = Path(__file__).parents[1] / "README.md"
N_STUDIES = 4_000
MAX_PASSING_SHARE = 0.05 + 0.0105


def make_losses(n: int, k: int, size: float = 1.0) -> Floats:
    return np.append(np.zeros(n - k), np.full(k, -size))


@pytest.mark.parametrize("n", [1, 2, 5, 30, 140, 3_000])
def test_binary_losses_give_clopper_and_pearsons_p_value(n: int) -> None:
    for k in {0, 1, 2, n // 10, n // 3, n} - set(range(n + 1, 9)):
        for margin in (0.001, 0.03, 0.1, 0.6, 0.99):
            found = compute_p_value(make_sample(make_losses(n, k), -1), -margin)
            assert found == pytest.approx(float(stats.binom.cdf(k, n, margin)) if k < n else 1.0, abs=1e-6)
        low = run_margin_test(make_losses(n, k), -0.1, 0.05, -1, 1).low
        assert low == pytest.approx(-stats.binomtest(k, n).proportion_ci(0.9, "exact").high, abs=1e-6)


@pytest.mark.parametrize("n", [1, 3, 12, 60])
def test_the_p_value_agrees_with_uniformly_drawn_weights(n: int) -> None:
    random = np.random.default_rng(n)
    values = np.clip(random.normal(0, 0.3, n), -1, 1)
    means = random.dirichlet(np.ones(n + 1), 100_000) @ np.append(values, -1)
    for bound in np.quantile(means, [0.001, 0.05, 0.3, 0.9]):
        error = 4 * np.sqrt(np.mean(means <= bound) / 100_000)
        assert compute_p_value(make_sample(values, -1), bound) == pytest.approx(np.mean(means <= bound), abs=error)


def test_a_rule_passes_exactly_if_the_end_of_the_interval_is_beyond_its_bound() -> None:
    random = np.random.default_rng(5)
    for n in (2, 9, 40, 700):
        values = np.round(random.beta(0.3, 0.3, n) - random.beta(0.3, 0.3, n), 1)
        found = run_margin_test(values, 0, 0.05, -1, 1)
        assert (
            compute_p_value(make_sample(values, -1), found.low - 1e-7)
            <= 0.05
            < compute_p_value(make_sample(values, -1), found.low + 1e-6)
        )
        assert run_margin_test(values, found.high, 0.05, -1, 1).p_below == pytest.approx(0.05, abs=1e-6)
        assert found.low < found.mean < found.high


def test_more_or_larger_losses_never_lower_the_p_value() -> None:
    """A t test from the eighth loss on, instead of Gaffke's test, would break this property.

    With 140 prompts, the p-value would fall from 0.024 for seven losses to 0.016 for eight.
    """
    for margin in (0.1, 0.02):
        p_values = [compute_p_value(make_sample(make_losses(140, k), -1), -margin) for k in range(141)]
        assert (np.diff(p_values) >= -1e-9).all()
    random = np.random.default_rng(2)
    for _ in range(300):
        values = np.round(random.normal(0.05, 0.3, 40), 1).clip(-1, 1)
        worse = np.where(random.random(40) < 0.2, np.maximum(values - random.random(40), -1), values)
        assert compute_p_value(make_sample(worse, -1), -0.1) >= compute_p_value(make_sample(values, -1), -0.1) - 1e-9


@pytest.mark.parametrize("alpha", [0.01, 0.02, 0.05])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1, 0.5, 0.93])
def test_binary_losses_at_the_margin_pass_with_probability_at_most_alpha(rate: float, alpha: float) -> None:
    """The probability is exact: the number of losses has a binomial distribution."""
    for n in (1, 8, 12, 30, 140, 400):
        passed = [k for k in range(n + 1) if compute_p_value(make_sample(make_losses(n, k), -1), -rate) <= alpha]
        assert stats.binom.pmf(passed, n, rate).sum() <= alpha + 1e-6
        assert passed == [k for k in range(n + 1) if stats.binom.cdf(k, n, rate) <= alpha and k < n]


@pytest.mark.parametrize("n", [4, 12, 25])
def test_a_mean_at_the_bound_passes_with_probability_at_most_alpha_if_losses_have_two_sizes(n: int) -> None:
    """The probability is exact: it sums all outcomes of prompts that lose 1, lose 0.2, stay equal or gain 0.5."""
    sizes = np.array([-1.0, -0.2, 0.0, 0.5])
    counts = [(i, j, k, n - i - j - k) for i in range(n + 1) for j in range(n + 1 - i) for k in range(n + 1 - i - j)]
    for rates in ((0.02, 0.3, 0.67, 0.01), (0.1, 0.05, 0.85, 0.0), (0.05, 0.05, 0.5, 0.4), (0.3, 0.0, 0.1, 0.6)):
        chances = stats.multinomial.pmf(counts, n, rates)
        mean = float(np.dot(rates, sizes))
        passed = sum(
            chance
            for count, chance in zip(counts, chances, strict=True)
            if chance > 1e-6 and compute_p_value(make_sample(np.repeat(sizes, count), -1), mean) <= 0.05
        )
        assert passed <= 0.05


def draw_fractions(random: np.random.Generator, n: int, n_questions: int, rate: float) -> Floats:
    """Draw the changes in n scores that were 1 before; each new score is the fraction of questions that pass.

    `rate` is the probability that a question fails.
    """
    return random.binomial(n_questions, 1 - rate, n) / n_questions - 1.0


HARD_DISTRIBUTIONS: dict[str, tuple[float, Callable[[np.random.Generator, int], Floats]]] = {
    "small losses on all prompts": (-0.05, lambda random, n: random.normal(-0.05, 0.2, n).clip(-1, 1)),
    "complete losses on 5%": (-0.05, lambda random, n: -(random.random(n) < 0.05).astype(float)),
    "skewed losses": (-0.0632, lambda random, n: -random.beta(0.2, 2.964, n)),
    "complete losses on 2%, and noise": (
        -0.02,
        lambda random, n: random.normal(0, 0.01, n) - (random.random(n) < 0.02),
    ),
    "complete losses on 10%": (-0.1, lambda random, n: -(random.random(n) < 0.1).astype(float)),
    "fractions of 3 questions": (-0.1, partial(draw_fractions, n_questions=3, rate=0.1)),
    "fractions of 7 questions, near the full score": (-0.01, partial(draw_fractions, n_questions=7, rate=0.01)),
    "losses of a third on some, small gains on others": (
        -0.1,
        lambda random, n: random.choice([-1 / 3, 0.0, 1 / 30], n, p=[0.33, 0.37, 0.3]),
    ),
    "all four seeds of a prompt fail together": (
        -0.08,
        lambda random, n: -np.repeat(random.random((n, 1)) < 0.08, 4, axis=1).mean(axis=1),
    ),
    "losses of a third on 90%": (-0.3, lambda random, n: -(random.random(n) < 0.9).astype(float) / 3),
}
"""Distributions of a candidate's losses, each with its true mean, which is used as the margin."""


def draw_studies(loss: str, n: int) -> Floats:
    return HARD_DISTRIBUTIONS[loss][1](np.random.default_rng(11), N_STUDIES * n).reshape(N_STUDIES, n)


def estimate_passing_fraction(loss: str, n: int) -> float:
    """Return the fraction of simulated studies that pass; identical studies are tested only once."""
    mean = HARD_DISTRIBUTIONS[loss][0]
    samples, times = np.unique(np.sort(draw_studies(loss, n)), axis=0, return_counts=True)
    passed = sum(
        int(count)
        for study, count in zip(samples, times, strict=True)
        if study.mean() > mean and compute_p_value(make_sample(study, min(-1.0, study.min())), mean) <= 0.05
    )
    return passed / N_STUDIES


@pytest.mark.parametrize("n", [8, 30, 140])
@pytest.mark.parametrize("loss", HARD_DISTRIBUTIONS)
def test_a_truly_worse_checkpoint_passes_in_at_most_alpha_of_studies(loss: str, n: int) -> None:
    assert draw_studies(loss, n).mean() == pytest.approx(HARD_DISTRIBUTIONS[loss][0], abs=0.005)
    assert estimate_passing_fraction(loss, n) <= MAX_PASSING_SHARE


def test_the_readmes_table_matches_these_simulations() -> None:
    """If no prompt of a study has a loss, the standard error is 0, and the p-value of the t test counts as 0."""
    rows = re.findall(r"\| (.+) \| (\d+) \| ([\d.]+)% \| ([\d.]+)% \|", PAGE_FILE.read_text())
    assert len(rows) == 5
    for loss, n, by_t, by_gate in rows:
        studies = draw_studies(loss, int(n))
        error = np.maximum(studies.std(axis=1, ddof=1), 1e-12) / int(n) ** 0.5
        p_values = stats.t.sf((studies.mean(axis=1) - HARD_DISTRIBUTIONS[loss][0]) / error, int(n) - 1)
        assert 100 * np.mean(p_values <= 0.05) == pytest.approx(float(by_t), abs=0.06)
        assert 100 * estimate_passing_fraction(loss, int(n)) == pytest.approx(float(by_gate), abs=0.06)


@pytest.mark.parametrize("loss", HARD_DISTRIBUTIONS)
def test_a_checkpoint_that_is_just_good_enough_is_called_worse_in_at_most_alpha_of_studies(loss: str) -> None:
    random = np.random.default_rng(12)
    mean, draw = HARD_DISTRIBUTIONS[loss]
    studies = draw(random, 2_000 * 30).reshape(2_000, 30)
    samples, times = np.unique(np.sort(studies), axis=0, return_counts=True)
    failed = sum(
        int(count)
        for study, count in zip(samples, times, strict=True)
        if study.mean() < mean and compute_p_value(make_sample(-study, -1), -mean) <= 0.05
    )
    assert failed / 2_000 <= 0.05 + 0.0147


def test_the_smallest_detectable_difference_is_exact_for_equal_scores() -> None:
    """With equal scores, n prompts can show a difference d if (1 - d)^n is at most 0.05.

    For d = 0.05, this needs 59 prompts; 12 prompts can show d = 1 - 0.05^(1/12).
    """
    equal = np.zeros(12)
    assert count_needed_prompts(equal, -0.05, 0.05, -1, 0.0) == 59
    assert find_smallest_difference(run_margin_test(equal, -0.05, 0.05, -1, 1)) == pytest.approx(
        1 - 0.05 ** (1 / 12), abs=1e-6
    )
    assert count_needed_prompts(equal, 0.0, 0.05, -1, 0.0) is None, "a mean equal to the bound never passes"
    assert count_needed_prompts(np.zeros(1), -1e-10, 0.05, -1, 0.0) is None, (
        "more prompts than the maximum would be needed"
    )


@pytest.mark.parametrize("loss", ["small losses on all prompts", "complete losses on 5%", "fractions of 3 questions"])
def test_the_suggested_number_of_prompts_has_80_percent_power(loss: str) -> None:
    """The power is estimated from 300 studies of that size, whose prompts are drawn from the observed prompts.

    It may be 10% higher or lower, because the means of such studies are discrete.
    """
    random = np.random.default_rng(4)
    _, draw = HARD_DISTRIBUTIONS[loss]
    seen = draw(random, 60)
    bound = float(seen.mean()) - 0.06
    needed = count_needed_prompts(seen, bound, 0.05, -1, float(seen.mean()))
    assert needed is not None and needed > 60
    studies = random.choice(seen, (300, needed))
    shown = np.mean([compute_p_value(make_sample(study, -1), bound) <= 0.05 for study in studies])
    assert shown == pytest.approx(0.8, abs=0.1)


def test_scaling_a_sample_equals_repeating_its_values() -> None:
    values = np.array([-1.0, 0.0, 0.0, 0.25])
    assert compute_p_value(make_sample(values, -1).scale(3), -0.4) == pytest.approx(
        compute_p_value(make_sample(np.repeat(values, 3), -1), -0.4), abs=1e-9
    )


def test_too_many_distinct_values_are_rounded_down() -> None:
    values = np.random.default_rng(1).normal(0, 0.2, MAX_DISTINCT_VALUES + 9).clip(-1, 1)
    sample = make_sample(values, -1)
    assert len(sample.values) <= MAX_DISTINCT_VALUES and sample.counts.sum() == len(values)
    mean = float(sample.values @ sample.counts / sample.counts.sum())
    assert values.mean() - 4 / MAX_DISTINCT_VALUES < mean <= values.mean()


def test_p_values_and_intervals_respect_the_limits_of_the_values() -> None:
    assert (
        run_margin_test(np.ones(3), 1.0, 0.05, 0, 1).p_above == 1
        and run_margin_test(np.ones(3), -0.1, 0.05, 0, 1).p_above == 0
    )
    assert (
        run_margin_test(np.zeros(3), 0.5, 0.05, 0, 1).low == 0
        and run_margin_test(np.ones(3), 0.5, 0.05, 0, 1).high == 1
    )

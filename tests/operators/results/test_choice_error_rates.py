"""Intervals and tests for a judge's choices have their stated error rates in simulations with known strengths.

With `-s`, the tests print the counts that docs/pairs.md shows.
"""

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import kstest

from plumbline.operators.results.choices import ChoiceResults, compare_pairs
from plumbline.operators.statistics.bradley_terry import (
    ELO_PER_UNIT,
    estimate_strengths,
    find_components,
    fit_strengths,
    make_contrasts,
)
from plumbline.operators.statistics.order_bias import measure_order_bias
from plumbline.operators.statistics.ordering import compute_sign_flip_p_value, holm, signed_rank
from plumbline.operators.statistics.shares import compute_share_interval
from tests.operators.choosing import Floats, Judge

N_STUDIES = 1000
N_FEW_STUDIES = 300
N_MANY_PROMPTS = 50_000
"""Number of prompts from which the true win rates and strengths are computed."""
JUDGES = {
    "replies": Judge((), bias=0.5, ties=0.2),
    "probabilities": Judge((), bias=0.5, replies=False),
    "prompts that differ much": Judge((), bias=0.5, spread=2.5),
}


def make_judge(name: str, generators: int) -> Judge:
    """Return a judge of generators with strengths from 0 to 1.5; the strongest beats the weakest in about 75%."""
    return JUDGES[name]._replace(strengths=tuple(np.linspace(0, 1.5, generators).tolist()))


class Coverage(NamedTuple):
    """Counts of the intervals in simulated studies, to compute how many contain the truth."""

    covering: int
    """Number of intervals that contain the truth."""
    intervals: int
    """Number of intervals that are defined."""
    possible: int
    """Number of intervals if all were defined."""

    @property
    def rate(self) -> float:
        return self.covering / self.intervals


def measure_win_rate_coverage(judge: Judge, prompts: int, studies: int) -> Coverage:
    random, truth = np.random.default_rng(0), judge.draw_outcomes(np.random.default_rng(1), N_MANY_PROMPTS).mean(axis=0)
    covering = 0
    for _ in range(studies):
        won = judge.draw_outcomes(random, prompts)
        rates = won.mean(axis=0)
        for true, rate, residuals in zip(truth, rates, (won - rates).T / prompts, strict=True):
            low, high = compute_share_interval(float(rate), residuals)
            covering += bool(low <= true <= high)
    return Coverage(covering, studies * len(truth), studies * len(truth))


def measure_strength_coverage(judge: Judge, prompts: int, studies: int) -> Coverage:
    random, generators, (first, second) = np.random.default_rng(2), len(judge.strengths), judge.pairs
    truth = find_true_strengths(judge)
    covering = intervals = 0
    for _ in range(studies):
        won = judge.draw_outcomes(random, prompts)
        if len(find_components(first, second, won, generators).sizes) == 1:
            found = estimate_strengths(first, second, won, generators)
            covering += int(((found.low <= truth) & (truth <= found.high)).sum())
            intervals += int(np.isfinite(found.low).sum())
    return Coverage(covering, intervals, studies * generators)


def find_true_strengths(judge: Judge) -> Floats:
    """Return the strengths, in Elo points, that fit the win rates over N_MANY_PROMPTS prompts, by generator."""
    first, second = judge.pairs
    rates = judge.draw_outcomes(np.random.default_rng(3), N_MANY_PROMPTS).mean(axis=0)
    return ELO_PER_UNIT * fit_strengths(make_contrasts(first, second, len(judge.strengths)), rates, np.ones(len(first)))


def find_highest_rate(prompts: int) -> float:
    """Return the highest coverage that the tests accept for 95% intervals.

    It is higher with ten prompts: outcomes then have so few values that no interval is exact, and ours are too wide.
    """
    return 0.99 if prompts == 10 else 0.975


CASES = [(10, 3), (30, 8), (100, 5)]
SLOW_CASES = [(prompts, generators) for prompts in (10, 30, 100, 300) for generators in (2, 3, 5, 8)]


def list_cases(*, min_generators: int) -> list[Any]:
    """Return test parameters: a judge's name, and the numbers of prompts, generators and studies.

    Cases with at least `min_generators` generators and many studies only run in `make slow`.
    """
    few = [pytest.param(name, *case, N_FEW_STUDIES) for name in JUDGES for case in CASES]
    every = [(name, *case, N_STUDIES) for name in JUDGES for case in SLOW_CASES if case[1] >= min_generators]
    return few + [pytest.param(*case, marks=pytest.mark.slow) for case in every]


@pytest.mark.parametrize(("name", "prompts", "generators", "studies"), list_cases(min_generators=2))
def test_an_interval_of_a_win_rate_contains_the_truth_in_93_to_97_of_100_studies(
    name: str, prompts: int, generators: int, studies: int
) -> None:
    found = measure_win_rate_coverage(make_judge(name, generators), prompts, studies)
    print(f"\nwin rates, {name}, {prompts} prompts, {generators} generators: {found}")
    assert 0.93 <= found.rate <= find_highest_rate(prompts)


@pytest.mark.parametrize(("name", "prompts", "generators", "studies"), list_cases(min_generators=3))
def test_an_interval_of_a_strength_contains_the_truth_in_93_to_97_of_100_studies(
    name: str, prompts: int, generators: int, studies: int
) -> None:
    found = measure_strength_coverage(make_judge(name, generators), prompts, studies)
    print(f"\nstrengths, {name}, {prompts} prompts, {generators} generators: {found}")
    assert 0.93 <= found.rate <= find_highest_rate(prompts)
    assert found.intervals >= (0.9 if prompts == 10 else 0.99) * found.possible


def count_separated_equals(judge: Judge, prompts: int, studies: int) -> int:
    """Return the number of studies in which two equally strong generators do not share a letter."""
    random, (first, second), false = np.random.default_rng(4), judge.pairs, 0
    equal = np.array([judge.strengths[a] == judge.strengths[b] for a, b in zip(first, second, strict=True)])
    for _ in range(studies):
        corrected = holm([compute_sign_flip_p_value(2 * won - 1) for won in judge.draw_outcomes(random, prompts).T])
        false += bool((np.array(corrected)[equal] < 0.05).any())
    return false


STRENGTHS_BY_CASE = {
    "all equal": (0.0,) * 6,
    "one better": (0.0,) * 5 + (1.5,),
    "three classes": (0.0, 0.0, 1.0, 1.0, 2.0, 2.0),
}


@pytest.mark.parametrize("prompts", [10, pytest.param(30, marks=pytest.mark.slow), 100])
@pytest.mark.parametrize("family", STRENGTHS_BY_CASE)
@pytest.mark.parametrize("name", JUDGES)
def test_equal_generators_get_different_letters_in_at_most_5_of_100_studies(
    name: str, family: str, prompts: int
) -> None:
    studies = 400
    tolerated = 0.05 + 2 * (0.05 * 0.95 / studies) ** 0.5
    judge = JUDGES[name]._replace(strengths=STRENGTHS_BY_CASE[family])
    false = count_separated_equals(judge, prompts, studies)
    print(f"\nletters, {name}, {prompts} prompts, {family}: {false} of {studies} studies are wrong")
    assert false / studies <= tolerated


def draw_unequal_wins(random: np.random.Generator, prompts: int) -> Floats:
    """Return outcomes with mean 0.5: one generator rarely wins by a large margin, and often loses by a small one."""
    return np.where(random.random(prompts) < 1 / 3, 1.0, 0.25)


def test_equal_win_rates_differ_clearly_in_at_most_5_of_100_studies_even_if_wins_are_larger_than_losses() -> None:
    """The signed-rank test finds a difference far more often, because it compares ranks instead of win rates."""
    random = np.random.default_rng(5)
    every = [2 * draw_unequal_wins(random, 200) - 1 for _ in range(N_STUDIES)]
    false = sum(compute_sign_flip_p_value(leads) < 0.05 for leads in every)
    by_ranks = sum(signed_rank(leads, np.zeros(200)).p_value < 0.05 for leads in every)
    print(
        f"\nwith equal win rates, {false} of {N_STUDIES} studies find a difference; {by_ranks} by the signed-rank test"
    )
    assert false / N_STUDIES <= 0.05 + 2 * (0.05 * 0.95 / N_STUDIES) ** 0.5 and by_ranks / N_STUDIES > 0.2


def draw_bias_p_values(judge: Judge, prompts: int, studies: int) -> Floats:
    random, pairs = np.random.default_rng(6), len(judge.pairs[0])
    codes = np.repeat(np.arange(prompts), pairs)
    every = (judge.choose(random, prompts) for _ in range(studies))
    return np.array([measure_order_bias(codes, one.ravel(), other.ravel()).p_value for one, other in every])


@pytest.mark.parametrize("prompts", [10, 60])
def test_p_values_of_the_order_bias_are_uniform_without_bias_and_small_with_bias(prompts: int) -> None:
    """With ten prompts, many sums of signs are equal, so small p-values are rarer than if they were uniform."""
    fair = make_judge("replies", 5)._replace(bias=0.0)
    p_values = draw_bias_p_values(fair, prompts, N_STUDIES)
    print(f"\norder bias, {prompts} prompts: {(p_values < 0.05).sum()} of {N_STUDIES} p-values are below 0.05")
    assert kstest(p_values, "uniform", alternative="greater" if prompts == 10 else "two-sided").pvalue > 0.01
    biased = draw_bias_p_values(fair._replace(bias=1.0), prompts, 200)
    assert np.mean(biased < 0.05) > (0.7 if prompts == 10 else 0.999)


def test_the_share_of_first_images_has_a_valid_interval() -> None:
    judge, random, covering = make_judge("replies", 4), np.random.default_rng(7), 0
    codes = np.repeat(np.arange(40), 6)
    truth = sum(order.mean() for order in judge.choose(np.random.default_rng(8), N_MANY_PROMPTS)) / 2
    for _ in range(N_STUDIES):
        one, other = judge.choose(random, 40)
        low, high = measure_order_bias(codes, one.ravel(), other.ravel()).interval
        covering += low <= truth <= high
    assert 0.93 <= covering / N_STUDIES <= 0.97


@pytest.mark.slow
def test_the_whole_comparison_keeps_its_promises_in_500_studies() -> None:
    """Two of the four generators are equally strong, and 5% of the comparisons have failed."""
    judge = Judge((0.0, 0.0, 1.0, 2.0), bias=0.5, ties=0.2)
    random, names = np.random.default_rng(9), ["g0", "g1", "g2", "g3"]
    rates, strengths = (
        judge.draw_outcomes(np.random.default_rng(1), N_MANY_PROMPTS).mean(axis=0),
        find_true_strengths(judge),
    )
    true_rate = dict(zip(combinations(names, 2), rates.tolist(), strict=True))
    inside = {"pairs": 0, "generators": 0, "strengths": 0}
    false, studies = 0, 500
    for _ in range(studies):
        table = judge.compare(random, 40)
        table.loc[random.random(len(table)) < 0.05, "p_first"] = None
        found: ChoiceResults = compare_pairs(table)
        for duel in found.overall.duels:
            lead = 2 * true_rate[duel.generator_a, duel.generator_b] - 1
            inside["pairs"] += duel.low <= lead <= duel.high
            false += duel.better is not None and (duel.generator_a, duel.generator_b) == ("g0", "g1")
        for row in found.overall.rows:
            own = [
                rate if row.generator == a else 1 - rate
                for (a, b), rate in true_rate.items()
                if row.generator in (a, b)
            ]
            inside["generators"] += row.low <= np.mean(own) <= row.high
        for name, strength in zip(names, strengths, strict=True):
            low, high = found.strengths[name].interval
            inside["strengths"] += low <= strength <= high
    possible = {"pairs": 6 * studies, "generators": 4 * studies, "strengths": 4 * studies}
    assert all(0.93 <= inside[kind] / count <= 0.97 for kind, count in possible.items()), inside
    assert false / studies <= 0.05

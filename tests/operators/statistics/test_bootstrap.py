"""Bootstrap intervals over prompts have their stated coverage, and are reproducible from their seed."""

import math

import numpy as np
import pytest

from plumbline.operators.statistics.bootstrap import Prompts
from plumbline.operators.statistics.options import Sampling
from plumbline.operators.statistics.ties import calibrate_ties


def test_the_interval_depends_on_the_seed_and_not_on_the_row_order() -> None:
    values = np.arange(12.0)
    prompts = [f"p{n // 3}" for n in range(12)]
    order = np.random.default_rng(0).permutation(12)
    shuffled = Prompts([prompts[n] for n in order]).mean_interval(values[order])
    assert Prompts(prompts).mean_interval(values) == pytest.approx(shuffled)
    assert Prompts(prompts, Sampling(seed=1)).mean_interval(values) != shuffled


def test_copies_of_images_do_not_narrow_an_interval() -> None:
    values = np.random.default_rng(0).normal(size=40)
    once = Prompts([str(n) for n in range(40)]).mean_interval(values)
    tenfold = Prompts([str(n) for n in range(40)] * 10).mean_interval(np.tile(values, 10))
    assert tenfold == pytest.approx(once)


def test_intervals_of_a_mean_contain_the_truth_about_as_often_as_promised() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        values = random.normal(size=60)
        low, high = Prompts([str(n) for n in range(60)], Sampling(resamples=300, seed=trial)).mean_interval(values)
        covered += low <= 0 <= high
    assert 175 <= covered <= 199


def test_the_general_interval_of_a_mean_agrees_with_the_fast_one() -> None:
    random = np.random.default_rng(0)
    values, prompts = random.normal(size=90), [str(n // 3) for n in range(90)]
    general = Prompts(prompts, Sampling(resamples=4000)).interval(lambda rows: float(values[rows].mean()))
    assert general == pytest.approx(Prompts(prompts, Sampling(resamples=4000)).mean_interval(values), abs=0.02)


@pytest.mark.parametrize("grouped", [False, True])
def test_pairwise_intervals_contain_the_accuracy_and_equal_those_of_resampled_rows(grouped: bool) -> None:
    random = np.random.default_rng(0)
    human = random.integers(1, 6, 120).astype(float)
    metric = human + random.normal(size=120)
    names = [str(n // 4) for n in range(120)]
    prompts = Prompts(names)
    found = calibrate_ties(human, metric, names if grouped else None)
    low, high = prompts.pairwise_interval(human, metric, found.epsilon, grouped=grouped)
    assert low < found.accuracy < high
    assert 0.02 < high - low < 0.25


def test_one_prompt_has_no_interval() -> None:
    assert all(math.isnan(edge) for edge in Prompts(["p", "p"]).mean_interval(np.array([1.0, 2.0])))

"""The exchange test stays within its error rate in 2,000 simulated studies per hard case, and detects random raters."""

from collections.abc import Callable

import numpy as np
import pytest

from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.plugins.rating.exchange_test import run_exchange_test

Study = Callable[[np.random.Generator], np.ndarray]
N_STUDIES = 2000
MAX_FLAGGED_SHARE = SIGNIFICANCE + 2 * (SIGNIFICANCE * (1 - SIGNIFICANCE) / N_STUDIES) ** 0.5


def draw_rare_twos(random: np.random.Generator) -> np.ndarray:
    return np.where(random.random((40, 3)) < 0.07, 2.0, 5.0)


def draw_answers_with_few_bad_images(random: np.random.Generator) -> np.ndarray:
    """Return three raters' answers to 40 tasks.

    A tenth of the images are bad, and each rater notices a bad image with probability 0.6.
    """
    seen = np.where(random.random(40) < 0.1, 0.6, 0.01)[:, None]
    return np.where(random.random((40, 3)) < seen, 2.0, 5.0)


def draw_answers_with_gaps(random: np.random.Generator) -> np.ndarray:
    truth = random.normal(size=(14, 1))
    answers = np.clip(np.round(3 + truth + random.normal(0, 0.8, (14, 4))), 1, 5)
    return np.where(random.random((14, 4)) < 0.2, np.nan, answers)


def flag_raters(answers: np.ndarray, seed: int) -> list[int]:
    tasks, raters = answers.shape
    p_values = [run_exchange_test(answers, np.zeros(tasks, np.intp), rater, seed) for rater in range(raters)]
    return [rater for rater, p_value in enumerate(p_values) if raters * p_value <= SIGNIFICANCE]


@pytest.mark.parametrize(
    "study",
    [pytest.param(draw_rare_twos, marks=pytest.mark.slow), draw_answers_with_few_bad_images, draw_answers_with_gaps],
)
def test_a_rater_like_the_others_is_flagged_in_at_most_5_of_100_studies(study: Study) -> None:
    random = np.random.default_rng(0)
    wrong = sum(bool(flag_raters(study(random), seed)) for seed in range(N_STUDIES))
    assert wrong / N_STUDIES <= MAX_FLAGGED_SHARE


def test_only_the_random_rater_is_flagged_in_95_of_100_studies() -> None:
    random = np.random.default_rng(1)
    found = wronged = 0
    for seed in range(100):
        answers = np.clip(np.round(3 + 1.2 * (random.normal(size=(80, 1)) + random.normal(0, 0.7, (80, 4)))), 1, 5)
        answers[:, 3] = random.integers(1, 6, 80)
        raters = flag_raters(answers, seed)
        found += 3 in raters
        wronged += bool(set(raters) - {3})
    assert found >= 95 and wronged <= 5


def test_a_severe_rater_who_agrees_on_the_order_is_not_flagged() -> None:
    random = np.random.default_rng(2)
    wrong = 0
    for seed in range(200):
        answers = random.normal(size=(40, 1)) + random.normal(0, 0.7, (40, 3))
        answers[:, 0] -= 2
        wrong += 0 in flag_raters(answers, seed)
    assert wrong <= 0.05 * 200


def test_equal_answers_and_tasks_with_two_answers_have_a_p_value_of_1() -> None:
    templates = np.zeros(30, np.intp)
    assert run_exchange_test(np.full((30, 3), 5.0), templates, 0) == 1
    assert run_exchange_test(np.random.default_rng(3).normal(size=(30, 2)), templates, 0) == 1
    assert run_exchange_test(np.full((30, 3), np.nan), templates, 0) == 1

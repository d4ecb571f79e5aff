"""How many pairs the signed-rank test wants: the least is exact, and what is asked for shows the difference."""

import numpy as np
import pytest

from plumbline.operators.statistics.ordering import holm, signed_rank
from plumbline.operators.statistics.power import CHANCE, fewest_pairs, pairs_needed


@pytest.mark.parametrize("tests", [1, 3, 10, 29, 435])
def test_with_the_fewest_pairs_one_outcome_is_significant_and_with_one_pair_less_none(tests: int) -> None:
    for pairs, significant in ((fewest_pairs(tests, 0.05), True), (fewest_pairs(tests, 0.05) - 1, False)):
        least = signed_rank(np.arange(1.0, pairs + 1), np.zeros(pairs)).p_value
        assert (holm([least, *[1.0] * (tests - 1)])[0] < 0.05) == significant


@pytest.mark.parametrize(("shift", "tests"), [(0.3, 1), (0.5, 1), (0.5, 29), (0.8, 435)])
def test_the_pairs_asked_for_show_a_normal_difference_about_as_often_as_promised(shift: float, tests: int) -> None:
    random = np.random.default_rng(0)
    many = random.normal(shift, 1, 4_000)
    pairs = pairs_needed(signed_rank(many, np.zeros(len(many))).effect, tests, 0.05)
    found = [signed_rank(random.normal(shift, 1, pairs), np.zeros(pairs)).p_value for _ in range(300)]
    shown = np.mean(np.array(found) * tests < 0.05)
    assert CHANCE - 0.1 < shown < CHANCE + 0.17

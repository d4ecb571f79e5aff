"""Correlations and AUROC: by hand, and undefined where nothing varies."""

import math

import numpy as np
import pytest

from plumbline.operators.statistics.correlation import STATISTICS, auroc

HUMAN, METRIC = np.array([1.0, 2, 2, 4]), np.array([0.1, 0.3, 0.2, 0.9])


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("pearson", 0.97664),
        ("spearman", 0.94868),
        ("kendall_a", 5 / 6),
        ("kendall_b", 5 / math.sqrt(5 * 6)),
        ("kendall_c", 2 * 5 * 3 / (16 * 2)),
    ],
)
def test_they_are_what_their_formulas_say(name: str, by_hand: float) -> None:
    assert STATISTICS[name](HUMAN, METRIC) == pytest.approx(by_hand, abs=1e-4)


@pytest.mark.parametrize("name", sorted(STATISTICS))
def test_they_are_undefined_where_all_ratings_are_equal(name: str) -> None:
    assert math.isnan(STATISTICS[name](np.ones(4), METRIC))


@pytest.mark.parametrize("name", ["pearson", "spearman", "kendall_a", "kendall_b", "kendall_c"])
def test_they_are_undefined_where_all_scores_are_equal_or_there_is_one(name: str) -> None:
    assert math.isnan(STATISTICS[name](HUMAN, np.ones(4)))
    assert math.isnan(STATISTICS[name](HUMAN[:1], METRIC[:1]))


def test_auroc_counts_ties_half_and_wants_two_labels() -> None:
    labels = np.array([0.0, 0, 1, 1])
    assert auroc(labels, np.array([0.1, 0.5, 0.5, 0.9])) == pytest.approx(3.5 / 4)
    with pytest.raises(ValueError, match="two labels, found 3"):
        auroc(HUMAN, METRIC)

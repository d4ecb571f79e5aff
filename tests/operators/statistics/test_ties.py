"""Tie calibration finds the same accuracy and threshold as brute force, however the search is partitioned."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from plumbline.operators.statistics import ties
from plumbline.operators.statistics.rounding import choose_step, merge_equal
from plumbline.operators.statistics.ties import calibrate_ties


def calibrate_by_brute_force(human: np.ndarray, metric: np.ndarray, groups: np.ndarray | None) -> tuple[float, float]:
    """Return the best accuracy and the lowest threshold that reaches it, by trying 0 and all differences."""
    metric, step = merge_equal(metric), choose_step(metric)
    i, j = np.triu_indices(len(human), 1)
    if groups is not None:
        i, j = i[groups[i] == groups[j]], j[groups[i] == groups[j]]
    difference = np.abs(metric[i] - metric[j])
    by_people, by_metric = np.sign(human[i] - human[j]), np.sign(metric[i] - metric[j])
    weights = np.ones(len(i)) if groups is None else 1 / np.bincount(groups[i])[groups[i]]
    best = (-1.0, math.nan)
    found = np.unique(np.append(difference, 0.0))
    for epsilon in found[np.append(np.diff(np.ceil(found / step - 0.5)) > 0, True) | (found == 0)]:
        right = np.where(difference <= epsilon, by_people == 0, by_people == by_metric)
        accuracy = float((weights * right).sum() / weights.sum())
        if accuracy > best[0] + 1e-12:
            best = accuracy, float(epsilon)
    return best


ROWS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.one_of(st.integers(0, 4).map(lambda n: n / 4), st.floats(-1, 1), st.sampled_from([0.1, 0.1 + 2e-17, 0.3])),
        st.integers(0, 3),
    ),
    min_size=2,
    max_size=40,
)


@pytest.mark.parametrize("pairs_at_once", [1, 4, 1 << 19])
@pytest.mark.parametrize("grouped", [False, True])
@settings(max_examples=150, deadline=None)
@example(rows=[(1, 1.0, 0), (1, 1e-12, 0), (2, 0.0, 0)])
@given(rows=ROWS)
def test_calibration_equals_brute_force_on_random_and_tie_heavy_rows(
    rows: list[tuple[int, float, int]], grouped: bool, pairs_at_once: int
) -> None:
    human, metric = np.array([row[0] for row in rows], float), np.array([row[1] for row in rows], float)
    groups = np.array([row[2] for row in rows]) if grouped else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ties, "PAIRS_AT_ONCE", pairs_at_once)
        found = calibrate_ties(human, metric, None if groups is None else groups.tolist())
    if groups is not None and len(set(groups.tolist())) == len(groups):
        assert found.pairs == 0 and math.isnan(found.accuracy)
        return
    accuracy, epsilon = calibrate_by_brute_force(human, metric, groups)
    assert found.accuracy == pytest.approx(accuracy, abs=1e-12)
    assert found.epsilon == epsilon


def test_a_search_in_many_small_ranges_finds_the_same_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    human = random.integers(0, 3, 600).astype(float)
    for metric in (human + random.normal(size=600), np.round(human + random.normal(size=600), 1)):
        whole = calibrate_ties(human, metric)
        assert whole.epsilon > 0
        monkeypatch.setattr(ties, "PAIRS_AT_ONCE", 50)
        assert calibrate_ties(human, metric) == whole
        monkeypatch.undo()


def test_a_constant_metric_is_right_about_the_ties() -> None:
    found = calibrate_ties([1, 1, 2, 3], [0.5] * 4)
    assert (found.accuracy, found.epsilon, found.pairs) == (1 / 6, 0.0, 6)


def test_the_threshold_that_ties_the_same_pairs_as_people_is_found() -> None:
    found = calibrate_ties([1, 1, 2, 2], [0.1, 0.2, 0.8, 0.9])
    assert found.accuracy == 1.0
    assert found.epsilon == pytest.approx(0.1)


def test_groups_have_equal_weight_regardless_of_their_size() -> None:
    human, metric = [1, 2, 1, 2, 3], [1, 2, 3, 2, 1]
    assert calibrate_ties(human, metric, ["a", "a", "b", "b", "b"]).accuracy == pytest.approx(0.5)
    assert calibrate_ties(human, metric).pairs == 10


def test_a_calibration_without_pairs_is_nan_and_a_missing_score_is_an_error() -> None:
    assert calibrate_ties([1.0], [1.0]).pairs == 0
    with pytest.raises(ValueError, match="leave out rows with missing or infinite values"):
        calibrate_ties([1.0, 2.0], [math.nan, 1.0])

"""People's labels beside predictions: the released package's numbers, and what few labels allow to be said."""

import numpy as np
import pytest

from plumbline.operators.statistics.prediction_powered import FEWEST_LABELS, enough, labels_needed, powered_mean


def made(seed: int = 0, labels: int = 40, others: int = 200) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    predictions = random.normal(0, 1, labels)
    said = np.round(0.6 * predictions + random.normal(0.3, 0.8, labels), 3)
    return said, np.round(predictions, 3), np.round(random.normal(0.1, 1, others), 3)


def test_estimate_and_error_are_those_of_ppi_python() -> None:
    """Version 0.2.3: `ppi_mean_pointestimate(y, f, u)` and `ppi_mean_ci(y, f, u, alpha=0.05)` of the same numbers."""
    found = powered_mean(*made())
    assert found.estimate == pytest.approx(0.53104389, abs=1e-8)
    low, high = found.estimate - 1.959963984540054 * found.error, found.estimate + 1.959963984540054 * found.error
    assert (low, high) == pytest.approx((0.25294342, 0.80914436), abs=1e-8)


def test_predictions_that_say_nothing_are_not_followed() -> None:
    said, predictions, others = made()
    found = powered_mean(said, np.zeros_like(predictions), np.zeros_like(others))
    assert (found.power, found.worth) == (0, 1)
    assert found.estimate == pytest.approx(said.mean())


def test_predictions_that_are_the_labels_make_each_worth_many() -> None:
    said, _, others = made()
    found = powered_mean(said, said, others * said.std() / others.std())
    assert 0.7 < found.power <= 1 and found.worth > 3


def test_an_interval_of_few_labels_covers_what_it_promises() -> None:
    random = np.random.default_rng(1)
    predictions, others = random.normal(0, 1, (2000, FEWEST_LABELS)), random.normal(0, 1, (2000, 200))
    said = 0.4 * predictions + random.normal(0, 1, predictions.shape)
    low, high = powered_mean(said, predictions, others).interval(0.95)
    assert ((low <= 0) & (high >= 0)).mean() >= 0.94


POPULATIONS = {
    "likert": lambda random: random.integers(-2, 3, 300).astype(float),
    "one in 20 worse": lambda random: -(random.random(300) < 0.05).astype(float),
    "one in 10 otherwise": lambda random: np.where(random.random(300) < 0.1, random.choice([-1.0, 1.0], 300), 0.0),
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_who_looks_at_every_label_until_something_is_told_is_wrong_in_5_of_100_cases_at_most(name: str) -> None:
    """Also of ratings that are mostly equal, of which nothing is told while too few differ."""
    random = np.random.default_rng(0)
    labels = POPULATIONS[name](random)
    predictions = labels / 2 + random.normal(0, 0.5, len(labels))
    orders = random.permuted(np.tile(np.arange(len(labels)), (400, 1)), axis=1)
    wrong = np.zeros(len(orders), bool)
    for n in range(FEWEST_LABELS, 100):
        rated, others = orders[:, :n], orders[:, n:]
        low, high = powered_mean(labels[rated], predictions[rated], predictions[others]).interval(0.95)
        wrong |= enough(labels[rated]) & ~((low <= labels.mean()) & (labels.mean() <= high))
    assert wrong.mean() <= 0.05


def test_more_labels_are_asked_for_where_the_difference_is_smaller() -> None:
    said, predictions, others = made(others=2000)
    wanted = [labels_needed(powered_mean(said - shift, predictions, others), 0.95, 0.8) for shift in (-0.3, 0.2, 0.5)]
    assert wanted[0] == len(said), "these are enough"
    assert wanted[1] is not None and len(said) < wanted[1] < 1000
    assert wanted[2] is None or wanted[2] > wanted[1]

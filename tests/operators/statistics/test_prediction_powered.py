"""Estimates from few labels and many predictions equal those of ppi_python, and their intervals are valid."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from plumbline.operators.statistics.prediction_powered import estimate_labels_needed, powered_mean

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]


def draw_ratings(seed: int = 0, n_labels: int = 40, n_others: int = 200) -> tuple[Floats, Floats, Floats]:
    random = np.random.default_rng(seed)
    predictions = random.normal(0, 1, n_labels)
    labels = np.round(0.6 * predictions + random.normal(0.3, 0.8, n_labels), 3)
    return labels, np.round(predictions, 3), np.round(random.normal(0.1, 1, n_others), 3)


def test_estimate_and_error_equal_those_of_ppi_python() -> None:
    """The values are from ppi_python 0.2.3: `ppi_mean_pointestimate(y, f, u)`, `ppi_mean_ci(y, f, u, alpha=0.05)`."""
    found = powered_mean(*draw_ratings())
    assert found.estimate == pytest.approx(0.53104389, abs=1e-8)
    low, high = found.estimate - 1.959963984540054 * found.error, found.estimate + 1.959963984540054 * found.error
    assert (low, high) == pytest.approx((0.25294342, 0.80914436), abs=1e-8)


def test_uninformative_predictions_are_ignored() -> None:
    labels, predictions, others = draw_ratings()
    found = powered_mean(labels, np.zeros_like(predictions), np.zeros_like(others))
    assert (found.power, found.worth) == (0, 1)
    assert found.estimate == pytest.approx(labels.mean())


def test_perfect_predictions_make_each_label_worth_many() -> None:
    labels, _, others = draw_ratings()
    found = powered_mean(labels, labels, others * labels.std() / others.std())
    assert 0.7 < found.power <= 1 and found.worth > 3


def draw_rating_differences(random: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Return differences between the mean ratings (three raters, scale 1 to 5) of two equally good generators."""
    a, b = (np.clip(np.round(random.normal(4, 0.7, (*shape, 3))), 1, 5).mean(axis=-1) for _ in range(2))
    return np.asarray(a - b)


def make_weighted_draw(values: Sequence[float], rates: Sequence[float]) -> Draw:
    return lambda random, shape: random.choice(np.asarray(values, np.float64), shape, p=rates)


LABEL_DISTRIBUTIONS: dict[str, tuple[float, Draw]] = {
    "likert": (4, draw_rating_differences),
    "all equal": (4, make_weighted_draw([0], [1])),
    "one in 20 worse": (1, make_weighted_draw([-1, 0], [0.05, 0.95])),
    "one in 10 otherwise": (1, make_weighted_draw([-1, 0, 1], [0.05, 0.9, 0.05])),
    "coins": (1, make_weighted_draw([-1, 1], [0.5, 0.5])),
    "thirds, and by far worse on 3%": (
        4,
        lambda random, shape: np.where(
            random.random(shape) < 0.03, -4.0, np.round(random.normal(0.1, 0.3, shape) * 3) / 3
        ),
    ),
    "one flatters: a third better on 60%, far worse on 10%": (4, make_weighted_draw([1 / 3, 0, -2], [0.6, 0.3, 0.1])),
    "noise beside a rare loss": (
        0.5,
        lambda random, shape: np.clip(random.normal(0, 0.01, shape) - 0.45 * (random.random(shape) < 0.1), -0.5, 0.5),
    ),
    "skewed": (4, lambda random, shape: -4 * random.beta(0.2, 1, shape)),
}
"""Distributions of labels by name: the largest possible difference, and the function that draws the labels."""
N_STUDIES = 2_000
LABEL_COUNTS_AT_CHECKS = (1, 2, 3, 5, 8, 12, 14, 17, 20, 25, 30, 40, 50, 65, 80, 100)


@pytest.mark.parametrize("follows", [0.0, 0.5])
@pytest.mark.parametrize("level", [0.95, 0.995])
@pytest.mark.parametrize("name", LABEL_DISTRIBUTIONS)
def test_checking_the_interval_while_labels_come_in_keeps_its_error_rate(
    name: str, level: float, follows: float
) -> None:
    """In 2,000 studies per distribution, the predictions either follow the labels or are independent of them.

    The error rate may exceed its limit by three standard errors.
    """
    widest, draw = LABEL_DISTRIBUTIONS[name]
    random = np.random.default_rng(0)
    labels = draw(random, (N_STUDIES, LABEL_COUNTS_AT_CHECKS[-1] + 60))
    predictions = follows * labels + random.normal(0, 0.2, labels.shape)
    mean = np.full(N_STUDIES, draw(random, (N_STUDIES, 400)).mean())
    wrong = np.zeros(N_STUDIES, bool)
    for n in LABEL_COUNTS_AT_CHECKS:
        found = powered_mean(labels[:, :n], predictions[:, :n], predictions[:, n:])
        wrong |= found.excludes(mean, level, widest)
    assert wrong.mean() <= 1 - level + 3 * (level * (1 - level) / N_STUDIES) ** 0.5


@pytest.mark.parametrize("name", LABEL_DISTRIBUTIONS)
def test_sampling_prompts_without_repetition_keeps_the_error_rate(name: str) -> None:
    """The 120 prompts are drawn in random order without replacement, and the mean of all of them is estimated."""
    widest, draw = LABEL_DISTRIBUTIONS[name]
    random = np.random.default_rng(3)
    labels = draw(random, (1, 120))[0]
    predictions = labels / 2 + random.normal(0, 0.5, len(labels))
    orders = random.permuted(np.tile(np.arange(len(labels)), (N_STUDIES, 1)), axis=1)
    wrong = np.zeros(N_STUDIES, bool)
    for n in (look for look in LABEL_COUNTS_AT_CHECKS if look <= 100):
        rated, others = orders[:, :n], orders[:, n:]
        found = powered_mean(labels[rated], predictions[rated], predictions[others])
        wrong |= found.excludes(np.full(N_STUDIES, labels.mean()), 0.95, widest)
    assert wrong.mean() <= 0.05


def test_the_interval_ends_where_means_are_excluded() -> None:
    labels, predictions, others = draw_ratings(n_labels=30)
    found = powered_mean(np.clip(labels, -3, 3), predictions, others)
    low, high = found.interval(0.95, 3)
    for end, inwards in ((low, 1e-4), (high, -1e-4)):
        assert found.excludes(np.array(end - inwards), 0.95, 3) and not found.excludes(np.array(end + inwards), 0.95, 3)
    assert -3 < low < found.estimate < high < 3
    nothing = powered_mean(np.zeros(12), np.zeros(12), np.zeros(50))
    assert nothing.interval(0.95, 4)[0] < -1, "twelve equal labels leave much open"


def test_a_smaller_difference_needs_more_labels() -> None:
    labels, predictions, others = draw_ratings(n_others=2000)
    wanted = [
        estimate_labels_needed(powered_mean(labels - shift, predictions, others), 0.95, 0.8, 3)
        for shift in (-0.6, 0.2, 0.5)
    ]
    assert wanted[0] == len(labels), "these are enough"
    assert wanted[1] is not None and len(labels) < wanted[1] < 1000
    assert wanted[2] is None or wanted[2] > wanted[1]


def test_the_recommended_number_of_labels_has_80_percent_power() -> None:
    labels = np.random.default_rng(2).choice([-1.0, 0.0, 1.0], 60, p=[0.2, 0.5, 0.3])
    needed = estimate_labels_needed(powered_mean(labels, np.zeros(60), np.zeros(5_000)), 0.95, 0.8, 1)
    assert needed is not None
    drawn = np.random.default_rng(3).choice(labels, (400, needed))
    found = powered_mean(drawn, np.zeros_like(drawn), np.zeros((400, 10)))
    assert found.excludes(np.zeros(400), 0.95, 1).mean() == pytest.approx(0.8, abs=0.08)

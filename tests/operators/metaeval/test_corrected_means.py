"""People's ratings of some prompts correct a metric's mean scores over all prompts, if there are enough ratings."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.sentences import format_number
from plumbline.operators.metaeval.corrected_means import (
    CorrectedMean,
    LabelledPrompts,
    correct_choices,
    correct_mean,
    make_choice_rows,
    make_rating_rows,
    predict_labels,
)
from plumbline.operators.metaeval.corrected_tables import describe_contradictions, make_order_tables
from plumbline.operators.results.run_scores import RunScores
from tests.operators.metaeval.test_ratings import make_scores

Floats = np.ndarray[Any, np.dtype[np.float64]]

N_PROMPTS, N_DRAWS = 200, 400
QUALITY_BY_GENERATOR = {"atlas": 3.4, "borealis": 3.0, "cobalt": 2.4}
FLATTERED_GENERATOR = "cobalt"
"""The generator whose images the metric scores too high."""


def simulate_ratings(random: np.random.Generator, prompts: int = N_PROMPTS) -> tuple[Floats, Floats]:
    """Return simulated mean ratings (three raters, scale 1 to 5) and metric scores, each (generators, prompts).

    Some prompts are harder than others.
    """
    ease = random.normal(0, 0.6, prompts)
    fit = (
        np.array([[quality] for quality in QUALITY_BY_GENERATOR.values()]) + ease + random.normal(0, 0.6, (3, prompts))
    )
    people = np.clip(np.round(fit + random.normal(0, 0.7, (3, *fit.shape))), 1, 5).mean(axis=0)
    liked = np.array([[2.0 * (name == FLATTERED_GENERATOR)] for name in QUALITY_BY_GENERATOR])
    return people, 0.1 * (fit + liked + random.normal(0, 0.7, fit.shape))


TRUE_MEANS = dict(
    zip(QUALITY_BY_GENERATOR, simulate_ratings(np.random.default_rng(5), 40_000)[0].mean(axis=1).tolist(), strict=True)
)


def correct_simulated_means(people: Floats, scores: Floats, rated: int) -> list[CorrectedMean]:
    """Return the corrected means when people rated only the first `rated` prompts."""
    first = np.arange(people.shape[1]) < rated
    said = predict_labels(
        *(np.where(kept, of, np.nan) for kept, of in ((first, people), (first, scores), (~first, scores)))
    )
    means = dict(zip(QUALITY_BY_GENERATOR, map(correct_mean, said), strict=True))
    return list(make_rating_rows("likert", "m", means, dict(zip(QUALITY_BY_GENERATOR, scores, strict=True))))


@pytest.mark.parametrize("rated", [20, 40, 80])
def test_intervals_contain_the_truth_if_the_metric_flatters_a_generator(rated: int) -> None:
    """The 95% intervals contain the truth in at least 93% of simulations: for each mean, and for all pairs together."""
    means, pairs, width = [], [], []
    for seed in range(N_DRAWS):
        rows = correct_simulated_means(*simulate_ratings(np.random.default_rng(seed)), rated)
        means.append([row.low <= TRUE_MEANS[row.generator] <= row.high for row in rows[:3]])
        differences = [(row, TRUE_MEANS[row.generator] - TRUE_MEANS[row.other]) for row in rows[3:]]
        pairs.append(all(row.low <= truth <= row.high for row, truth in differences))
        width += [(row.high - row.low) / (row.people_high - row.people_low) for row in rows[:3]]
        assert rows[2].predicted_low > TRUE_MEANS[FLATTERED_GENERATOR], "the metric alone is always wrong"
    assert np.mean(means, axis=0).min() >= 0.93 and np.mean(pairs) >= 0.93
    assert np.median(width) < 0.9, "intervals are narrower than with people's ratings alone"


def test_intervals_from_nearly_equal_ratings_miss_the_truth_in_at_most_7_of_100_studies() -> None:
    """In each of 2,000 studies, three people rate images 5 or, rarely, 2, and the metric flatters one generator."""
    bad = np.array([0.1, 0.15, 0.3])[:, None]
    truth = 5 - 3 * (bad[:, 0] * 0.7 + (1 - bad[:, 0]) * 0.02)
    random = np.random.default_rng(8)
    missed = np.zeros(3)
    for _ in range(2000):
        is_bad = random.random((3, 120)) < bad
        seen = np.where(is_bad, 0.7, 0.02)
        people = np.where(random.random((3, 3, 120)) < seen, 2.0, 5.0).mean(axis=0)
        scores = np.array([[0.0], [0.0], [0.3]]) - 0.5 * is_bad + random.normal(0, 0.3, is_bad.shape)
        rows = correct_simulated_means(people, scores, 40)[:3]
        missed += [row.low > one or row.high < one for row, one in zip(rows, truth, strict=True)]
    assert (missed / 2000).max() <= 0.07


def test_a_flattered_generator_and_a_reversed_order_are_reported() -> None:
    rows = correct_simulated_means(*simulate_ratings(np.random.default_rng(1)), 80)
    flattered = next(row for row in rows if row.generator == FLATTERED_GENERATOR)
    assert flattered.predicted_low > flattered.high
    turned = next(row for row in rows if (row.generator, row.other) == ("atlas", FLATTERED_GENERATOR))
    assert (turned.better, turned.metric_better) == ("atlas", FLATTERED_GENERATOR)
    leads = [sentence.lead for sentence in describe_contradictions(rows)]
    assert f"m contradicts people on atlas and {FLATTERED_GENERATOR}:" in leads and "m alone overrates" in leads
    (orders,) = make_order_tables(rows)
    first = {judge: order.split()[0] for judge, order in orders.rows}
    assert first == {"people alone": "atlas", "m alone": FLATTERED_GENERATOR, "m, corrected": "atlas"}


def test_generators_with_equal_means_are_shown_as_equal() -> None:
    people, scores = simulate_ratings(np.random.default_rng(7))
    people[1], scores[1] = people[0], scores[0]
    rows = correct_simulated_means(people, scores, 80)
    (orders,) = make_order_tables(rows)
    mean = {row.generator: format_number(row.people, 2) for row in rows[:3]}
    for _, order in orders.rows:
        assert re.search(r"atlas (\S+) = borealis \1( |$)", order), order
    assert f"atlas {mean['atlas']} = borealis {mean['borealis']} > " in dict(orders.rows)["people alone"]


def test_a_metric_with_reversed_scores_contradicts_people_although_its_fitted_line_is_flat() -> None:
    people, scores = simulate_ratings(np.random.default_rng(4))
    rows = correct_simulated_means(people, -scores, 80)
    assert all(row.predicted == pytest.approx(rows[0].predicted) for row in rows[:3])
    pair = next(row for row in rows if (row.generator, row.other) == ("atlas", "borealis"))
    assert (pair.better, pair.metric_better) == ("atlas", "borealis")


def test_a_weak_metric_that_orders_generators_like_people_contradicts_nobody() -> None:
    random = np.random.default_rng(6)
    people, _ = simulate_ratings(random)
    rows = correct_simulated_means(people, np.array([[3.0], [2.0], [1.0]]) + random.normal(0, 0.5, people.shape), 80)
    assert rows[2].predicted_low > rows[2].high, "its line is nearly flat"
    assert [sentence.lead for sentence in describe_contradictions(rows)] == ["No contradiction"]


def test_the_difference_of_corrected_means_equals_the_corrected_difference() -> None:
    rows = correct_simulated_means(*simulate_ratings(np.random.default_rng(2)), 40)
    by_name = {(row.generator, row.other): row for row in rows}
    for a, b in (("atlas", "borealis"), ("borealis", "cobalt")):
        difference = by_name[a, ""].corrected - by_name[b, ""].corrected
        assert by_name[a, b].corrected == pytest.approx(difference)


def test_a_constant_metric_leaves_peoples_mean_unchanged() -> None:
    """Twelve prompts are rated: three with each rating from 1 to 4, so the mean is 2.5.

    The mean's squared standard error is 1.25 / (12 - 2), and the 97.5% quantile of t(11) is 2.201.
    """
    labels = np.concatenate([np.tile([1.0, 2.0, 3.0, 4.0], 3), np.full(20, np.nan)])
    rated, scores = np.isfinite(labels), np.full(32, 0.7)
    (said,) = predict_labels(labels[None], np.where(rated, scores, np.nan)[None], np.where(rated, np.nan, scores)[None])
    found, far = correct_mean(said).corrected, 2.201 * math.sqrt(0.125)
    assert found.value == pytest.approx(2.5)
    assert found.interval(0.95) == pytest.approx((2.5 - far, 2.5 + far), abs=0.01)


def test_the_corrected_mean_equals_peoples_mean_if_all_prompts_are_rated() -> None:
    rows = correct_simulated_means(*simulate_ratings(np.random.default_rng(3), 30), 30)
    assert all(row.corrected == row.people and row.worth == 1 for row in rows)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([1.0, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1], "not enough ratings: 11 prompts, at least 12 are needed"),
        ([5.0] * 15 + [4] * 5, "not enough ratings that differ: 15 of 20 prompts are rated alike"),
    ],
)
def test_too_few_ratings_give_no_corrected_mean_but_a_reason(labels: Sequence[float], reason: str) -> None:
    beside = np.linspace(0, 1, len(labels))
    said = predict_labels(np.array([labels]), beside[None], np.full((1, len(labels)), np.nan))
    (row,) = make_rating_rows("likert", "m", {"atlas": correct_mean(said[0])}, {"atlas": beside})
    assert math.isnan(row.corrected) and math.isnan(row.low) and row.note == reason
    assert row.people == pytest.approx(np.mean(labels)) and math.isfinite(row.predicted)


def make_labelled_choices(votes: Sequence[float], scores: Sequence[float], others: Sequence[float]) -> LabelledPrompts:
    nothing = np.full(len(others), np.nan)
    rated = (np.concatenate([np.array(said), nothing]) for said in (votes, scores))
    return LabelledPrompts(*rated, np.concatenate([np.full(len(votes), np.nan), np.array(others)]))


def test_the_exact_interval_finds_the_winner_of_nearly_all_votes() -> None:
    """The Clopper-Pearson interval for 18 of 20 votes is 0.683 to 0.988."""
    said = make_labelled_choices([1.0] * 18 + [0.0] * 2, [1.0] * 20, [1.0] * 30)
    whole, other, pair = make_choice_rows("side_by_side", "m", {("atlas", "cobalt"): correct_mean(said)})
    assert (pair.low, pair.high) == pytest.approx((0.683, 0.988), abs=1e-3) and pair.better == "atlas"
    assert (whole.corrected, other.corrected) == (0.9, pytest.approx(0.1)) and not pair.note


def test_win_rates_are_corrected_and_those_of_a_pair_sum_to_one() -> None:
    """People agree with the metric on only half of the prompts, so the metric's scores get no weight."""
    people = [1.0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    said = make_labelled_choices(people, [1.0, 0] * 7, [1.0] * 50)
    atlas, cobalt, pair = make_choice_rows("side_by_side", "m", {("atlas", "cobalt"): correct_mean(said)})
    assert pair.corrected == pytest.approx(8 / 14) and pair.better == ""
    assert (pair.predicted, pair.metric_better) == (pytest.approx(57 / 64), "atlas")
    assert atlas.corrected + cobalt.corrected == pytest.approx(1) and atlas.high == pytest.approx(1 - cobalt.low)
    agreeing = correct_mean(make_labelled_choices(people, people, [1.0, 0] * 28)).corrected
    assert agreeing.value == pytest.approx((8 + 28) / 70, abs=0.01), "close to the value over all 70 prompts"


def test_win_rates_also_use_the_metrics_scores_on_prompts_that_nobody_compared() -> None:
    """People compared two images for each of 16 of the 40 prompts, and agree with the metric on 12 of the 16."""
    prefers = [1] * 9 + [-1] * 7
    """People's choice for each prompt: 1 if they prefer the image by g, -1 if they prefer the image by h."""
    metric = [1] * 7 + [-1] * 5 + [1] * 4 + [-1] * 4 + [0] * 4 + [1] * 16
    votes = [
        {"prompt_id": f"p{n}", "image_a": f"p{n}/{'gh'[n % 2]}", "image_b": f"p{n}/{'hg'[n % 2]}",
             "generator_a": "gh"[n % 2], "generator_b": "hg"[n % 2], "rater": rater, "template": "vote",
             "preferred": "a" if said == 1 - 2 * (n % 2) else "b"}
        for n, said in enumerate(prefers)
        for rater in "xy"
    ]  # fmt: skip
    table = make_scores(
        *((f"p{n}", name, "m", -score * sign) for n, score in enumerate(metric) for name, sign in (("g", 1), ("h", -1)))
    )
    turned = table.set_column(4, "score", pc.negate(table.column("score")))
    run = RunScores([table.select])
    g, h, pair = correct_choices(rows.table(votes, schemas.PREFERENCES), turned, run, "image", {"m"})
    assert (g.generator, h.generator, pair.generator, pair.other) == ("g", "h", "g", "h")
    assert (pair.n_rated, pair.n_scored, pair.people) == (16, 40, pytest.approx(9 / 16))
    assert pair.predicted == pytest.approx((metric.count(1) + metric.count(0) / 2) / 40)
    assert pair.people < pair.corrected < pair.predicted and h.corrected == pytest.approx(1 - pair.corrected)

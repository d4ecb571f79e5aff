"""Ratings are matched with scores by image.

Unmatched rows are counted, and every undefined statistic comes with a reason.
"""

import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import SourceError
from plumbline.operators.metaeval.judgement import Judgement
from plumbline.operators.metaeval.matching import ID_COLUMNS, complete_ids
from plumbline.operators.metaeval.people import judge_generators, judge_raters
from plumbline.operators.metaeval.ratings import (
    compare_metrics,
    describe_off_scale_ratings,
    judge_ratings,
    match_scores,
)
from plumbline.operators.statistics.options import Sampling

FEW_RESAMPLES = Sampling(resamples=50, permutations=499)


def make_ratings(*given: tuple[str, str, str, str, float | None]) -> pa.Table:
    """Return ratings given as (prompt, generator, rater, template, rating)."""
    return rows.table(
        [dict(zip(schemas.RATINGS.names, ("/".join(one[:2]), *one), strict=True)) for one in given], schemas.RATINGS
    )


def make_scores(*given: tuple[str, str, str, float | None], **more: Any) -> pa.Table:
    """Return scores given as (prompt, generator, metric, score)."""
    return rows.table(
        [dict(zip((*ID_COLUMNS, "metric", "score"), ("/".join(one[:2]), *one), strict=True)) for one in given],
        schemas.SCORES,
    )


def find_judgement(found: list[Judgement], statistic: str, metric: str = "m", subset: str = "overall") -> Judgement:
    return next(its for its in found if (its.statistic, its.metric, its.subset) == (statistic, metric, subset))


RATING_TABLE = make_ratings(
    ("p", "g", "a", "likert", 1), ("p", "g", "b", "likert", 3), ("p", "h", "a", "likert", 4),
    ("p", "h", "b", "likert", None), ("q", "g", "a", "likert", 5), ("q", "h", "a", "likert", None),
    ("q", "h", "b", "likert", None), ("r", "g", "a", "likert", 1),
)  # fmt: skip
SCORE_TABLE = make_scores(
    ("p", "g", "m", 0.2), ("p", "h", "m", 0.7), ("q", "g", "m", 0.9), ("r", "g", "m", None), ("s", "g", "m", 0.1)
)


@pytest.mark.parametrize("match", ["image", "prompt_and_generator", "image_and_prompt"])
def test_ratings_are_averaged_over_raters_and_unmatched_rows_are_counted(match: Any) -> None:
    [rated] = match_scores(RATING_TABLE, SCORE_TABLE, match)
    assert rated.frame["human"].tolist() == [2.0, 4.0, 5.0]
    assert rated.frame["score"].tolist() == [0.2, 0.7, 0.9]
    assert (rated.n_unscored, rated.n_unrated) == (1, 1)


def test_every_statistic_has_its_convention_and_row_counts() -> None:
    found = judge_ratings(
        match_scores(RATING_TABLE, SCORE_TABLE, "image"), ["pearson", "pairwise_accuracy"], {}, FEW_RESAMPLES
    )
    pearson = find_judgement(found, "pearson")
    assert pearson.value == pytest.approx(np.corrcoef([2, 4, 5], [0.2, 0.7, 0.9])[0, 1])
    assert (pearson.n, pearson.n_unscored, pearson.n_unrated) == (3, 1, 1)
    assert "no interval: too few of 2 prompts differ from the rest" in pearson.convention
    assert (find_judgement(found, "pairwise_accuracy").value, find_judgement(found, "pairwise_accuracy").n) == (1.0, 3)
    assert find_judgement(found, "epsilon").value == 0.0


def test_each_skill_is_judged_separately() -> None:
    found = judge_ratings(
        match_scores(RATING_TABLE, SCORE_TABLE, "image"), ["spearman"], {"p": ["colour"], "q": ["count"]}, FEW_RESAMPLES
    )
    assert (
        find_judgement(found, "spearman", subset="colour").n,
        find_judgement(found, "spearman", subset="count").n,
    ) == (2, 1)
    assert math.isnan(find_judgement(found, "spearman", subset="count").value)


@pytest.mark.parametrize(
    ("score", "why"), [(0.5, "all scores are equal"), (None, "0 images with both a rating and a score")]
)
def test_an_undefined_statistic_has_a_reason(score: float | None, why: str) -> None:
    flat = make_scores(("p", "g", "m", score), ("p", "h", "m", score), ("q", "g", "m", score))
    [found] = judge_ratings(match_scores(RATING_TABLE, flat, "image"), ["kendall_b"], {}, FEW_RESAMPLES)
    assert math.isnan(found.value)
    assert why in found.convention


def test_auroc_of_more_than_two_labels_is_an_error_with_a_remedy() -> None:
    with pytest.raises(SourceError, match="AUROC needs two labels, found 3; use another statistic"):
        judge_ratings(match_scores(RATING_TABLE, SCORE_TABLE, "image"), ["auroc"], {}, FEW_RESAMPLES)


def test_two_scores_of_a_rated_image_are_an_error_that_names_the_image() -> None:
    with pytest.raises(SourceError, match="expected one row of metric m for image_id 'p/g', found 2; keep one"):
        match_scores(RATING_TABLE, make_scores(("p", "g", "m", 0.2), ("p", "g", "m", 0.3)), "image")


def test_rows_without_an_image_are_left_out() -> None:
    missing = rows.table([{"prompt_id": "p", "generator": "g", "metric": "m"}] * 2, schemas.SCORES)
    [with_them], [without] = (
        match_scores(RATING_TABLE, table, "image") for table in (pa.concat_tables([SCORE_TABLE, missing]), SCORE_TABLE)
    )
    assert with_them.frame.equals(without.frame)
    assert (with_them.n_unscored, with_them.n_unrated) == (without.n_unscored, without.n_unrated)


def test_missing_ids_are_filled_in_only_if_they_are_unambiguous() -> None:
    given = [{"image_id": "a", "rating": 1}, {"image_id": "b", "prompt_id": "own", "rating": 1}, {"image_id": "c"}]
    known = [("a", "p", "g"), ("a", "p", None), ("b", "q", "g"), ("c", "p", "g"), ("c", "q", "g")]
    completed = complete_ids(
        rows.table(given, schemas.RATINGS), pd.DataFrame(known, columns=list(ID_COLUMNS), dtype="str")
    )
    assert completed.schema == schemas.RATINGS
    assert completed.column("prompt_id").to_pylist() == ["p", "own", None]
    assert completed.column("generator").to_pylist() == ["g", "g", "g"]


def test_each_template_is_judged_separately() -> None:
    both = pa.concat_tables([RATING_TABLE, make_ratings(("p", "g", "a", "wl", 0.5), ("q", "g", "a", "wl", 0.7))])
    assert [its.template for its in match_scores(both, SCORE_TABLE, "image")] == ["likert", "wl"]


def test_agreement_is_undefined_for_one_rater_but_generators_are_ranked() -> None:
    alone = make_ratings(("p", "g", "a", "likert", 1), ("p", "h", "a", "likert", 4))
    alphas = judge_raters(alone, ["ordinal"])
    assert [alpha.group for alpha in alphas] == ["overall", "generator g", "generator h"]
    assert all(math.isnan(alpha.value) and "no image has two ratings" in alpha.convention for alpha in alphas)
    assert [(its.generator, its.value) for its in judge_generators(alone, "image", FEW_RESAMPLES, {}, {})] == [
        ("h", 4.0),
        ("g", 1.0),
    ]


def test_a_metric_that_follows_people_differs_significantly_from_noise() -> None:
    random = np.random.default_rng(1)
    given, scored = [], []
    for prompt in range(60):
        for generator in "ghij":
            rating = float(random.integers(1, 6))
            given.append((str(prompt), generator, "a", "likert", rating))
            scored.append((str(prompt), generator, "good", rating + random.normal()))
            scored.append((str(prompt), generator, "twin", rating + random.normal()))
            scored.append((str(prompt), generator, "noise", random.normal()))
    rated = match_scores(make_ratings(*given), make_scores(*scored), "image")
    compared = compare_metrics(rated, ["pearson", "spearman", "kendall_b", "pairwise_accuracy_grouped"], FEW_RESAMPLES)
    told = {(its.statistic, its.metric_a, its.metric_b): its.p_holm < 0.05 for its in compared}
    for statistic in ("pearson", "spearman", "pairwise_accuracy_grouped"):
        assert told[statistic, "good", "noise"] and told[statistic, "twin", "noise"]
        assert not told[statistic, "good", "twin"]
    assert not any(its.statistic == "kendall_b" for its in compared)


def test_comparisons_of_metrics_do_not_treat_images_of_a_prompt_as_independent() -> None:
    """The metric makes the same error on all 20 images of a prompt, so 300 images count as only 15 observations."""
    random = np.random.default_rng(0)
    given, scored = [], []
    for prompt in range(15):
        rating, *values = random.normal(size=3)
        for generator in map(str, range(20)):
            given.append((str(prompt), generator, "a", "likert", float(rating)))
            scored += [
                (str(prompt), generator, name, float(rating + value)) for name, value in zip("mk", values, strict=True)
            ]
    rated = match_scores(make_ratings(*given), make_scores(*scored), "image")
    for compared in compare_metrics(rated, ["pearson", "spearman"], FEW_RESAMPLES):
        assert compared.p_value > 0.05
        assert "by prompt" in compared.test and "independent" not in compared.test


# Typing errors are detected, and unusual scales are not mistaken for them


def list_warnings_about(*values: float) -> list[str]:
    return describe_off_scale_ratings(
        make_ratings(*((f"p{row}", "g", "a", "likert", value) for row, value in enumerate(values)))
    )


@pytest.mark.parametrize(
    ("values", "outside"),
    [
        ([*range(1, 6)] * 20 + [55], "1 of 101 ratings (likert) are outside 0 to 10"),
        ([*range(1, 6)] * 20 + [41, 33, -1], "3 of 103 ratings (likert) are outside 0 to 10"),
        ([0.5, 1, 0, 0.25, 3], "1 of 5 ratings (likert) are outside 0 to 1"),
        ([0, 55, 71, 100, 20, 999], "1 of 6 ratings (likert) are outside 0 to 100"),
    ],
)
def test_a_few_ratings_outside_the_scale_of_the_others_are_counted(values: list[float], outside: str) -> None:
    [warning] = list_warnings_about(*values)
    assert warning.startswith(f"{outside}, the range of the others (first: ")


def test_a_single_negative_value_is_reported_as_a_possible_missing_answer() -> None:
    [warning] = list_warnings_about(*([*range(1, 6)] * 18 + [-1] * 10))
    assert warning.startswith("10 of 100 ratings (likert) are -1, the only negative value, which may stand")
    assert "leave these cells empty" in warning and "protocol.out_of_range=left_out" in warning


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3, 4, 5],
        [-1, 0, 1, -1, 1],
        [-2, -1, 0, 1, 2],
        [0, 1, 1, 0],
        [1] * 60 + [2, 5],
        [0, 3, 55, 71, 100],
        [1200, 990],
        [],
    ],
)
def test_unusual_scales_give_no_warning(values: list[float]) -> None:
    assert list_warnings_about(*values) == []


def test_every_template_has_its_own_scale() -> None:
    both = [("p", "g", str(rater), "wl", rater / 10) for rater in range(10)]
    likert = [("p", "g", str(rater), "likert", float(rater % 5 + 1)) for rater in range(10)]
    assert describe_off_scale_ratings(make_ratings(*both, *likert)) == []
    assert len(describe_off_scale_ratings(make_ratings(*both, *likert, ("p", "g", "x", "wl", 4.0)))) == 1

"""The summary averages scores, counts missing scores, and never treats null as zero."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.results.summary import Skills, Tally, sort_best_first, tally_tables
from plumbline.operators.statistics.bootstrap import Prompts
from tests.operators.tallied import summarise

SKILLS = {"p0": ["colour", "count"], "p1": ["colour"], "p2": []}
DECODE_ERROR = rows.error_to_dict(RowError("corrupt_image", "the image does not decode"))


def make_scores_table(*scored: tuple[str, str, str | None, float | None]) -> pa.Table:
    """Return scores given as (generator, metric, prompt_id, score)."""
    return rows.table(
        [
            {
                "image_id": f"i{number}",
                "generator": generator,
                "metric": metric,
                "prompt_id": prompt_id,
                "score": score,
                "error": DECODE_ERROR if score is None else None,
            }
            for number, (generator, metric, prompt_id, score) in enumerate(scored)
        ],
        schemas.SCORES,
    )


def list_summary_rows(
    scores: pa.Table, skills: Mapping[str, Sequence[str]] = SKILLS
) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(row["generator"], row["metric"], row["skill"]): row for row in summarise(scores, skills).to_pylist()}


def test_mean_standard_error_and_counts_are_those_of_the_scores() -> None:
    numbers = [0.1, 0.4, 0.4, 0.9]
    scores = make_scores_table(*[("gen", "m", f"p{number % 3}", score) for number, score in enumerate(numbers)])
    row = list_summary_rows(scores)["gen", "m", "overall"]
    assert row["mean"] == pytest.approx(statistics.fmean(numbers))
    assert row["sem"] == pytest.approx(statistics.stdev(numbers) / math.sqrt(4))
    assert (row["n"], row["n_null"], row["coverage"]) == (4, 0, 1.0)


def test_a_null_is_excluded_from_the_mean_and_lowers_the_coverage() -> None:
    scores = make_scores_table(("gen", "m", "p0", 0.8), ("gen", "m", "p1", None), ("gen", "m", "p2", 0.6),
                          ("gen", "m", None, None))  # fmt: skip
    row = list_summary_rows(scores)["gen", "m", "overall"]
    assert row["mean"] == pytest.approx(0.7)
    assert (row["n"], row["n_null"], row["coverage"]) == (2, 2, 0.5)


def test_a_score_of_zero_counts_in_the_mean() -> None:
    row = list_summary_rows(make_scores_table(("gen", "m", "p0", 0.0), ("gen", "m", "p1", 1.0)))["gen", "m", "overall"]
    assert (row["mean"], row["n"]) == (0.5, 2)


def test_one_score_has_a_mean_and_no_standard_error() -> None:
    row = list_summary_rows(make_scores_table(("gen", "m", "p2", 0.3)))["gen", "m", "overall"]
    assert (row["mean"], row["sem"], row["n"]) == (0.3, None, 1)


def test_a_generator_without_any_score_is_listed_without_mean_and_coverage() -> None:
    scores = make_scores_table(("bad", "m", "p0", None), ("bad", "m", "p1", None), ("good", "m", "p0", 0.2))
    row = list_summary_rows(scores)["bad", "m", "overall"]
    assert (row["mean"], row["sem"]) == (None, None)
    assert (row["n"], row["n_null"], row["coverage"]) == (0, 2, 0.0)


def test_every_skill_averages_its_own_prompts_and_overall_all_of_them() -> None:
    scores = make_scores_table(("gen", "m", "p0", 0.1), ("gen", "m", "p1", 0.5), ("gen", "m", "p2", 0.9))
    summary = list_summary_rows(scores)
    assert {skill: (row["mean"], row["n"]) for (_, _, skill), row in summary.items()} == {
        "overall": (pytest.approx(0.5), 3),
        "colour": (pytest.approx(0.3), 2),
        "count": (pytest.approx(0.1), 1),
    }


def test_a_prompt_that_is_unknown_or_has_no_skills_only_counts_overall() -> None:
    scores = make_scores_table(("gen", "m", "p2", 0.4), ("gen", "m", "p99", 0.6), ("gen", "m", None, None))
    ((key, row),) = list_summary_rows(scores).items()
    assert key == ("gen", "m", "overall")
    assert (row["n"], row["n_null"]) == (2, 1)


@pytest.mark.parametrize("named", [["colour", "colour"], ["colour", "overall"]])
def test_a_score_counts_once_per_skill_even_if_its_prompt_repeats_the_skill(named: list[str]) -> None:
    scores = make_scores_table(("gen", "m", "p0", 1.0), ("gen", "m", "p1", 0.0))
    summary = list_summary_rows(scores, {"p0": named, "p1": ["colour"]})
    for skill in ("colour", "overall"):
        row = summary["gen", "m", skill]
        assert (row["mean"], row["n"]) == (0.5, 2)


def test_metrics_are_summarised_separately() -> None:
    scores = make_scores_table(("gen", "a", "p2", 0.2), ("gen", "b", "p2", 30.0))
    summary = list_summary_rows(scores)
    assert [summary["gen", metric, "overall"]["mean"] for metric in ("a", "b")] == [0.2, 30.0]


def test_the_best_mean_comes_first_within_a_metric_and_missing_means_last() -> None:
    scores = make_scores_table(
        ("low", "b", "p1", 0.1), ("high", "b", "p1", 0.9), ("none", "b", "p1", None), ("tied", "b", "p1", 0.1),
        ("low", "a", "p2", 0.8), ("high", "a", "p2", 0.7),
    )  # fmt: skip
    summary = summarise(scores, SKILLS).to_pylist()
    assert [(row["metric"], row["skill"], row["generator"]) for row in summary] == [
        ("a", "overall", "low"),
        ("a", "overall", "high"),
        ("b", "overall", "high"),
        ("b", "overall", "low"),
        ("b", "overall", "tied"),
        ("b", "overall", "none"),
        ("b", "colour", "high"),
        ("b", "colour", "low"),
        ("b", "colour", "tied"),
        ("b", "colour", "none"),
    ]


def test_if_lower_is_better_the_lowest_mean_comes_first_and_no_number_changes() -> None:
    scores = make_scores_table(
        ("low", "b", "p1", 0.1), ("high", "b", "p1", 0.9), ("none", "b", "p1", None), ("tied", "b", "p1", 0.1),
        ("low", "a", "p2", 0.8), ("high", "a", "p2", 0.7),
    )  # fmt: skip
    summary = summarise(scores, SKILLS)
    turned = sort_best_first(summary, {"b"})
    overall = [(row["metric"], row["generator"]) for row in turned.to_pylist() if row["skill"] == "overall"]
    assert overall == [("a", "low"), ("a", "high"), ("b", "low"), ("b", "tied"), ("b", "high"), ("b", "none")]
    assert sort_best_first(turned).equals(summary) and turned.schema == schemas.SUMMARY


def test_the_table_has_exactly_the_summary_schema_even_if_empty() -> None:
    full = summarise(make_scores_table(("gen", "m", "p0", 0.5)), SKILLS)
    nulls = summarise(make_scores_table(("gen", "m", "p0", None)), SKILLS)
    empty = summarise(schemas.SCORES.empty_table(), SKILLS)
    assert full.schema == nulls.schema == empty.schema == schemas.SUMMARY
    assert empty.num_rows == 0


def make_scores(prompts: int, seed: int = 0) -> pa.Table:
    """Return scores of two generators on two metrics, with one in ten missing."""
    random = Random(seed)
    return make_scores_table(
        *[
            (generator, metric, f"p{prompt}", None if random.random() < 0.1 else random.gauss(0.5, 0.2))
            for prompt in range(prompts)
            for generator in ("g", "h")
            for metric in ("m", "n")
        ]
    )


MANY_SKILLS = {f"p{prompt}": ["colour"] if prompt % 3 else ["count", "colour"] for prompt in range(60)}


@given(cuts=st.lists(st.integers(0, 240), max_size=6), order=st.randoms())
@settings(max_examples=25, deadline=None)
def test_the_summary_does_not_depend_on_parts_and_order_of_the_rows(cuts: list[int], order: Random) -> None:
    scores = make_scores(60)
    edges = sorted({0, *cuts, len(scores)})
    parts = [scores.slice(first, last - first) for first, last in pairwise(edges)]
    order.shuffle(parts)
    skills = Skills(MANY_SKILLS.items())
    total = Tally(skills)
    for part in parts:
        (tally,) = tally_tables([part], skills)
        total.merge(tally.sums)
    found, whole = total.make_summary().to_pylist(), summarise(scores, MANY_SKILLS).to_pylist()
    assert len(found) == len(whole) == 2 * 2 * 3
    for one, other in zip(found, whole, strict=True):
        assert one == {key: pytest.approx(value) if isinstance(value, float) else value for key, value in other.items()}


def test_the_interval_is_about_as_wide_as_a_bootstrap_over_prompts() -> None:
    scores = make_scores(60)
    row = list_summary_rows(scores, MANY_SKILLS)["g", "m", "overall"]
    mine = [one for one in scores.to_pylist() if (one["generator"], one["metric"]) == ("g", "m") and one["score"]]
    direct = Prompts([one["prompt_id"] for one in mine]).mean_interval(np.array([one["score"] for one in mine]))
    assert (row["low"], row["high"]) == pytest.approx(direct, abs=0.02)


def test_prompts_are_resampled_whole_so_that_copies_of_images_do_not_narrow_the_interval() -> None:
    once = make_scores(60)
    row = list_summary_rows(once)["g", "m", "overall"]
    tenfold = list_summary_rows(pa.concat_tables([once] * 10))["g", "m", "overall"]
    assert (tenfold["low"], tenfold["high"]) == pytest.approx((row["low"], row["high"]))
    assert tenfold["sem"] < row["sem"] / 2


def test_the_interval_contains_the_truth_at_about_its_stated_rate() -> None:
    covered = 0
    for trial in range(200):
        random = Random(trial)
        names = [("g", "m", f"{trial}/{n}", random.gauss(0, 1)) for n in range(50)]
        row = list_summary_rows(make_scores_table(*names), {})["g", "m", "overall"]
        covered += row["low"] <= 0 <= row["high"]
    assert 172 <= covered <= 199


def test_the_images_of_one_prompt_have_no_interval() -> None:
    row = list_summary_rows(make_scores_table(("gen", "m", "p0", 0.1), ("gen", "m", "p0", 0.7)))["gen", "m", "overall"]
    assert (row["low"], row["high"], row["n"]) == (None, None, 2)


def test_shuffled_rows_give_the_same_summary_to_the_last_bit() -> None:
    random = np.random.default_rng(7)
    records = [
        {"generator": generator, "metric": "m", "prompt_id": f"p{prompt}", "score": float(random.lognormal(0, 3))}
        for generator in "ab"
        for prompt in range(40)
        for _ in range(5)
    ]
    skills = {f"p{prompt}": [("colour", "count")[prompt % 2]] for prompt in range(40)}
    usual = summarise(rows.table(records, schemas.SCORES), skills)
    for _ in range(5):
        random.shuffle(records)
        assert summarise(rows.table(records, schemas.SCORES), skills).equals(usual)

"""Comparisons of generators are correct with ties, gaps, and several images per prompt."""

import math
from collections.abc import Container
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.results.comparison import (
    LeaderboardRow,
    PromptMeans,
    build_boards,
    compare_generators,
    rank_generators,
    read_prompt_means,
)
from plumbline.operators.results.comparison import compute_bradley_terry as rate
from plumbline.operators.results.summary import Skills
from tests.operators.tallied import compare_pairs, summarise, wrap_scores


def make_scores(by_generator: dict[str, list[float | None]], metric: str = "m") -> pa.Table:
    """Return a table (schema SCORES) of each generator's scores on the prompts p0, p1, and so on."""
    return rows.table(
        [
            {"generator": generator, "metric": metric, "prompt_id": f"p{number}", "score": score}
            for generator, its in by_generator.items()
            for number, score in enumerate(its)
        ],
        schemas.SCORES,
    )


def draw_scores(level: float, seed: int, prompts: int = 40) -> list[float | None]:
    random = Random(seed)
    return [level + random.gauss(0, 0.1) for _ in range(prompts)]


BOARD_SCORES = make_scores({"good": draw_scores(0.8, 1), "twin": draw_scores(0.8, 2), "poor": draw_scores(0.4, 3)})


def fit_bradley_terry(scores: pa.Table, falling: Container[str] = ()) -> dict[str, dict[str, float]]:
    of_run = wrap_scores(scores)
    return {metric: rate(metric, read_prompt_means(of_run, metric), falling) for metric in of_run.metrics}


def make_board(scores: pa.Table) -> list[LeaderboardRow]:
    return rank_generators(summarise(scores, {}), compare_pairs(scores, {}))


def test_a_clear_difference_is_reported_and_a_tie_is_not() -> None:
    told = {frozenset((its.generator_a, its.generator_b)): its.better for its in compare_pairs(BOARD_SCORES, {})}
    assert told[frozenset(("good", "poor"))] == "good"
    assert told[frozenset(("twin", "poor"))] == "twin"
    assert told[frozenset(("good", "twin"))] is None
    groups = {its.generator: its.group for its in make_board(BOARD_SCORES)}
    assert groups["good"] == groups["twin"] == "a" and groups["poor"] == "b"


def test_a_duel_has_its_size_interval_and_wins() -> None:
    a, b = [0.9, 0.5, 0.7, 0.8, 0.6, 0.9, 0.4, 0.4], [0.4, 0.5, 0.1, 0.5, 0.2, 0.7, 0.3, None]
    [duel] = compare_pairs(make_scores({"a": a, "b": b}), {})
    assert (duel.generator_a, duel.generator_b, duel.n) == ("a", "b", 7)
    assert duel.difference == pytest.approx((0.5 + 0 + 0.6 + 0.3 + 0.4 + 0.2 + 0.1) / 7)
    assert duel.win_rate == pytest.approx(6.5 / 7)
    assert duel.effect == 1.0
    assert duel.low <= duel.difference <= duel.high


def test_with_a_baseline_only_comparisons_with_it_are_made_and_corrected() -> None:
    random = np.random.default_rng(0)
    names = [f"g{number:02d}" for number in range(12)]
    scores = make_scores({name: list(random.normal(0.5 + 0.55 * (name == "g03"), 0.3, 18)) for name in names})
    every, beside = compare_pairs(scores, {}), compare_pairs(scores, {}, baseline="g05")
    assert (len(every), len(beside)) == (66, 11)
    by_pair = {frozenset((its.generator_a, its.generator_b)): its for its in every}
    for its in beside:
        assert "g05" in (its.generator_a, its.generator_b)
        twin = by_pair[frozenset((its.generator_a, its.generator_b))]
        assert its.p_value == twin.p_value and its.p_holm <= twin.p_holm
    ranked = rank_generators(summarise(scores, {}), beside, baseline="g05")
    marks = {its.generator: its.group for its in ranked}
    assert marks == dict.fromkeys(names, "tied") | {"g03": "better", "g05": ""}
    [overall] = build_boards(ranked, beside, "g05").values()
    assert (
        overall.find_highlighted_generators() == {"g03"}
        and overall.n_possible_pairs == 11
        and overall.list_tied_generators("g03") == []
    )


def test_at_most_1_in_20_runs_of_equal_generators_separates_any_from_the_baseline() -> None:
    random = np.random.default_rng(0)
    told = 0
    for _ in range(200):
        means = PromptMeans(np.arange(20, dtype=np.uint64))
        for generator in "abcdef":
            means.add(generator, random.normal(size=20))
        told += any(duel.better for duel in compare_generators("m", means, Skills(()), baseline="a"))
    assert told <= 200 * 0.05 + 2 * math.sqrt(200 * 0.05 * 0.95)


def test_five_wins_are_too_few_for_a_clear_difference_and_six_are_enough() -> None:
    for prompts, better in ((5, None), (6, "a")):
        [duel] = compare_pairs(make_scores({"a": [1.0] * prompts, "b": [0.5] * prompts}), {})
        assert (duel.better, duel.p_value) == (better, 2 ** (1 - prompts))


def test_equal_runs_have_no_difference_at_all() -> None:
    [duel] = compare_pairs(make_scores({"after": [0.1, 0.2, 0.3], "before": [0.1, 0.2, 0.3]}), {})
    assert (duel.difference, duel.p_holm, duel.better) == (0, 1, None)
    assert math.isnan(duel.low) and math.isnan(duel.high), "three equal prompts do not imply that all others are equal"


def test_images_of_a_prompt_are_averaged_and_generators_without_a_common_prompt_are_not_compared() -> None:
    twice = pa.concat_tables([make_scores({"a": [0.2, 0.4]}), make_scores({"a": [0.6, 0.8], "b": [0.5, 0.5]})])
    [duel] = compare_pairs(twice, {})
    assert (duel.n, duel.difference) == (2, pytest.approx(0.0))
    apart = make_scores({"a": [0.1, None], "b": [None, 0.2]})
    assert compare_pairs(apart, {}) == []
    assert [its.rank for its in make_board(apart)] == [1, 2]


def test_skills_are_compared_on_their_own_prompts_and_corrected_among_themselves() -> None:
    skills = {f"p{number}": ["count"] for number in range(10)}
    found = compare_pairs(BOARD_SCORES, skills)
    assert {its.skill: its.n for its in found} == {"overall": 40, "count": 10}
    for its in found:
        assert its.p_holm >= its.p_value


def test_a_generator_without_scores_comes_last_without_a_mean() -> None:
    found = make_board(make_scores({"good": [0.5, 0.6], "none": [None, None]}))
    assert [its.generator for its in found] == ["good", "none"]
    assert math.isnan(found[1].mean) and (found[1].n, found[1].n_null, found[1].coverage) == (0, 2, 0.0)
    assert [(its.rank, its.group) for its in found] == [(1, "a"), (None, "")]


def test_a_generator_with_few_prompts_is_tied_with_all_others_so_that_there_is_no_winner() -> None:
    """Generator a is clearly better than b; c has the lowest mean, but twelve prompts are too few to show it."""
    few = [*draw_scores(0.74, 6, 12), *[None] * 288]
    scores = make_scores({"a": draw_scores(0.8, 4, 300), "b": draw_scores(0.75, 5, 300), "c": few})
    found = compare_pairs(scores, {})
    assert {(its.generator_a, its.generator_b): its.better for its in found} == {
        ("a", "b"): "a", ("a", "c"): None, ("b", "c"): None,
    }  # fmt: skip
    groups = {its.generator: set(its.group) for its in rank_generators(summarise(scores, {}), found)}
    assert not groups["a"] & groups["b"]
    assert groups["a"] & groups["c"] and groups["b"] & groups["c"]
    [overall] = build_boards(rank_generators(summarise(scores, {}), found), found).values()
    assert [its.generator for its in overall.list_leaders()] == ["a"] and overall.find_best_row() is None
    assert [its.generator for its in overall.list_close_rows()] == ["c"]


def test_signed_ranks_decide_who_is_better_even_against_the_means() -> None:
    """Generator b is slightly better on nine of ten prompts, and much worse on the tenth."""
    b = [0.5 + (-0.7 if prompt % 10 == 0 else 0.05) + prompt * 1e-4 for prompt in range(60)]
    [duel] = compare_pairs(make_scores({"a": [0.5] * 60, "b": b}), {})
    assert duel.p_holm < 0.001 and duel.difference > 0 > duel.effect and duel.win_rate == pytest.approx(0.1)
    assert (duel.better, duel.worse) == ("b", "a")


def test_bradley_terry_ratings_follow_wins_and_average_zero() -> None:
    ratings = fit_bradley_terry(BOARD_SCORES)["m"]
    assert sum(ratings.values()) == pytest.approx(0, abs=1e-6)
    assert min(ratings, key=lambda name: ratings[name]) == "poor"
    even = fit_bradley_terry(make_scores({"a": [1.0, 0.0], "b": [0.0, 1.0]}))["m"]
    assert even["a"] == pytest.approx(even["b"], abs=1e-6)
    eleven = make_scores({"a": [1.0] * 10 + [0.0], "b": [0.0] * 10 + [1.0]})
    found = fit_bradley_terry(eleven)["m"]
    assert found["a"] - found["b"] == pytest.approx(400 * math.log10(10.5 / 1.5), abs=1)


def test_if_lower_is_better_results_equal_those_of_negated_scores_and_numbers_are_unchanged() -> None:
    good, poor, gaps = draw_scores(0.8, 1), draw_scores(0.4, 3), [*draw_scores(0.8, 2)[:30], *[None] * 10]
    high = make_scores({"good": good, "poor": poor, "gaps": gaps})
    low = high.set_column(high.schema.get_field_index("score"), "score", pc.negate(high.column("score")))
    above, below = compare_pairs(high, {}), compare_pairs(low, {}, {"m"})
    for one, other in zip(above, below, strict=True):
        assert (one.better, one.effect, one.win_rate, one.p_holm) == (
            other.better, other.effect, other.win_rate, other.p_holm,
        )  # fmt: skip
        assert (other.difference, other.low, other.high) == pytest.approx((-one.difference, -one.high, -one.low))
        assert one.is_contrary == other.is_contrary == other.swap().is_contrary
    ranked = rank_generators(summarise(low, {}), below, {"m"})
    for first, second in zip(make_board(high), ranked, strict=True):
        assert (first.generator, first.rank, first.group) == (second.generator, second.rank, second.group)
        assert (second.mean, second.low, second.high) == pytest.approx((-first.mean, -first.high, -first.low))
    [lowest_first] = build_boards(ranked, below).values()
    assert [row.generator for row in lowest_first.rows] == ["good", "gaps", "poor"]
    assert lowest_first.lower_is_better and lowest_first.find_highlighted_generators() == {"good", "gaps"}
    assert fit_bradley_terry(low, {"m"})["m"] == pytest.approx(fit_bradley_terry(high)["m"])
    assert fit_bradley_terry(low)["m"]["good"] < 0 < fit_bradley_terry(high)["m"]["good"]


def test_signed_ranks_and_means_may_also_disagree_if_lower_is_better() -> None:
    one_sided = [*[0.1] * 30, *[-2.0] * 3]
    apart = make_scores({"a": one_sided, "b": [0.0] * 33})
    for falling, better in (((), "a"), ({"m"}, "b")):
        [duel] = compare_pairs(apart, {}, falling)
        assert (duel.better, duel.is_contrary) == (better, True)
        assert duel.difference == pytest.approx((3 - 6) / 33)

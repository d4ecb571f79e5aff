"""Win rates, strengths, letters and checks of the judge are computed from its choices between two images."""

import math
from typing import Any

import evalica
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from plumbline.operators.base.errors import SourceError
from plumbline.operators.results.choices import MIN_PROMPTS, ChoiceResults, compare_pairs
from tests.operators.choosing import Judge

RISING_JUDGE = Judge((0.0, 0.5, 1.0, 2.0), bias=0.5, ties=0.1)


def compare(judge: Judge, prompts: int = 60, seed: int = 0, **options: Any) -> ChoiceResults:
    return compare_pairs(judge.compare(np.random.default_rng(seed), prompts), **options)


def make_pair_comparisons(
    *choices: tuple[float | None, float | None], generators: tuple[str, str] = ("a", "b")
) -> pd.DataFrame:
    """Return comparisons of two generators' images, two rows per prompt.

    Each of the `choices` is (p_first when the first generator's image is shown first, p_first when it is shown second).
    The number p_first is the judge's preference, from 0 to 1, for the image shown first; None stands for a failure.
    """
    first, second = generators
    rows = []
    for prompt, (one, other) in enumerate(choices):
        for p_first, (left, right) in ((one, (first, second)), (other, (second, first))):
            images = {"first_image_id": f"{left}{prompt}", "second_image_id": f"{right}{prompt}"}
            names = {"first_generator": left, "second_generator": right}
            rows.append({"prompt_id": str(prompt), "metric": "judge", **names, **images, "p_first": p_first})
    return pd.DataFrame(rows)


def test_a_stronger_generator_wins_more_and_is_stronger_and_only_clear_differences_separate_letters() -> None:
    found = compare(RISING_JUDGE, prompts=200)
    board = found.overall
    assert [row.generator for row in board.rows] == list(found.strengths) == ["g3", "g2", "g1", "g0"]
    assert all(row.low < row.mean < row.high for row in board.rows)
    assert all(own.interval.low < own.value < own.interval.high for own in found.strengths.values())
    letters = {row.generator: set(row.group) for row in board.rows}
    for duel in board.duels:
        assert (duel.better is None) == bool(letters[duel.generator_a] & letters[duel.generator_b])
        assert (duel.better is not None) == (duel.p_holm < 0.05)
    assert board.list_leaders()[0].generator == "g3"


def test_names_of_any_kind_are_texts_and_half_an_emoji_is_escaped() -> None:
    table = make_pair_comparisons(*[(1.0, 0.0)] * 12)
    renamed = table.astype(object).replace({"a": "half \ud83d", "b": 7, "judge": "j \udc00", "3": "p \ud83d"})
    labels = {prompt: ["s \ud83d"] for prompt in renamed["prompt_id"]}
    for given in (renamed, renamed.to_dict("records")):
        found = compare_pairs(given, "j \udc00", skills=labels)
        assert [(row.generator, row.mean, row.n) for row in found.overall.rows] == [
            (r"half \ud83d", 1.0, 12),
            ("7", 0.0, 12),
        ]
        assert found.overall.metric == r"j \udc00" and [*found.boards] == ["overall", r"s \ud83d"]
    for skills in ("counting", None, 7, [None]):
        with pytest.raises(SourceError, match=r"^skills\['0'\]: expected a list of texts, found"):
            compare_pairs(table, skills={"0": skills})  # type: ignore[dict-item]


def test_win_rates_are_means_over_prompts_of_both_orders() -> None:
    table = make_pair_comparisons(*[(1.0, 0.0)] * 6, *[(1.0, 1.0)] * 4)
    (duel,) = compare_pairs(table).overall.duels
    assert (duel.generator_a, duel.win_rate, duel.n, duel.differing) == ("a", 0.8, 10, 6)
    assert duel.p_value == 2 / 2**6
    assert [(row.generator, row.mean) for row in compare_pairs(table).overall.rows] == [
        ("a", 0.8),
        ("b", pytest.approx(0.2)),
    ]


def test_results_do_not_depend_on_row_order_generator_names_or_kind_of_table() -> None:
    table = RISING_JUDGE.compare(np.random.default_rng(0), 30)
    expected = compare_pairs(table)
    shuffled = table.sample(frac=1, random_state=1)
    for same in (shuffled, pa.Table.from_pandas(table), table.to_dict("records")):
        assert compare_pairs(same).boards == expected.boards
    renamed = table.replace({f"g{code}": f"{9 - code} generator" for code in range(4)})
    assert [row.mean for row in compare_pairs(renamed).overall.rows] == pytest.approx(
        [row.mean for row in expected.overall.rows]
    )


def test_several_images_of_a_prompt_count_as_one_prompt() -> None:
    table = make_pair_comparisons(*[(1.0, 0.0)] * 7, *[(0.0, 1.0)] * 5)
    again = table.assign(**{side: table[side] + "'" for side in ("first_image_id", "second_image_id")})
    once, twice = (compare_pairs(rows).overall for rows in (table, pd.concat([table, again])))
    assert once == twice


def test_strengths_equal_those_of_evalica() -> None:
    table = RISING_JUDGE.compare(np.random.default_rng(3), 80)
    names = {1.0: evalica.Winner.X, 0.0: evalica.Winner.Y, 0.5: evalica.Winner.Draw}
    winners = [names[p_first] for p_first in table["p_first"]]
    theirs = evalica.bradley_terry(table["first_generator"], table["second_generator"], winners, tolerance=1e-12)
    points = 400 * np.log10(theirs.scores)
    ours = compare_pairs(table).strengths
    for name, points_of_one in (points - points.mean()).items():
        assert ours[name].value == pytest.approx(points_of_one, abs=0.01)


def test_a_pair_with_one_order_is_left_out_so_that_a_biased_judge_favours_no_generator() -> None:
    """The judge always prefers the first image, and often fails if b is shown first."""
    complete, failed = [(1.0, 1.0)] * 20, [(1.0, None)] * 30
    found = compare_pairs(make_pair_comparisons(*complete, *failed, (None, None)))
    (duel,) = found.overall.duels
    assert (duel.win_rate, duel.n) == (0.5, 20)
    assert (found.choices.n_in_one_order, found.choices.n_failed) == (30, 1)
    (biased,) = compare_pairs(make_pair_comparisons(*complete, *failed), both_orders=False).overall.duels
    assert biased.win_rate == 0.8


def test_a_comparison_that_failed_may_lack_an_image() -> None:
    lacking = make_pair_comparisons((None, None)).assign(prompt_id="x", first_image_id=None)
    found = compare_pairs(pd.concat([make_pair_comparisons(*[(1.0, 0.0)] * 12), lacking]))
    assert found.overall.duels == compare_pairs(make_pair_comparisons(*[(1.0, 0.0)] * 12)).overall.duels
    assert found.choices.n_failed == 2


def test_a_judge_that_always_prefers_the_first_image_is_exposed() -> None:
    bias = compare_pairs(make_pair_comparisons(*[(1.0, 1.0)] * 12)).order_bias
    assert bias is not None
    assert (bias.share, bias.agreement, bias.n_pairs, bias.first_wins, bias.decided) == (1.0, 0.0, 12, 24, 24)
    assert bias.p_value == 2 / 2**12
    assert bias.interval.low > 0.6 and bias.interval.high == pytest.approx(1)


def test_an_unbiased_judge_has_no_order_bias_however_unequal_the_generators_are() -> None:
    bias = compare_pairs(make_pair_comparisons(*[(1.0, 0.0)] * 30)).order_bias
    assert bias is not None
    assert (bias.share, bias.p_value, bias.agreement) == (0.5, 1.0, 1.0)


def test_all_ties_show_no_difference_and_have_as_wide_an_interval_as_wins() -> None:
    found = compare_pairs(
        pd.concat([make_pair_comparisons(*[(0.5, 0.5)] * 20, generators=pair) for pair in ("ab", "bc", "ac")])
    )
    assert {row.mean for row in found.overall.rows} == {0.5} and {row.group for row in found.overall.rows} == {"a"}
    assert {duel.p_holm for duel in found.overall.duels} == {1.0}
    assert all(duel.low < -0.4 and duel.high > 0.4 for duel in found.overall.duels)
    assert all(own.value == 0 and math.isnan(own.interval.low) for own in found.strengths.values())
    assert found.cycles.triples == 0 and found.overall.outcome == "no difference"


def test_a_generator_that_never_loses_has_a_win_rate_but_no_strength() -> None:
    table = Judge((0.0, 0.3, 0.6, 60.0)).compare(np.random.default_rng(0), 40)
    found = compare_pairs(table)
    assert found.overall.rows[0][:4] == ("g3", "pairwise", "overall", 1.0)
    assert found.overall.rows[0].low > 0.9 and found.overall.rows[0].high == pytest.approx(1)
    assert sorted(found.strengths) == ["g0", "g1", "g2"]
    assert found.no_strength == "No strength: g3, winning or losing every comparison with the others."
    without = compare_pairs(table[(table["first_generator"] != "g3") & (table["second_generator"] != "g3")])
    assert without.strengths["g1"].value == pytest.approx(found.strengths["g1"].value)


def test_generators_that_are_never_compared_have_no_common_scale() -> None:
    parts = [make_pair_comparisons(*[(1.0, 0.0), (0.0, 1.0)] * 10, generators=pair) for pair in ("ab", "cd")]
    found = compare_pairs(pd.concat(parts))
    assert not found.strengths and "some generators are not compared" in found.no_strength
    assert len(found.overall.duels) == 2 and found.overall.rows[0].n == 20


def test_there_are_letters_only_if_all_pairs_of_generators_were_compared() -> None:
    """Otherwise a and c, which were not compared, would share a letter although b lies clearly between them."""
    chain = pd.concat([make_pair_comparisons(*[(1.0, 0.0)] * 20, generators=pair) for pair in ("ab", "bc")])
    board = compare_pairs(chain).overall
    assert [(duel.better, duel.worse) for duel in board.duels] == [("a", "b"), ("b", "c")]
    assert [row.group for row in board.rows] == ["", "", ""]


def test_each_skill_has_its_own_board_and_few_prompts_have_no_interval() -> None:
    skills = {f"p{number}": ["counting", "rare"] if number < 5 else ["counting"] for number in range(30)}
    found = compare(RISING_JUDGE, skills=skills)
    assert list(found.boards) == ["overall", "counting", "rare"]
    counting, rare = found.boards["counting"].rows[0], found.boards["rare"].rows[0]
    assert counting.n == 30 and counting.low < counting.mean
    assert rare.n == 5 and math.isnan(rare.low)


def test_circular_choices_are_counted() -> None:
    circle = [make_pair_comparisons(*[(1.0, 0.0)] * 12, generators=pair) for pair in ("ab", "bc", "ca")]
    line = [make_pair_comparisons(*[(1.0, 0.0)] * 12, generators=pair) for pair in ("ab", "bc", "ac")]
    (going_round, straight) = (compare_pairs(pd.concat(parts)).cycles for parts in (circle, line))
    assert (going_round.triples, going_round.circular, going_round.by_chance) == (12, 12, 3)
    assert (straight.triples, straight.circular) == (12, 0)


def test_a_random_judge_is_intransitive_in_a_quarter_of_the_triples() -> None:
    cycles = compare(Judge((0.0,) * 6, spread=0.0), prompts=200, seed=1).cycles
    assert cycles.circular == pytest.approx(cycles.by_chance, rel=0.15)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            make_pair_comparisons(*[(1.0, 0.0)] * (MIN_PROMPTS - 1)),
            "expected at least 10 prompts with a pair judged in both orders",
        ),
        (make_pair_comparisons(*[(1.0, None)] * 12), r"found 0 \(12 pairs judged in one order only, 0 not at all\)"),
        (make_pair_comparisons((1.0, 1.5)), r"row 1: expected p_first from 0 to 1, found .*p_first=1.5"),
        (make_pair_comparisons((1.0, 0.0), generators=("a", "a")), "row 0: expected images of two generators"),
        (make_pair_comparisons((1.0, 0.0)).assign(prompt_id=None), "row 0: expected an id"),
        (make_pair_comparisons((1.0, 0.0)).assign(first_image_id=None), "row 0: expected an id"),
        (
            make_pair_comparisons((1.0, 0.0)).drop(columns="p_first"),
            r"comparisons: expected column\(s\) p_first, found prompt_id",
        ),
        (make_pair_comparisons((1.0, 0.0))[:0], "comparisons: expected a single metric, found no rows"),
        (
            make_pair_comparisons((1.0, 0.0)).assign(metric=["x", "y"]),
            "expected a single metric, found x and y; choose one",
        ),
    ],
)
def test_a_table_that_cannot_be_compared_is_refused_in_one_sentence(table: pd.DataFrame, message: str) -> None:
    with pytest.raises(SourceError, match=message) as refused:
        compare_pairs(table)
    assert "\n" not in str(refused.value)


def test_a_table_with_very_many_generators_is_refused_before_it_fills_the_memory() -> None:
    chain = [{"first_generator": f"g{n}", "second_generator": f"g{n + 1}", "prompt_id": n % 10} for n in range(4600)]
    table = pd.DataFrame(chain).assign(metric="judge", first_image_id="x", second_image_id="y", p_first=0.5)
    with pytest.raises(SourceError, match="found 10 prompts and 4,601 generators; compare fewer generators at a time"):
        compare_pairs(table, both_orders=False)

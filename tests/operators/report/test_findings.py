"""The sentences of a report match the pairwise tests and claim nothing beyond them."""

import math
from itertools import combinations

import pytest

from plumbline.operators.base.sentences import format_names, format_number, format_signed, take_first_rows
from plumbline.operators.report.findings import (
    compute_mean_ranks,
    describe_agreement,
    describe_certainty,
    describe_contrary_pairs,
    draw_conclusions,
    select_overall_boards,
    write_headline,
)
from plumbline.operators.report.leaders import describe_leaders
from plumbline.operators.results.comparison import Board, Duel, LeaderboardRow
from plumbline.operators.results.summary import OVERALL


def make_row(
    generator: str, rank: int, *, metric: str = "m", skill: str = OVERALL, mean: float = 0.5, n: int = 9
) -> LeaderboardRow:
    place, value = (rank, mean) if n else (None, math.nan)
    return LeaderboardRow(generator, metric, skill, value, value - 0.01, value + 0.01, n, 9 - n, n / 9, place, "")


def make_duel(
    a: str, b: str, better: str | None, *, metric: str = "m", skill: str = OVERALL, difference: float = 0.1
) -> Duel:
    effect = -0.5 if better == b else 0.5
    return Duel(
        metric=metric, skill=skill, better=better, generator_a=a, generator_b=b, difference=difference, low=0.05,
        high=0.15, p_value=0.01, p_holm=0.02, effect=effect, win_rate=0.7, n=20, differing=20,
    )  # fmt: skip


def make_board(metric: str, order: str, *clear: str, skill: str = OVERALL, unscored: str = "") -> Board:
    """Return a board of generators with one-letter names, which `order` lists from the best mean to the worst.

    `clear` lists the clearly different pairs, each with the better generator first.
    """
    means = [make_row(name, at, metric=metric, skill=skill, mean=1 - at / 10) for at, name in enumerate(order, start=1)]
    none = [make_row(name, 0, metric=metric, skill=skill, n=0) for name in unscored]
    better = {frozenset(pair): pair[0] for pair in clear}
    pairs = [
        make_duel(a, b, better.get(frozenset((a, b))), metric=metric, skill=skill)
        for a, b in combinations(sorted(order), 2)
    ]
    return Board(metric, skill, (*means, *none), tuple(pairs))


def describe_board(found: Board) -> str:
    [sentence] = describe_leaders([found])
    return str(sentence)


def limit_prompts(found: Board, prompts: int) -> Board:
    """Return the board as if every pair of generators was compared on `prompts` prompts and differed on all of them."""
    return found._replace(duels=tuple(duel._replace(n=prompts, differing=prompts) for duel in found.duels))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([make_board("m", "ab", "ab")], "a is the best generator."),
        ([make_board(one, "ab", "ab") for one in "mk"], "a is the best generator — by both metrics."),
        ([make_board(one, "ab", "ab") for one in "mkl"], "a is the best generator — by all 3 metrics."),
        ([make_board("m", "ab", "ab"), make_board("k", "ab")],
         "a is the best generator by 1 of 2 metrics. No clear difference from it: b by 1, of 2 metrics."),
        ([make_board("m", "abc", "ab")], "a leads by m. It is not clearly the best. No clear difference from it: c."),
        ([make_board("m", "abc", "ac", "bc")],
         "a shares the lead by m. It is not clearly the best. No clear difference from it: b."),
        ([make_board("m", "abc", "ac", "bc"), make_board("k", "abc", "ab")],
         "a leads or shares the lead by both metrics. It is not clearly the best. "
         "No clear difference from it: b by 1 and c by 1, of 2 metrics."),
        ([make_board("m", "ab", "ab"), make_board("k", "ba", "ba")],
         "The metrics disagree on the best generator: a by 1 and b by 1, of 2 metrics."),
        ([make_board("m", "ab", "ab"), make_board("k", "b", unscored="a")],
         "a is the best generator by 1 of 2 metrics. 1 metric did not score it."),
        ([make_board("m", "abc", "ac", "bc"), make_board("k", "abc", "ab", "ac"), make_board("l", "cab", "ca")],
         "a is the best generator by 1 of 3 metrics. No clear difference from it: b by 2, of 3 metrics. "
         "Clearly better: c by 1, of 3 metrics."),
        ([make_board("m", "abc", "ac", "bc"), make_board("k", "abc")],
         "No clear winner: of 2 metrics, a shares the lead on 1 and b shares the lead on 1."),
        ([make_board("m", "abc", "ab", "bc", "ca")],
         "No clear winner: each generator that beats another is itself beaten."),
        ([make_board(one, "abc") for one in "mk"], "No generator is clearly better than another by any of 2 metrics."),
        ([limit_prompts(make_board(one, "abc"), 6) for one in "mk"],
         "Too few prompts to compare generators by any of 2 metrics."),
        ([limit_prompts(make_board("m", "abc"), 6), make_board("k", "abc")],
         "No generator is clearly better than another by any of 2 metrics."),
        ([make_board("m", "a", unscored="b")], "One generator was scored: a. There is nothing to rank it against."),
        ([make_board("m", "", unscored="a")], "Nothing could be scored. Failed rows: 9 corrupt_image"),
        ([], "Nothing could be scored. Failed rows: 9 corrupt_image"),
    ],
)  # fmt: skip
def test_the_headline_claims_no_more_than_the_pairs_show(found: list[Board], said: str) -> None:
    assert str(write_headline({one.metric: one for one in found}, "9 corrupt_image")) == said


def test_a_generator_that_is_clearly_better_than_only_one_of_two_others_is_no_winner() -> None:
    """Generator a is clearly better than b; c has few prompts and is not clearly different from either."""
    found = make_board("m", "abc", "ab")
    assert (
        str(write_headline({"m": found})) == "a leads by m. It is not clearly the best. No clear difference from it: c."
    )
    assert describe_board(found).endswith("; no clear difference from c.")
    assert [one.generator for one in found.list_leaders()] == ["a"] and found.find_best_row() is None


def test_a_generator_with_few_prompts_does_not_lead_by_its_mean() -> None:
    """Generator c has the highest mean, but is not clearly different from any other generator."""
    said = describe_board(make_board("m", "cab", "ab"))
    assert said == "a leads by m (0.800, 95% interval 0.790 to 0.810); no clear difference from c."


def test_the_highest_mean_does_not_lead_if_another_generator_is_clearly_better() -> None:
    said = describe_board(make_board("m", "abc", "ba", "bc", "ac"))
    assert said.startswith("b is best by m (0.800")
    assert said.endswith("Higher mean, but clearly worse than another prompt by prompt: a.")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (make_board("m", "abc", "ab", "ac"),
         "a is best by m (0.900, 95% interval 0.890 to 0.910). b and c are tied behind it."),
        (make_board("m", "abc", "ab", "ac", "bc"),
         "a is best by m (0.900, 95% interval 0.890 to 0.910). b follows with 0.800."),
        (make_board("m", "abc", "ab", "bc"),
         "a leads by m (0.900, 95% interval 0.890 to 0.910); no clear difference from c."),
        (make_board("m", "abcd", "ad", "bd"),
         "a and b share the lead by m and cannot be told apart. No clear difference from c. "
         "a has the highest mean of these (0.900, 95% interval 0.890 to 0.910)."),
        (make_board("m", "abc", "ab", "bc", "ca"),
         "No generator leads by m: each generator that beats another is itself beaten."),
        (make_board("m", "ab"),
         "No generator leads by m: no two differ clearly. "
         "a has the highest mean of these (0.900, 95% interval 0.890 to 0.910). The clearest difference is between a "
         "(0.900) and b (0.800). If it is real, about 42 prompts would show it."),
        (limit_prompts(make_board("m", "ab"), 5),
         "Too few prompts to say who leads by m: even if all of 5 prompts agreed, no difference would be clear; "
         "at least 6 prompts are needed. "
         "a has the highest mean of these (0.900, 95% interval 0.890 to 0.910)."),
        (make_board("m", "a"), "a has 0.900, 95% interval 0.890 to 0.910 by m."),
        (make_board("m", "", unscored="a"), "m scored nothing."),
        (make_board("m", "ab")._replace(duels=()),
         "m compares no two generators: no two have scores for the same prompt."),
    ],
)  # fmt: skip
def test_a_metrics_sentence_claims_no_more_than_its_pairs_show(found: Board, said: str) -> None:
    assert describe_board(found) == said


@pytest.mark.parametrize(("metrics", "said"), [
    ([("m", "abc", "ab", "ac", "bc"), ("k", "abc", "ab", "ac", "bc")],
     ["a is best by m (0.900) and k (0.900). b follows."]),
    ([("m", "abc", "ac"), ("k", "abc", "ab"), ("l", "ab", "ab")],
     ["a leads by m (0.900) and k (0.900). No clear difference from it: b by m; c by k.",
      "a is best by l (0.900, 95% interval 0.890 to 0.910). b follows with 0.800."]),
    ([("m", "abcd", "ad", "bd"), ("k", "abcd", "ad", "bd")],
     ["a and b share the lead by m and k and cannot be told apart. No clear difference from c."]),
    ([("m", "ab"), ("k", "ba")],
     ["No generator leads by m and k: no two differ clearly. The clearest difference by m is between a (0.900) and b "
      "(0.800). If it is real, about 42 prompts would show it."]),
    ([("m", "abc", "ab", "bc", "ca"), ("k", "abc", "ab", "bc", "ca"), ("l", "ab")],
     ["No generator leads by m and k: each generator that beats another is itself beaten.",
      "No generator leads by l: no two differ clearly. a has the highest mean of these (0.900, 95% interval "
      "0.890 to 0.910). The clearest difference is between a (0.900) and b (0.800). If it is real, about 42 prompts "
      "would show it."]),
    ([("m", "a"), ("k", "a")], ["Only a was scored by m (0.900) and k (0.900)."]),
    ([("m", ""), ("k", "")], ["m and k scored nothing."]),
])  # fmt: skip
def test_metrics_with_the_same_result_share_a_sentence(metrics: list[tuple[str, ...]], said: list[str]) -> None:
    assert [str(sentence) for sentence in describe_leaders([make_board(*of_metric) for of_metric in metrics])] == said


def test_a_note_about_one_metric_is_only_made_about_it() -> None:
    noted, plain = make_board("m", "abc", "ba", "bc", "ac"), make_board("k", "bac", "ba", "bc", "ac")
    first, second = describe_leaders([noted, plain])
    assert str(first) == describe_board(noted) and "Higher mean" in str(first)
    assert str(second) == describe_board(plain)


def test_missing_images_of_a_leader_are_mentioned() -> None:
    first, *others = make_board("m", "ab", "ab").rows
    short = make_board("m", "ab", "ab")._replace(rows=(first._replace(coverage=4 / 9), *others))
    assert "Only 44% of the images of a have a score." in describe_board(short)


def list_agreement(*found: Board) -> list[str]:
    return [str(one) for one in describe_agreement({one.metric: one for one in found})]


def test_metrics_only_agree_on_pairs_with_clear_differences_in_two_metrics() -> None:
    assert list_agreement(make_board("m", "ab", "ab")) == []
    nothing = ["No difference is clear by more than one metric."]
    assert list_agreement(make_board("m", "ab"), make_board("k", "ba")) == nothing
    assert list_agreement(make_board("m", "abc", "ab"), make_board("k", "abc", "bc")) == nothing
    assert list_agreement(make_board("m", "ab", "ab"), make_board("k", "ab"), make_board("l", "ab", "ab")) == [
        "The metrics agree on 1 pair of generators: every metric with a clear difference prefers the same generator."
    ]


def test_metrics_only_contradict_each_other_on_clear_differences_and_other_pairs_are_counted() -> None:
    split = list_agreement(make_board("m", "ab", "ab"), make_board("k", "ab", "ba"), make_board("l", "ab", "ab"))
    assert split == ["The metrics disagree on a and b: a is clearly better by m and l, b is clearly better by k."]
    pairs = list(combinations("abcd", 2))
    every = list_agreement(
        make_board("m", "abcd", *map("".join, pairs)), make_board("k", "abcd", *(b + a for a, b in pairs))
    )  # fmt: skip
    assert len(every) == 6 and every[-1] == "The metrics disagree on 1 more pair of generators."


def test_a_pair_whose_mean_contradicts_its_ranks_is_named() -> None:
    found = make_board("m", "ab")._replace(duels=(make_duel("a", "b", "a", difference=-0.02),))
    [said] = describe_contrary_pairs({"m": found})
    assert str(said) == (
        "a is clearly better than b by m, but not by the mean, because the test uses signed ranks. The mean "
        "difference of a from b is −0.020 on their common prompts."
    )
    assert describe_contrary_pairs({"m": make_board("m", "ab", "ab")}) == []


def describe_weaknesses(*at_skills: Board, metrics: str = "m", order: str = "abc") -> list[str]:
    overall = [make_board(metric, order, *(order[0] + other for other in order[1:])) for metric in metrics]
    found = {(one.metric, one.skill): one for one in (*overall, *at_skills)}
    return [str(one) for one in draw_conclusions(found, select_overall_boards(found)).by_skill]


def test_a_generator_is_behind_at_a_skill_if_most_metrics_show_it_and_none_the_opposite() -> None:
    assert describe_weaknesses(
        make_board("m", "abc", "ab", skill="text"),
        make_board("k", "abc", "ab", skill="text"),
        make_board("l", "abc", skill="text"),
        make_board("m", "abc", "ab", skill="counting"),
        make_board("k", "abc", "ab", skill="counting"),
        make_board("l", "abc", "ba", skill="counting"),
        metrics="mkl",
    ) == [
        "No clear difference from a at any skill by most metrics: c.",
        "b is clearly behind a by most metrics at text.",
    ]
    assert describe_weaknesses() == []


def test_a_generator_that_is_better_at_a_skill_is_named() -> None:
    assert describe_weaknesses(
        make_board("m", "abc", "ab", "ac", skill="text"), make_board("m", "abc", "ba", skill="counting")
    ) == [
        "b is clearly better than a at counting.",
        "b is clearly behind a at text.",
        "c is clearly behind a at text.",
    ]


def test_the_last_of_many_generators_that_are_behind_are_named_together() -> None:
    order = "abcdefghijkl"
    said = describe_weaknesses(make_board("m", order, *("a" + other for other in order[1:]), skill="text"), order=order)
    assert len(said) == 9
    assert said[-1] == "Also clearly behind a at some skill: j, k and l."


def test_a_generator_that_was_not_compared_is_not_called_tied() -> None:
    [said] = describe_weaknesses(make_board("m", "ab", skill="text", unscored="c"))[1:]
    assert said == "Not compared with a at any skill: c."


def test_a_mean_rank_needs_all_metrics() -> None:
    found = {
        "m": make_board("m", "ab", unscored="c"),
        "k": make_board("k", "bc", unscored="a"),
        "l": make_board("l", "", unscored="abc"),
    }
    assert compute_mean_ranks(found) == {"b": 1.5, "a": None, "c": None}
    assert list(compute_mean_ranks(found)) == ["b", "a", "c"]


def test_the_sentence_on_certainty_counts_comparisons_made_and_impossible_ones() -> None:
    one, other = make_duel("a", "b", "a"), make_duel("a", "c", None)._replace(n=3)
    said = str(describe_certainty({"m": make_board("m", "abc")._replace(duels=(one, other))}))
    assert said.startswith("How sure: 1 of 2 comparisons of two generators by one metric is clear, by the signed-rank")
    assert "on 3 to 20 prompts" in said and said.endswith("1 pair could not be compared, as no prompt has both.")


def test_numbers_are_shown_with_a_true_minus_and_no_signed_zero() -> None:
    assert (format_number(-0.5), format_number(math.nan), format_number(None)) == ("−0.500", "–", "–")
    assert (format_signed(0.0499, 1), format_signed(-0.0499, 1), format_signed(-0.06, 2), format_signed(math.nan)) == (
        "0.0",
        "0.0",
        "−0.06",
        "–",
    )
    assert (format_names(["a"]), format_names(["a", "b"]), format_names(list("abcdefg"))) == (
        "a",
        "a and b",
        "a, b, c, d and 3 more",
    )
    assert (take_first_rows([1, 2, 3], 2), take_first_rows([1], 2)) == (([1, 2], 1), ([1], 0))


@pytest.mark.parametrize(
    ("found", "headline_said", "said"),
    [
        ([make_board("m", "cab", "cb", "ca", "ab")],
         "Clearly better than a: c. Clearly worse: b.",
         "Compared with a (0.800) by m: clearly better: c (0.900); clearly worse: b (0.700)."),
        ([make_board("m", "abc", "ab"), make_board("k", "abc")],
         "No generator is clearly better than a by any of 2 metrics. Clearly worse: b by 1, of 2 metrics.",
         "Compared with a (0.900) by m: clearly worse: b (0.800); no clear difference: c."),
        ([make_board("m", "ab")],
         "No generator clearly differs from a by m.",
         "Compared with a (0.900) by m: no clear difference: b. The clearest difference is between a (0.900) and "
         "b (0.800). If it is real, about 42 prompts would show it."),
        ([limit_prompts(make_board("m", "abc"), 5)],
         "Too few prompts to compare with a by m.",
         "Compared with a (0.900) by m: even if all of 5 prompts agreed, no difference would be clear among 2 "
         "comparisons; at least 7 prompts are needed."),
        ([make_board("m", "bc", "bc", unscored="a")],
         "No two generators can be compared. No metric scored two of them on the same prompt.",
         "m compares nothing with a: the metric did not score it."),
    ],
)  # fmt: skip
def test_with_a_baseline_the_other_generators_are_not_compared_with_each_other(
    found: list[Board], headline_said: str, said: str
) -> None:
    beside = [
        one._replace(baseline="a", duels=tuple(its for its in one.duels if "a" in (its.generator_a, its.generator_b)))
        for one in found
    ]
    decision = draw_conclusions({(one.metric, OVERALL): one for one in beside}, {one.metric: one for one in beside})
    assert (str(decision.headline), str(decision.by_metric[0])) == (headline_said, said)

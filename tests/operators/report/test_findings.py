"""The words of a report say what the standings and duels say, and no more."""

import math

import pytest

from operators.comparison import Duel, Standing
from operators.report.findings import (
    agreement_sentences,
    board_sentence,
    boards,
    headline,
    leaders,
    names,
    number,
    signed,
    skill_sentences,
)
from operators.summary import OVERALL


def standing(
    generator: str, rank: int, group: str, *, metric: str = "gecko", mean: float = 0.5, n: int = 9
) -> Standing:
    mean = mean if n else math.nan
    return Standing(generator, metric, OVERALL, mean, mean - 0.01, mean + 0.01, n, 9 - n, n / 9, rank, group)


def board(metric: str, *groups: str) -> list[Standing]:
    """Generators a, b, c... in this order, in these tie groups."""
    return [standing("abcdef"[at], at + 1, group, metric=metric, mean=0.9 - at / 10) for at, group in enumerate(groups)]


def duel(
    better: str | None, *, metric: str = "gecko", skill: str = OVERALL, pair: tuple[str, str] = ("a", "b")
) -> Duel:
    return Duel(
        metric=metric, skill=skill, better=better, generator_a=pair[0], generator_b=pair[1], difference=0.1, low=0.05,
        high=0.15, p_value=0.01, p_holm=0.02, effect=0.5, win_rate=0.7, n=20,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([board("m", "a", "b")], "a is the best generator."),
        ([board("m", "a", "b"), board("k", "a", "b")], "a is the best generator — by both metrics."),
        ([board(one, "a", "b") for one in "mkl"], "a is the best generator — by all 3 metrics."),
        ([board("m", "a", "b"), board("k", "a", "a")], "a is the best generator by 1 of 2 metrics. "
                                                       "The other cannot tell it from b."),
        ([board("m", "a", "a", "b")], "a comes first, but not alone: b cannot be told from it."),
        ([board("m", "a", "b"), [standing("b", 1, "a", metric="k"), standing("a", 2, "b", metric="k")]],
         "The metrics disagree on the best generator: a by 1 and b by 1 of 2 metrics."),
        ([[standing("a", 1, "a")]], "One generator was scored: a. There is nothing to rank it against."),
        ([[standing("a", 1, "", n=0)]], "Nothing could be scored. The health of the run, below, says why."),
        ([], "Nothing could be scored. The health of the run, below, says why."),
    ],
)  # fmt: skip
def test_the_headline_says_no_more_than_the_tie_groups_do(found: list[list[Standing]], said: str) -> None:
    assert str(headline({its[0].metric: its for its in found})) == said


def test_a_leader_that_shares_a_letter_is_not_called_best() -> None:
    assert str(board_sentence("m", board("m", "a", "b", "b"))).endswith("b and c are tied behind it.")
    assert "b cannot be told from it" in str(board_sentence("m", board("m", "a", "ab", "b")))
    assert [one.generator for one in leaders(board("m", "ab", "b", "a", "c"))] == ["a", "b", "c"]


def test_a_leader_with_missing_images_is_said_to_have_them() -> None:
    assert "Only 44% of its images have a score." in str(
        board_sentence("m", [standing("a", 1, "a", n=4), *board("m", "a", "b")[1:]])
    )


def test_metrics_contradict_only_where_both_see_a_clear_difference() -> None:
    assert agreement_sentences([duel("a")]) == []
    agreeing = agreement_sentences([duel("a"), duel(None, metric="dsg"), duel("a", metric="tifa")])
    assert [one.lead for one in agreeing] == ["The metrics agree."]
    split = agreement_sentences([duel("a"), duel("b", metric="dsg"), duel("a", metric="tifa")])
    assert str(split[0]) == (
        "The metrics disagree on a and b: a is clearly better by gecko and tifa, b is clearly better by dsg."
    )


def test_a_generator_is_behind_at_a_skill_where_most_metrics_say_so() -> None:
    said = skill_sentences(
        [],
        [
            duel("a", skill="text"),
            duel("a", skill="text", metric="dsg"),
            duel("a", skill="counting"),
            duel(None, skill="counting", metric="dsg"),
            duel(None, skill="counting", pair=("a", "c")),
            duel(None, skill="text", pair=("a", "c")),
        ],
        ["a", "b", "c"],
    )
    assert [str(one) for one in said] == ["Not clearly behind a at any skill: c.", "b is clearly behind a at text."]
    assert skill_sentences([], [duel("a")], ["a", "b"]) == []


def test_boards_are_in_the_order_of_their_ranks() -> None:
    found = boards([standing("b", 2, "b"), standing("a", 1, "a")])
    assert [one.generator for one in found["gecko"]] == ["a", "b"]


def test_numbers_are_shown_with_a_true_minus_and_no_signed_zero() -> None:
    assert (number(-0.5), number(math.nan), number(None)) == ("−0.500", "–", "–")
    assert (signed(0.0499, 1), signed(-0.0499, 1), signed(-0.06, 2), signed(math.nan)) == ("0.0", "0.0", "−0.06", "–")
    assert (names(["a"]), names(["a", "b"]), names(list("abcdefg"))) == ("a", "a and b", "a, b, c, d and 3 more")

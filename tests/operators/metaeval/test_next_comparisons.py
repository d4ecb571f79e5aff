"""Comparisons are chosen actively: far fewer are needed, and decisions are wrong in at most 5 of 100 studies."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metaeval.next_comparisons import NextComparisons, next_pairs
from plumbline.operators.statistics.next_pairs import rank_pairs
from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.operators.statistics.sequential import A_BETTER, ALIKE, B_BETTER, UNDECIDED, draw_balanced_order
from tests.operators.choosing import Floats, Judge

N_PROMPTS = 256
JUDGE_OF_SEVEN = Judge(tuple(0.4 * np.arange(7)), bias=0.5, ties=0.1)
"""A judge of seven generators: each wins 56% of its comparisons with the next weaker one.

The strongest wins 82% of its comparisons with the weakest.
"""


class Study(NamedTuple):
    asked: float
    """Fraction of all comparisons that were made."""
    false: bool
    """True if any decision contradicts the result over all prompts."""
    undecided: int
    """Number of undecided pairs of generators that do not win equally often over all prompts."""


def ask_actively(leads: Floats, seed: int, options: AdaptiveConfig, at_once: int = 7) -> Study:
    """Simulate a study that asks about the `at_once` highest ranked pairs at a time, until no pair is ranked.

    `leads` contains a number for each prompt and pair of generators: 1 if the first generator wins, -1 if it loses,
    or a number in between.
    """
    order, looks = draw_balanced_order([""] * len(leads), seed), np.zeros(leads.shape[1], np.int64)
    while not (ranking := rank_pairs(leads, order, looks, options)).is_done:
        looks[ranking.next[:at_once]] += 1
    asked = sum(int((order[:end] >= 0).sum()) for end in looks)
    means = np.round(leads.mean(axis=0), 9)
    true = np.select([means > 0, means < 0], [A_BETTER, B_BETTER], ALIKE)
    alike = (ranking.verdict == ALIKE) & (np.abs(means) <= options.get_indifference("") + 1e-9)
    false = (ranking.verdict != true) & (ranking.verdict != UNDECIDED) & ~alike
    undecided = (ranking.verdict == UNDECIDED) & (means != 0)
    return Study(asked / leads.size, bool(false.any()), int(undecided.sum()))


@pytest.mark.parametrize("studies", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_seven_generators_are_told_apart_with_fewer_than_half_of_all_comparisons(studies: int) -> None:
    random = np.random.default_rng(0)
    found = [
        ask_actively(2 * JUDGE_OF_SEVEN.draw_outcomes(random, N_PROMPTS) - 1, seed, AdaptiveConfig())
        for seed in range(studies)
    ]
    asked, false = [study.asked for study in found], sum(study.false for study in found)
    print(
        f"\nasked {np.mean(asked):.1%} of the comparisons, at most {max(asked):.1%}; {false} of {studies} studies are "
        "wrong"
    )
    assert np.mean(asked) < 0.45 and max(asked) < 0.5
    assert false <= 0.05 * studies and not any(study.undecided for study in found)


@pytest.mark.parametrize("studies", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_equal_win_rates_are_wrongly_told_apart_in_at_most_5_of_100_studies(studies: int) -> None:
    """In two of the three pairs, both generators win equally often over all prompts; the third is decided early."""
    random = np.random.default_rng(1)
    tied = np.tile([1.0, -1.0, 0.5, -0.5], N_PROMPTS // 4)
    found = []
    for seed in range(studies):
        leads = np.stack([random.permutation(tied), random.permutation(tied), np.ones(N_PROMPTS)], axis=1)
        found.append(ask_actively(leads, seed, AdaptiveConfig(), at_once=1))
    false = sum(study.false for study in found)
    print(f"\n{false} of {studies} studies are wrong")
    assert false <= 0.05 * studies


def test_equal_generators_are_found_alike_if_small_differences_do_not_matter() -> None:
    leads = 2 * Judge((0.0, 0.0, 0.0), ties=0.5).draw_outcomes(np.random.default_rng(2), 1000) - 1
    study = ask_actively(leads, 0, AdaptiveConfig(indifference=0.3))
    assert (study.false, study.undecided) == (False, 0) and study.asked < 0.7


def test_unasked_pairs_come_first_and_then_those_that_will_be_decided_soonest() -> None:
    order = draw_balanced_order([""] * 64, 0)
    leads = np.stack([np.tile([1.0, -0.9], 32), np.tile([1.0, 0.0], 32), np.ones(64)], axis=1)
    assert rank_pairs(leads, order, np.array([0, 0, 0]), AdaptiveConfig()).next.tolist() == [0, 1, 2]
    assert rank_pairs(leads, order, np.array([1, 1, 0]), AdaptiveConfig()).next.tolist() == [2, 1, 0]
    after = rank_pairs(leads, order, np.array([8, 8, 8]), AdaptiveConfig())
    assert after.verdict.tolist() == [A_BETTER, A_BETTER, A_BETTER] and after.is_done


@pytest.mark.parametrize("studies", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_with_a_tenth_of_the_comparisons_more_pairs_are_decided_than_if_all_pairs_are_asked_evenly(
    studies: int,
) -> None:
    looks_in_all = N_PROMPTS // 8 * 21
    decided = {"ranked": 0, "evenly": 0}
    for seed in range(studies):
        leads = 2 * JUDGE_OF_SEVEN.draw_outcomes(np.random.default_rng(seed), N_PROMPTS) - 1
        order = draw_balanced_order([""] * N_PROMPTS, seed)
        for rule in decided:
            looks = np.zeros(21, np.int64)
            while looks.sum() < looks_in_all / 10:
                upcoming = rank_pairs(leads, order, looks, AdaptiveConfig()).next
                by_looks = upcoming[np.argsort(looks[upcoming], kind="stable")]
                looks[(upcoming if rule == "ranked" else by_looks)[:3]] += 1
            decided[rule] += int((rank_pairs(leads, order, looks, AdaptiveConfig()).verdict != UNDECIDED).sum())
    print(f"\ndecided, of {21 * studies} pairs: {decided}")
    assert decided["ranked"] > 1.2 * decided["evenly"]


def select_rows(table: pd.DataFrame, proposed: NextComparisons, count: int) -> pd.DataFrame:
    """Return the rows of the table that the first `count` proposals ask for, in both orders of the images."""
    parts = []
    for pair in proposed.next[:count]:
        both = {pair.generator_a, pair.generator_b}
        is_pair = table["first_generator"].isin(both) & table["second_generator"].isin(both)
        parts.append(table[is_pair & table["prompt_id"].isin(pair.prompt_ids)])
    return pd.concat(parts)


def test_a_table_of_comparisons_grows_until_every_pair_is_decided() -> None:
    table = Judge((0.0, 1.5, 3.0), bias=0.5).compare(np.random.default_rng(3), 120)
    prompts, generators = [f"p{number}" for number in range(120)], ["g0", "g1", "g2"]
    asked = table[:0]
    while not (found := next_pairs(asked, prompts, generators)).is_done:
        asked = pd.concat([asked, select_rows(table, found, 2)])
    assert {(one.generator_a, one.generator_b, one.verdict) for one in found.decisions} == {
        ("g0", "g1", "b"),
        ("g0", "g2", "b"),
        ("g1", "g2", "b"),
    }
    assert len(asked) < len(table) / 2
    assert not asked.duplicated().any()


def test_failed_comparisons_count_as_asked_and_as_no_evidence() -> None:
    table = Judge((0.0, 3.0)).compare(np.random.default_rng(4), 40).assign(p_first=None)
    (pair,) = next_pairs(table, [f"p{number}" for number in range(40)], ["g0", "g1"]).decisions
    assert (pair.verdict, pair.n) == ("undecided", 0)
    assert next_pairs(table, [f"p{number}" for number in range(40)], ["g0", "g1"]).is_done


def test_without_comparisons_every_pair_is_proposed_with_its_first_prompts() -> None:
    found = next_pairs([], ["x", "y", "z"], ["a", "b", "c"])
    assert [(one.generator_a, one.generator_b) for one in found.next] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert {one.prompt_ids for one in found.next} == {found.next[0].prompt_ids}


@pytest.mark.parametrize(
    ("prompts", "generators", "message"),
    [
        (["x"], ["a", "a"], "generators: expected at least 2, without duplicates, found 2, of which 1 are different"),
        ([], ["a", "b"], "prompt_ids: expected at least 1, without duplicates, found 0"),
    ],
)
def test_invalid_names_are_refused(prompts: list[str], generators: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        next_pairs([], prompts, generators)


def test_comparisons_match_prompts_and_generators_whose_names_are_no_texts() -> None:
    other = "half \ud83d"
    shown = [
        {"prompt_id": prompt, "metric": "m", "first_generator": first, "second_generator": second, "p_first": won}
        | {"first_image_id": prompt, "second_image_id": prompt}
        for prompt in range(40)
        for first, second, won in ((7, other, 1), (other, 7, 0))
    ]
    labels: list[Any] = [None, "a"] * 20
    found = next_pairs(shown, range(40), [7, other], labels=labels)  # type: ignore[list-item]
    (pair,) = found.decisions
    assert (pair.generator_a, pair.generator_b, pair.verdict) == ("7", r"half \ud83d", "a") and found.is_done

"""Two names share a letter if, and only if, they do not differ significantly, for any pattern of differences."""

import re
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumbline.operators.statistics.compact_letters import compact_letters


def make_pairs(*pairs: str) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in pairs}


@pytest.mark.parametrize(
    ("different", "letters"),
    [
        (make_pairs(), {"a": "a", "b": "a", "c": "a", "d": "a"}),
        (make_pairs("ab", "ac", "ad", "bc", "bd", "cd"), {"a": "a", "b": "b", "c": "c", "d": "d"}),
        (make_pairs("ac", "ad", "bd"), {"a": "a", "b": "ab", "c": "bc", "d": "c"}),
        (make_pairs("ab"), {"a": "a", "b": "b", "c": "ab", "d": "ab"}),
        (make_pairs("ab", "cd"), {"a": "ab", "b": "cd", "c": "ac", "d": "bd"}),
    ],
)
def test_four_names_get_the_expected_letters(different: set[frozenset[str]], letters: dict[str, str]) -> None:
    assert compact_letters("abcd", different) == letters


@settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 12), st.floats(0, 1), st.randoms(use_true_random=False))
def test_two_names_share_a_letter_exactly_if_they_do_not_differ(count: int, share: float, random: object) -> None:
    names = [f"n{number}" for number in range(count)]
    pairs = [frozenset(pair) for pair in combinations(names, 2)]
    different = {pair for pair in pairs if random.random() < share}  # type: ignore[attr-defined]
    letters = {name: set(re.findall(r"[a-zA-Z]\d*", its)) for name, its in compact_letters(names, different).items()}
    assert all(letters[name] for name in names)
    assert {pair for pair in pairs if not set.intersection(*(letters[name] for name in pair))} == different


def test_there_are_never_more_letters_than_pairs() -> None:
    """Names differ only within 25 groups of three, so there are 3**25 sets of names that could each have a letter."""
    names = [f"{place}{one}" for place in range(25) for one in "abc"]
    different = {frozenset((f"{place}{a}", f"{place}{b}")) for place in range(25) for a, b in ("ab", "ac", "bc")}
    letters = {name: set(re.findall(r"[a-zA-Z]\d*", its)) for name, its in compact_letters(names, different).items()}
    assert len(set().union(*letters.values())) <= len(names) * (len(names) - 1) / 2
    assert all(
        (letters[a] & letters[b] == set()) == (frozenset((a, b)) in different) for a, b in combinations(names, 2)
    )


def test_an_empty_list_of_names_has_no_letters() -> None:
    assert compact_letters([], set()) == {}

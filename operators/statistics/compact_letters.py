"""Compact letter displays: two names share a letter if and only if they are not significantly different."""

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from string import ascii_letters

import numpy as np
from numpy.typing import NDArray

Group = tuple[int, ...]
"""Indices of the names that share a letter."""


def compact_letters(names: Sequence[str], different: Collection[frozenset[str]]) -> dict[str, str]:
    """Return each name's letters by insert-and-absorb (Piepho 2004); `different` has the pairs that differ.

    At first all names share one letter. Every pair that differs splits each letter that it shares in two, each without
    one name of the pair. A letter is dropped if every two of its names share another letter; so there are never more
    letters than pairs. The 53rd letter is a2.
    """
    groups = sorted(_group(names, different))
    return {
        name: "".join(_letter(number) for number, group in enumerate(groups) if index in group)
        for index, name in enumerate(names)
    }


def _group(names: Sequence[str], different: Collection[frozenset[str]]) -> list[Group]:
    groups: list[Group] = [tuple(range(len(names)))] if names else []
    shared = np.ones((len(names), len(names)), np.int64)  # number of letters that two names share
    for pair in combinations(range(len(names)), 2):
        if frozenset(names[index] for index in pair) in different:
            both = [group for group in groups if set(pair) <= set(group)]
            split = [tuple(index for index in group if index != excluded) for group in both for excluded in pair]
            _count(shared, both, -1)
            _count(shared, split, 1)
            groups = [group for group in groups if group not in both] + list(_absorb(shared, split))
    return groups


def _count(shared: NDArray[np.int64], groups: Sequence[Group], sign: int) -> None:
    for group in groups:
        shared[np.ix_(group, group)] += sign


def _absorb(shared: NDArray[np.int64], groups: Sequence[Group]) -> Iterator[Group]:
    """Yield the groups with two names that share no other letter; stop counting the rest."""
    for group in groups:
        if (shared[np.ix_(group, group)] > 1).all():
            _count(shared, [group], -1)
        else:
            yield group


def _letter(number: int) -> str:
    cycle, index = divmod(number, len(ascii_letters))
    return ascii_letters[index] + (str(cycle + 1) if cycle else "")

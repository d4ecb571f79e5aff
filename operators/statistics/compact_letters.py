"""Letters beside names, of which two share one exactly where they are not told apart: a compact letter display."""

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from string import ascii_letters

import numpy as np
from numpy.typing import NDArray

Places = tuple[int, ...]


def compact_letters(names: Sequence[str], apart: Collection[frozenset[str]]) -> dict[str, str]:
    """Each name's letters by insert-and-absorb (Piepho 2004); `apart` are the pairs that are told apart.

    One letter of all is split at every such pair into two, each without one of the pair, and a letter is kept where it
    joins two names that no other letter joins: so there are never more letters than pairs. The 53rd letter is a2.
    """
    columns = sorted(_columns(names, apart))
    return {
        name: "".join(_letter(number) for number, column in enumerate(columns) if place in column)
        for place, name in enumerate(names)
    }


def _columns(names: Sequence[str], apart: Collection[frozenset[str]]) -> list[Places]:
    """The places of the names that have each letter."""
    columns: list[Places] = [tuple(range(len(names)))] if names else []
    joined = np.ones((len(names), len(names)), np.int64)
    for pair in combinations(range(len(names)), 2):
        if frozenset(names[place] for place in pair) in apart:
            both = [column for column in columns if set(pair) <= set(column)]
            split = [tuple(place for place in column if place != left) for column in both for left in pair]
            _count(joined, both, -1)
            _count(joined, split, 1)
            columns = [column for column in columns if column not in both] + list(_needed(joined, split))
    return columns


def _count(joined: NDArray[np.int64], columns: Sequence[Places], times: int) -> None:
    """Adds to how many letters join every two places."""
    for column in columns:
        joined[np.ix_(column, column)] += times


def _needed(joined: NDArray[np.int64], columns: Sequence[Places]) -> Iterator[Places]:
    """The letters that join two places which no other joins; the others no longer count."""
    for column in columns:
        if (joined[np.ix_(column, column)] > 1).all():
            _count(joined, [column], -1)
        else:
            yield column


def _letter(number: int) -> str:
    turn, place = divmod(number, len(ascii_letters))
    return ascii_letters[place] + (str(turn + 1) if turn else "")

"""Compact letter displays: two names share a letter if and only if they are not significantly different."""

from collections.abc import Collection, Sequence
from itertools import combinations
from string import ascii_letters

import numpy as np


def compact_letters(names: Sequence[str], different: Collection[frozenset[str]]) -> dict[str, str]:
    """Return each name's letters by insert-and-absorb (Piepho 2004); `different` contains the pairs that differ.

    At first all names share one letter. For every pair that differs, each letter that both names have is split in two,
    each without one of the names. A letter is dropped if any two of its names also share another letter, so there are
    never more letters than pairs. After a to z and A to Z come a2 to Z2, and so on.
    """
    groups = [tuple(range(len(names)))] if names else []  # for each letter, the indices of the names that have it
    shared = np.ones((len(names), len(names)), np.int64)  # number of letters that two names share
    for pair in combinations(range(len(names)), 2):
        if frozenset(names[index] for index in pair) not in different:
            continue
        both = [group for group in groups if set(pair) <= set(group)]
        split = [tuple(index for index in group if index != excluded) for group in both for excluded in pair]
        for group in both:
            shared[np.ix_(group, group)] -= 1
        for group in split:
            shared[np.ix_(group, group)] += 1
        groups = [group for group in groups if group not in both]
        for group in split:
            if (shared[np.ix_(group, group)] > 1).all():
                shared[np.ix_(group, group)] -= 1
            else:
                groups.append(group)
    letters = dict.fromkeys(names, "")
    for number, group in enumerate(sorted(groups)):
        cycle, index = divmod(number, len(ascii_letters))
        for member in group:
            letters[names[member]] += ascii_letters[index] + (str(cycle + 1) if cycle else "")
    return letters

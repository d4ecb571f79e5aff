"""Near-duplicates among prompts."""

import re
from collections.abc import Sequence

from datasketch import MinHash, MinHashLSH

RUN = 3
"""Words that stand together."""
PERMUTATIONS = 128
SEED = 1

_WORD = re.compile(r"\w+")


def shingles(text: str) -> frozenset[str]:
    """A prompt's runs of three words, without case and punctuation; of a shorter one all its words."""
    words = _WORD.findall(text.casefold()) or [text]
    return frozenset(" ".join(words[start : start + RUN]) for start in range(max(1, len(words) - RUN + 1)))


def near_duplicates(texts: Sequence[str], threshold: float) -> list[int | None]:
    """Of each prompt the first one before it that it repeats, if it repeats any that is not a repetition itself.

    Two prompts repeat each other where of all their runs of three words they share `threshold` (in (0, 1]) or more: so
    other spelling is no other prompt, and another number, colour or order is one, unless the prompt is long. Candidates
    are found by MinHash with locality-sensitive hashing (Broder 1997; datasketch) and then compared exactly: what is
    given repeats indeed, and a pair close to the threshold may be missed.
    """
    sets = [shingles(text) for text in texts]
    index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, weights=(0.1, 0.9))
    hashes = MinHash.generator(
        ([one.encode("utf-8", "replace") for one in own] for own in sets), num_perm=PERMUTATIONS, seed=SEED
    )
    repeated: list[int | None] = []
    for place, hashed in enumerate(hashes):
        alike = [other for other in index.query(hashed) if _jaccard(sets[place], sets[other]) >= threshold]
        repeated.append(min(alike, default=None))
        if not alike:
            index.insert(place, hashed)
    return repeated


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other)

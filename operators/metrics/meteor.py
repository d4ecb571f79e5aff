"""METEOR: how well the words of one text match those of another, and in what order (Banerjee and Lavie 2005)."""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from plumbline.operators.metrics.stemming import stem

ALPHA, BETA, GAMMA = 0.9, 3.0, 0.5
"""Weight of the recall, exponent and weight of the penalty: those of NLTK."""
Pairs = list[tuple[int, int]]


def meteor(candidate: str, reference: str) -> float:
    """METEOR in [0, 1] of a candidate beside one reference; 0 where no word matches.

    Words match where they are the same but for case, else where their stems are; synonyms, for which METEOR has
    WordNet, do not count. Punctuation is left out. Of several places a word is matched with the last, as in NLTK.
    """
    words, wanted = _words(candidate), _words(reference)
    matched = _match(words, wanted)
    if not matched:
        return 0.0
    precision, recall = len(matched) / len(words), len(matched) / len(wanted)
    mean = precision * recall / (ALPHA * precision + (1 - ALPHA) * recall)
    broken = _chunks(matched) / len(matched)
    return mean * (1 - GAMMA * math.pow(broken, BETA))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+(?:['’]\w+)*", text.lower())


def _match(words: Sequence[str], wanted: Sequence[str]) -> Pairs:
    """Which word is matched with which, in the candidate's order: the same words first, then the same stems."""
    same = _match_alike(dict(enumerate(words)), dict(enumerate(wanted)))
    left = {place: stem(word) for place, word in enumerate(words) if place not in {one for one, _ in same}}
    open_ = {place: stem(word) for place, word in enumerate(wanted) if place not in {other for _, other in same}}
    return sorted(same + _match_alike(left, open_))


def _match_alike(words: dict[int, str], wanted: dict[int, str]) -> Pairs:
    """From the end, each word with the last one alike that is not taken."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, word in wanted.items():
        places[word].append(place)
    return [(place, places[word].pop()) for place, word in reversed(words.items()) if places.get(word)]


def _chunks(matched: Pairs) -> int:
    """Into how many runs, in the order of both texts, the matches fall."""
    return 1 + sum(after != (before[0] + 1, before[1] + 1) for before, after in pairwise(matched))

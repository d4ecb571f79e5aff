"""Porter's stemmer of English words (M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980)."""

import re
from collections.abc import Mapping
from functools import lru_cache

_SECOND = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "abli": "able", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble",
}  # fmt: skip
_THIRD = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_FOURTH = {
    **dict.fromkeys(("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent"), ""),
    **dict.fromkeys(("ou", "ism", "ate", "iti", "ous", "ive", "ize"), ""),
    "sion": "s",
    "tion": "t",
}
"""`ion` goes only behind s or t, which stay."""


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """The stem of a word of small letters, of short ones too: the paper makes no exception of them, as later versions
    of the stemmer do (`is` becomes `i`).
    """
    word = _past_and_progressive(_plural(word))
    if word.endswith("y") and "v" in _sounds(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(_replaced(_replaced(word, _SECOND, 0), _THIRD, 0), _FOURTH, 1)
    return _tidied(word)


def _sounds(word: str) -> str:
    """Its letters as vowels and consonants; a y behind a consonant is a vowel."""
    sounds = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and sounds.endswith("c"))
        sounds += "v" if vowel else "c"
    return sounds


def _measure(word: str) -> int:
    """How often a consonant follows a vowel."""
    return _sounds(word).count("vc")


def _closed(word: str) -> bool:
    """Whether it ends in consonant, vowel, consonant, the last none of w, x, y."""
    return _sounds(word).endswith("cvc") and word[-1] not in "wxy"


def _doubled(word: str) -> bool:
    """Whether it ends in the same consonant twice."""
    return word[-1:] == word[-2:-1] and _sounds(word).endswith("c")


def _plural(word: str) -> str:
    """Step 1a."""
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_progressive(word: str) -> str:
    """Step 1b."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    ending = re.search("(ed|ing)$", word)
    if ending is None or "v" not in _sounds(word[: ending.start()]):
        return word
    word = word[: ending.start()]
    if word.endswith(("at", "bl", "iz")) or (_measure(word) == 1 and _closed(word)):
        return word + "e"
    return word[:-1] if _doubled(word) and word[-1] not in "lsz" else word


def _replaced(word: str, endings: Mapping[str, str], least: int) -> str:
    """The longest ending that it has replaced, where what stands before has a measure above `least`."""
    ending = max((ending for ending in endings if word.endswith(ending)), key=len, default=None)
    if ending is None:
        return word
    shorter = word[: -len(ending)] + endings[ending]
    before = shorter if ending in ("sion", "tion") else word[: -len(ending)]
    return shorter if _measure(before) > least else word


def _tidied(word: str) -> str:
    """Steps 5a and 5b."""
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _closed(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word

"""METEOR: how well the words of one text match those of another, and in what order (Banerjee and Lavie 2005)."""

import re
from functools import cache
from typing import Any


class _NoSynonyms:
    """In place of WordNet, which is a separate download."""

    def synsets(self, word: str) -> tuple[()]:
        """No word has any."""
        return ()


def meteor(candidate: str, reference: str) -> float:
    """METEOR in [0, 1] of a candidate beside one reference, by NLTK; 0 where no word matches.

    Words match where they are the same but for case, else where their stems are, by Porter's stemmer as in his paper;
    synonyms do not count. Punctuation is left out.
    """
    from nltk.translate.meteor_score import single_meteor_score  # takes a second

    words, wanted = _words(candidate), _words(reference)
    return float(single_meteor_score(wanted, words, stemmer=_stemmer(), wordnet=_NoSynonyms()))


@cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer(mode=PorterStemmer.ORIGINAL_ALGORITHM)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+(?:['’]\w+)*", text.lower())

"""What prompts are like as texts: how long, how hard to read, how deep, and how people rate their words.

The properties of "What makes a good metric?" (sec. 3.1 and 3.2): a metric that goes with them measures the prompt.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from statistics import fmean

from plumbline.operators.errors import ConfigError
from plumbline.operators.question_quality import content_words

Property = Callable[[str], float]
"""A number of a text; nan where it has none."""

_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_VOWELS = re.compile(r"[aeiouy]+")
_SILENT = re.compile(
    r"(?:[^aeiouyl]|[aeiouy]l)e$|[^aeiouytd]ed$|(?<![sxzcg])(?<!sh)(?<!ch)(?<![^aeiouy]l)(?<![aeiouy])es$"
)


def length(text: str) -> float:
    """How many content words it has: all but those that say how others belong together (the paper: no stop words)."""
    return float(len(content_words(text)))


def grade(text: str) -> float:
    """The Flesch-Kincaid grade level: 0.39 words per sentence + 11.8 syllables per word - 15.59 (Kincaid et al.
    1975); nan of a text without words.
    """
    words = _WORD.findall(text)
    if not words:
        return math.nan
    sentences = max(1, len(_SENTENCE_END.findall(text.strip())))
    return 0.39 * len(words) / sentences + 11.8 * sum(map(syllables, words)) / len(words) - 15.59


@lru_cache(maxsize=20_000)
def syllables(word: str) -> int:
    """The syllables of an English word by its letters: its groups of vowels but for silent endings, at least one.

    Of the 6,344 words of letters that syllapy 0.8 lists, 91% are counted right and 99% within one.
    """
    letters = re.sub("[^a-z]", "", word.casefold())
    return max(1, len(_VOWELS.findall(letters)) - bool(_SILENT.search(letters)))


def depth(heads: Sequence[int]) -> float:
    """The longest way from a word to the root of its sentence, in arcs, given each word's head; a root is its own."""
    return float(max((_distance(heads, word) for word in range(len(heads))), default=math.nan))


def _distance(heads: Sequence[int], word: int) -> int:
    steps = 0
    while heads[word] != word and steps < len(heads):
        word, steps = heads[word], steps + 1
    return steps


def mean_rating(ratings: Mapping[str, float], text: str) -> float:
    """The mean of people's ratings of its content words, by word in lower case; a word that nobody rated counts as the
    lowest rated one (the paper, footnote 3). nan of a text without content words.
    """
    words = [text[start:end].casefold() for start, end in content_words(text)]
    lowest = min(ratings.values())
    return fmean(ratings.get(word, lowest) for word in words) if words else math.nan


def properties(word_ratings: Mapping[str, Mapping[str, float]], parse: Property | None = None) -> dict[str, Property]:
    """What is measured of every prompt, by name; `parse` gives the depth, and `word_ratings` one property each."""
    rated = {name: partial(mean_rating, ratings) for name, ratings in word_ratings.items()}
    parsed = {"depth": parse} if parse is not None else {}
    return {"length": length, "grade": grade, **parsed, **rated}


def open_parser(name: str) -> Property:
    """What gives the depth of a text's dependency parse, the deepest of its sentences.

    Only packages are opened, never folders. Raises ConfigError where spaCy, the package or its parser is missing.
    """
    try:
        import spacy
    except ImportError as error:
        raise ConfigError(f"diagnosis.parser={name}: spaCy is not installed; install the extra parse") from error
    if not spacy.util.is_package(name):
        raise ConfigError(
            f"diagnosis.parser={name}: no installed spaCy pipeline is called so; python -m spacy download {name}"
        )
    pipeline = spacy.load(name, exclude=["ner", "lemmatizer"])
    if "parser" not in pipeline.pipe_names:
        raise ConfigError(f"diagnosis.parser={name}: the pipeline has no parser; use another, as en_core_web_sm")

    def parse(text: str) -> float:
        heads = [token.head.i for token in pipeline(text)]
        return depth(heads) if heads else math.nan

    return parse

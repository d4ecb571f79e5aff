"""Human ratings of words, and word lists, as properties of prompts ("What makes a good metric?", sec. 3.2)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.results.question_quality import find_content_words
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.sheets import read_sheet

UnratedWordRule = Literal["lowest", "zero", "left_out"]
"""Rule for unrated words: they count as the lowest rating (as in the paper), count as 0, or are left out.

The paper's footnote 3 describes the alternatives.
"""


class RatedWords(NamedTuple):
    """Words with their human ratings."""

    ratings: Mapping[str, float]
    """Rating of each word, in lower case; contains at least one word."""
    unrated: UnratedWordRule = "lowest"


def compute_mean_rating(rated: RatedWords, text: str) -> float:
    """Return the mean rating of a text's content words; nan if there are none."""
    words = [text[start:end].casefold() for start, end in find_content_words(text)]
    if rated.unrated == "left_out":
        words = [word for word in words if word in rated.ratings]
    other = min(rated.ratings.values()) if rated.unrated == "lowest" else 0.0
    return fmean(rated.ratings.get(word, other) for word in words) if words else math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class WordRatings:
    """A file of words, with or without human ratings."""

    path: str
    word: str = "word"
    """Column of words; a cell may contain several, separated by commas."""
    rating: str | None = "rating"
    """Column of ratings, or null for a list without ratings, such as ImageNet-21k's classes. The property is then the
    fraction of a prompt's words that are in the list.
    """
    unrated: UnratedWordRule | None = None
    """Rating of words that are not in the list: `lowest` (the lowest rating), `zero` or `left_out`. Null means
    `lowest`, or `zero` for a list without ratings.
    """

    def __post_init__(self) -> None:
        if self.rating is None and self.unrated not in (None, "zero"):
            raise ConfigError(
                "word_ratings.unrated: expected null or zero, because unlisted words count as 0 if the list has no "
                f"ratings, got {self.unrated!r}; leave it out, or set word_ratings.rating to the column of ratings"
            )

    @property
    def unlisted_words(self) -> UnratedWordRule:
        """Rule for words that are not in the list."""
        return self.unrated or ("lowest" if self.rating is not None else "zero")


def read_ratings(key: str, words: WordRatings, table: Place) -> RatedWords:
    """Return the rating of each word, or 1 for each word of a list without ratings.

    If a word is repeated, its first rating is used. Raises ConfigError if no word has a rating.
    """
    columns = [words.word] if words.rating is None else [words.word, words.rating]
    sheet = read_sheet(table, columns)
    sheet.require(columns, f"set {key}.word and {key}.rating to the columns of words and ratings")
    numbers = [1.0] * len(sheet) if words.rating is None else sheet.numbers(words.rating).to_pylist()
    ratings: dict[str, float] = {}
    for cell, rating in zip(sheet.texts(words.word), numbers, strict=True):
        for word in (cell or "").split(",") if rating is not None else ():
            if name := word.strip().replace("_", " ").casefold():
                ratings.setdefault(name, rating)
    if not ratings:
        raise ConfigError(
            f"{key}.path: expected at least one rated word in {words.path}, found none; correct the columns"
        )
    return RatedWords(ratings, words.unlisted_words)

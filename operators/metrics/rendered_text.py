"""The text metric: the words that a prompt wants against the words that a model reads in the image."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.answered import EXTRA_WORDS, Element, Rating, Scored
from plumbline.operators.metrics.metric import SHARES, Evidence, Expected, Metric, ScoreRange
from plumbline.operators.metrics.modules import Look
from plumbline.operators.metrics.parsing import TextSpan, find, shown
from plumbline.operators.metrics.question_list import wanted_text
from plumbline.operators.metrics.text_measures import (
    KEPT,
    Measure,
    comparable,
    compare,
    edit_distance,
    is_chinese,
    split_words,
    word_count,
)
from plumbline.operators.metrics.writing import Put, WrittenQuestion

QUOTED = re.compile('"([^"]+)"|“([^“”]+)”|「([^「」]+)」|『([^『』]+)』')
NO_TEXT = RowError(
    "no_text_wanted", 'the prompt quotes no words to be written in the image; put them in quotes, as in a sign "OPEN"'
)
NEAR = 0.5
"""A word that was read is taken for a misspelling of a missing one up to so many edits a character."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedTextConfig(Metric):
    """Who reads, and how what was read is compared with what the prompt wants."""

    kind: Literal["rendered_text"] = "rendered_text"
    story: ClassVar[str] = (
        "has a model read the text in the image, and compares it with the words that the prompt wants there"
    )
    chain: ClassVar[tuple[str, ...]] = ("questions", "modules", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ("reader",)
    score_range: ClassVar[ScoreRange] = SHARES
    reader: str = "ocr"
    """The role of the model that reads text in images."""
    measure: Measure = "longtext_bench"
    """`longtext_bench`: the share of wanted words that were read, of Chinese text the share of its characters;
    `cvtg_2k`: the share of words that were read, wherever; `cvtg_2k_ned`: how near each is to a word read; `oneig`:
    its text score, of one image; `flow_grpo`: its OCR reward; `edit_similarity`, `substring_match`, `exact_match` and
    `counter_iou`: UniRL's."""

    @property
    def scored_from(self) -> tuple[str, ...]:
        return "modules", "questions"

    def asking(self) -> dict[str, Any]:
        """All that decides which words are wanted."""
        return {"quotes": QUOTED.pattern}

    def looking(self) -> dict[str, Any]:
        """All that decides what is read, besides the reader."""
        return {}

    def answering(self) -> dict[str, Any]:
        """All that decides how the reader is asked."""
        return {"kind": self.kind}

    def scoring(self) -> dict[str, Any]:
        """How the texts are compared."""
        return {"measure": self.measure}

    def expected(self, words: float) -> Expected:
        """Nothing is written by a model; an image is read once."""
        return Expected(0, 1)

    def want(self, prompt: str, texts: Sequence[str]) -> list[WrittenQuestion] | RowError:
        """A question for each of the texts, or else for each that the prompt quotes; or why there is none."""
        places = _found(prompt, texts) if texts else _quoted(prompt)
        wanted = [(text, place) for text, place in places if any(map(str.isalnum, text))]
        unknown = next((text for text, _ in wanted if not _is_known(text)), None)
        if unknown is not None:
            message = f"only Latin and Chinese text is compared, got {shown(unknown)}; leave this prompt out"
            return RowError("unknown_script", message)
        return [wanted_text(place, text, *span) for place, (text, span) in enumerate(wanted)] or NO_TEXT

    def put(self, text: str, choices: Sequence[str]) -> Put:
        """A question as it stands: the reader is asked for all text that there is."""
        return Put(text, tuple(choices), free=True)

    def looks(self, text: str) -> tuple[Look, ...]:
        """All text in the image, whichever words are wanted."""
        return (Look("reader", ""),)

    def score(self, evidence: Evidence) -> Scored:
        """The measure that was chosen; the others are among the ratings, the words among the elements."""
        questions = [answered.question for answered in evidence.answered]
        read = evidence.answered[0].seen[0].text or ""
        wanted = [question.answer or "" for question in questions]
        measured = compare(wanted, read)
        ratings = tuple(Rating(name, value) for name, value in measured.items())
        count = word_count(wanted, self.measure)
        return Scored(measured[self.measure], word_elements(questions, read), n_questions=count, ratings=ratings)


Span = TextSpan | tuple[None, None]
"""Where a text stands in the prompt, if it does."""


def _quoted(prompt: str) -> list[tuple[str, Span]]:
    spans = [TextSpan(*match.span(match.lastindex or 0)) for match in QUOTED.finditer(prompt)]
    return [(prompt[span.start : span.end], span) for span in spans]


def _found(prompt: str, texts: Sequence[str]) -> list[tuple[str, Span]]:
    """The texts with their places; of a text that is wanted twice the second is looked for behind the first."""
    taken: list[TextSpan] = []
    placed: list[tuple[str, Span]] = []
    for text in texts:
        span = find(text, prompt, after=taken[-1].end if taken else 0, taken=taken)
        if span is not None and prompt[span.start : span.end] == text:
            taken.append(span)
            placed.append((text, span))
        else:
            placed.append((text, (None, None)))
    return placed


def _is_known(text: str) -> bool:
    """Whether all its letters are Latin or Chinese, and some of it is compared."""
    names = (unicodedata.name(letter, "") for letter in text if letter.isalpha())
    return re.search(f"[{KEPT}]", text) is not None and all(name.startswith(("LATIN", "CJK")) for name in names)


# The words, one by one


class WantedWord(NamedTuple):
    """A word of a wanted text, or a character of a Chinese one."""

    question: WrittenQuestion
    text: str
    """As it is compared."""
    start: int
    """Of its characters in the wanted text."""
    end: int


def word_elements(questions: Sequence[WrittenQuestion], read: str) -> tuple[Element, ...]:
    """An element for each wanted word: 1 where it was read, else 0 with the misspelling that was read in its place, if
    one is near. The last element has the extra words, and no score.
    """
    chinese = any(is_chinese(question.answer or "") for question in questions)
    wanted = [word for question in questions for word in _wanted_words(question, chinese)]
    left = Counter(split_words(comparable(read, chinese), chinese))
    given: dict[int, str] = {}
    for place, word in enumerate(wanted):
        if left[word.text] > 0:
            given[place] = word.text
            left[word.text] -= 1
    for place, word in enumerate(wanted):
        near = None if place in given else _nearest(word.text, +left)
        if near is not None:
            given[place] = near
            left[near] -= 1
    elements = [_element(place, word, given.get(place)) for place, word in enumerate(wanted)]
    extra = (" " if not chinese else "").join((+left).elements())
    return (*elements, Element(EXTRA_WORDS, "Extra words", None, None, None, None, extra or None, None))


def _wanted_words(question: WrittenQuestion, chinese: bool) -> list[WantedWord]:
    pieces = re.finditer(f"[{KEPT}]" if chinese else r"\S+", question.answer or "")
    words = [(comparable(piece.group(), chinese), piece) for piece in pieces]
    return [WantedWord(question, word, *piece.span()) for word, piece in words if word]


def _nearest(word: str, left: Mapping[str, int]) -> str | None:
    distances = {other: edit_distance(word, other) for other in left}
    near = min(distances, key=lambda other: distances[other], default=None)
    return near if near is not None and distances[near] <= NEAR * len(word) else None


def _element(place: int, word: WantedWord, given: str | None) -> Element:
    question = word.question
    span = (question.answer or "")[word.start : word.end]
    name = f"{question.question_id}.{place}"
    start, end = (None, None) if question.start is None else (question.start + word.start, question.start + word.end)
    return Element(name, question.text, span, start, end, word.text, given, float(given == word.text))

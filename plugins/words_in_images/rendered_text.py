"""The text metric, which compares the words that a prompt asks for with the words that a model reads in the image."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.metric import (
    EXTRA_WORDS_ID,
    SHARE_RANGE,
    CallEstimate,
    Element,
    Evidence,
    Metric,
    Rating,
    Scored,
    ScoreRange,
)
from plumbline.operators.metrics.modules import ImageQuery
from plumbline.operators.metrics.parsing import TextSpan, find_words, shorten
from plumbline.operators.metrics.questions.question_list import make_text_question
from plumbline.operators.metrics.writing import VqaPrompt, WrittenQuestion
from plumbline.plugins.words_in_images.text_measures import (
    COMPARED_CHARACTERS,
    TextMeasure,
    compare_texts,
    compute_edit_distance,
    count_words,
    is_chinese,
    normalize_text,
    split_words,
)

QUOTED_TEXT_PATTERN = re.compile('"([^"]+)"|“([^“”]+)”|「([^「」]+)」|『([^『』]+)』')
NO_TEXT_ERROR = RowError(
    "no_text_wanted",
    'the prompt quotes no words to be written in the image; put them in quotes, as in: a sign that says "OPEN"',
)
MAX_RELATIVE_EDITS = 0.5
"""Maximum edit distance, per character of a missing word, at which a word that was read counts as its misspelling."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedTextConfig(Metric):
    """Options for the text metric: which model reads the text, and how it is compared with the expected words."""

    kind: Literal["rendered_text"] = "rendered_text"
    story: ClassVar[str] = (
        "has a model read the text in the image, and compares it with the words that the prompt wants there"
    )
    chain: ClassVar[tuple[str, ...]] = ("questions", "modules", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ("reader",)
    score_range: ClassVar[ScoreRange] = SHARE_RANGE
    reader: str = "ocr"
    """Role of the model that reads text in images."""
    measure: TextMeasure = "longtext_bench"
    """`longtext_bench`: fraction of expected words (for Chinese text, characters) that were read; `cvtg_2k`: fraction
    of words that were read anywhere; `cvtg_2k_ned`: mean similarity of each word to the nearest word that was read;
    `oneig`: OneIG's text score for a single image; `flow_grpo`: flow_grpo's OCR reward; `edit_similarity`,
    `substring_match`, `exact_match` and `counter_iou`: UniRL's measures; `wegenbench_edit_similarity`,
    `wegenbench_sentence_accuracy` and `wegenbench_character_f1`: WeGenBench's measures of OCR.
    """
    scored_from: ClassVar[tuple[str, ...]] = ("modules", "questions")

    def list_question_options(self) -> dict[str, Any]:
        """Return all options that determine which words are expected."""
        return {"quotes": QUOTED_TEXT_PATTERN.pattern}

    def list_query_options(self) -> dict[str, Any]:
        """Return an empty mapping, because only the reader model determines the text."""
        return {}

    def list_answer_options(self) -> dict[str, Any]:
        """Return all options that determine how the reader model is prompted."""
        return {"kind": self.kind}

    def list_score_options(self) -> dict[str, Any]:
        return {"measure": self.measure}

    def estimate_calls(self, words: float) -> CallEstimate:
        """Return an estimate of one reader call per image and no writer calls."""
        return CallEstimate(0, 1)

    def make_questions(self, prompt: str, texts: Sequence[str]) -> list[WrittenQuestion] | RowError:
        """Return one question per text; if no texts are given, use those that the prompt quotes.

        If the prompt quotes no text either, or if a text is in an unknown script, return an error.
        """
        if texts:
            places = _locate_texts(prompt, texts)
        else:
            quoted = [TextSpan(*match.span(match.lastindex or 0)) for match in QUOTED_TEXT_PATTERN.finditer(prompt)]
            places = [(prompt[span.start : span.end], span) for span in quoted]
        wanted = [(text, place) for text, place in places if any(map(str.isalnum, text))]
        unknown = next((text for text, _ in wanted if not _is_comparable(text)), None)
        if unknown is not None:
            message = f"only Latin and Chinese text is compared, got {shorten(unknown)}; leave this prompt out"
            return RowError("unknown_script", message)
        return [make_text_question(place, text, *span) for place, (text, span) in enumerate(wanted)] or NO_TEXT_ERROR

    def make_vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        """Return the question unchanged: the reader model is asked for all text in the image."""
        return VqaPrompt(text, tuple(choices), free=True)

    def list_image_queries(self, text: str) -> tuple[ImageQuery, ...]:
        """Return one query to the reader model, which reads all text in the image."""
        return (ImageQuery("reader", ""),)

    def score(self, evidence: Evidence) -> Scored:
        """Return the chosen measure as the score, the other measures as ratings and the words as elements."""
        questions = [answered.question for answered in evidence.answered]
        read = evidence.answered[0].query_results[0].text or ""
        wanted = [question.answer or "" for question in questions]
        measured = compare_texts(wanted, read)
        ratings = tuple(Rating(name, value) for name, value in measured.items())
        count = count_words(wanted, self.measure)
        return Scored(measured[self.measure], make_word_elements(questions, read), n_questions=count, ratings=ratings)


OptionalSpan = TextSpan | tuple[None, None]
"""Position of a text in the prompt; (None, None) if the prompt does not contain the text."""


def _locate_texts(prompt: str, texts: Sequence[str]) -> list[tuple[str, OptionalSpan]]:
    """Return the texts with their positions in the prompt; each occurrence is used only once."""
    taken: list[TextSpan] = []
    placed: list[tuple[str, OptionalSpan]] = []
    for text in texts:
        span = find_words(text, prompt, after=taken[-1].end if taken else 0, taken=taken)
        if span is not None and prompt[span.start : span.end] == text:
            taken.append(span)
            placed.append((text, span))
        else:
            placed.append((text, (None, None)))
    return placed


def _is_comparable(text: str) -> bool:
    """Return True if all letters are Latin or Chinese, and the text has a character that the measures compare."""
    names = (unicodedata.name(letter, "") for letter in text if letter.isalpha())
    return re.search(f"[{COMPARED_CHARACTERS}]", text) is not None and all(
        name.startswith(("LATIN", "CJK")) for name in names
    )


# Scores of single words


class WantedWord(NamedTuple):
    """A word of an expected text, or a character if the text is Chinese."""

    question: WrittenQuestion
    text: str
    """The word, normalized for comparison."""
    start: int
    """Start position within the expected text."""
    end: int


def make_word_elements(questions: Sequence[WrittenQuestion], read: str) -> tuple[Element, ...]:
    """Return an element for each expected word, scored 1 if the word was read and 0 if not.

    If the words that were read include a close misspelling of a missing word, the word's element contains the
    misspelling. The last element has no score and contains the extra words.
    """
    chinese = any(is_chinese(question.answer or "") for question in questions)
    wanted = [word for question in questions for word in _split_expected_words(question, chinese)]
    left = Counter(split_words(normalize_text(read, chinese), chinese))
    given: dict[int, str] = {}
    for place, word in enumerate(wanted):
        if left[word.text] > 0:
            given[place] = word.text
            left[word.text] -= 1
    for place, word in enumerate(wanted):
        near = None if place in given else _find_nearest_word(word.text, +left)
        if near is not None:
            given[place] = near
            left[near] -= 1
    elements = [_make_element(place, word, given.get(place)) for place, word in enumerate(wanted)]
    extra = (" " if not chinese else "").join((+left).elements())
    return (*elements, Element(EXTRA_WORDS_ID, "Extra words", None, None, None, None, extra or None, None))


def _split_expected_words(question: WrittenQuestion, chinese: bool) -> list[WantedWord]:
    pieces = re.finditer(f"[{COMPARED_CHARACTERS}]" if chinese else r"\S+", question.answer or "")
    words = [(normalize_text(piece.group(), chinese), piece) for piece in pieces]
    return [WantedWord(question, word, *piece.span()) for word, piece in words if word]


def _find_nearest_word(word: str, left: Mapping[str, int]) -> str | None:
    distances = {other: compute_edit_distance(word, other) for other in left}
    near = min(distances, key=lambda other: distances[other], default=None)
    return near if near is not None and distances[near] <= MAX_RELATIVE_EDITS * len(word) else None


def _make_element(place: int, word: WantedWord, given: str | None) -> Element:
    question = word.question
    span = (question.answer or "")[word.start : word.end]
    name = f"{question.question_id}.{place}"
    start, end = (None, None) if question.start is None else (question.start + word.start, question.start + word.end)
    return Element(name, question.text, span, start, end, word.text, given, float(given == word.text))

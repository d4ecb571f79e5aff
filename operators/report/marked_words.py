"""Highlights the words of a prompt according to the answers to questions about them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from plumbline.operators.metrics.metric import EXTRA_WORDS_ID

MIN_RIGHT_SCORE = 0.75
WRONG_SCORE_LIMIT = 0.25
MAX_CHARACTERS = 8000
MAX_QUESTIONS = 24
MAX_QUESTION_CHARACTERS = 400

AnswerState = Literal["right", "unsure", "wrong", "left out"]
WORST_FIRST: tuple[AnswerState, ...] = ("wrong", "unsure", "right", "left out")


class Segment(NamedTuple):
    """Consecutive characters of the prompt that the same questions refer to."""

    text: str
    state: AnswerState | None
    """State of the worst question about this segment; None if there is no question."""
    note: str
    """The questions with their answers, for a tooltip."""
    score: float | None = None
    """Lowest score of the questions about this segment."""

    @property
    def heat(self) -> int:
        """Difference between 1 and the lowest score, in percent."""
        return 0 if self.score is None else round(100 * (1 - min(max(self.score, 0.0), 1.0)))


class ComparedWords(NamedTuple):
    """Words that an image should show, and words that were read in the image."""

    wanted: str
    read: str
    missing: str
    """Expected words that were not read in the image, or were spelled differently."""
    extra: str
    """Words read in the image that do not resemble any expected word."""


class MarkedQuestion(NamedTuple):
    """A question about an image with its answer and state, formatted for a page."""

    text: str
    span: str
    """Words of the prompt that the question is about."""
    wanted: str
    """The expected answer."""
    given: str
    score: float | None
    state: AnswerState


def judge_answer(score: float | None, wanted: str | None, given: str | None) -> AnswerState:
    """Return the state of a question, given the answer's score and the expected and actual answers.

    A question is wrong if its score is below WRONG_SCORE_LIMIT, or below 0.5 with an answer other than the expected
    one. Otherwise it is right if its score is at least MIN_RIGHT_SCORE, and unsure if it is lower. Without a score it
    is left out.
    """
    if score is None:
        return "left out"
    if score < WRONG_SCORE_LIMIT or (score < 0.5 and wanted is not None and given != wanted):
        return "wrong"
    return "right" if score >= MIN_RIGHT_SCORE else "unsure"


def mark_questions(elements: Sequence[Mapping[str, Any]]) -> list[MarkedQuestion]:
    """Return at most MAX_QUESTIONS questions about an image, wrong ones first."""
    marked = sorted(map(mark_question, elements), key=lambda question: WORST_FIRST.index(question.state))
    return marked[:MAX_QUESTIONS]


def find_compared_words(elements: Sequence[Mapping[str, Any]]) -> ComparedWords | None:
    """Return the expected words and the words read in the image; None if the metric does not compare words.

    If a metric compares words, its last element contains the extra words.
    """
    if not elements or elements[-1]["question_id"] != EXTRA_WORDS_ID:
        return None
    *words, last = elements
    return ComparedWords(
        wanted=_join_words(word["span"] for word in words),
        read=_join_words(word["given"] for word in elements),
        missing=_join_words(word["span"] for word in words if word["score"] != 1),
        extra=shorten(last["given"]),
    )


def _join_words(words: Iterable[str | None]) -> str:
    return shorten(" ".join(filter(None, words)))


def mark_question(element: Mapping[str, Any]) -> MarkedQuestion:
    """Return a question, with its answer and state, for a page; long strings are shortened.

    `element` is a question's contribution to a score (schema ELEMENT).
    """
    return MarkedQuestion(
        text=shorten(element["text"]),
        span=shorten(element["span"]),
        wanted=shorten(element["wanted"]),
        given=shorten(element["given"]),
        score=element["score"],
        state=judge_answer(element["score"], element["wanted"], element["given"]),
    )


def shorten(text: str | None, max_characters: int = MAX_QUESTION_CHARACTERS) -> str:
    """Return the start of a string, with an ellipsis if it was cut off; return an empty string for None."""
    text = text or ""
    return text if len(text) <= max_characters else f"{text[:max_characters]}…"


def describe_unreadable_prompt(prompt_id: str) -> str:
    """Return the text to show instead of a prompt that cannot be read."""
    return f"(the text of prompt {prompt_id} cannot be read)"


def mark_prompt(prompt: str, elements: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """Return a prompt as segments, each with the worst state and the lowest score of the questions about its text.

    If the prompt is longer than MAX_CHARACTERS characters, a note on its length replaces the rest.
    """
    shown = prompt[:MAX_CHARACTERS]
    placed = [
        (element["start"], element["end"], element)
        for element in elements
        if None not in (element["start"], element["end"], element["score"])
        and 0 <= element["start"] < element["end"] <= len(shown)
    ]
    edges = sorted({0, len(shown), *(edge for start, end, _ in placed for edge in (start, end))})
    segments = []
    for start, end in pairwise(edges):
        about = [element for first, last, element in placed if first <= start and end <= last]
        if not about:
            segments.append(Segment(shown[start:end], None, ""))
            continue
        states = {judge_answer(element["score"], element["wanted"], element["given"]) for element in about}
        notes = [
            f"{shorten(element['text'], 120)} {shorten(element['given'], 40) or '–'} ({element['score']:.2f})"
            for element in about[:4]
        ]
        lowest = min(element["score"] for element in about)
        segments.append(Segment(shown[start:end], min(states, key=WORST_FIRST.index), "\n".join(notes), lowest))
    if len(prompt) > len(shown):
        segments.append(Segment(f"… ({len(prompt):,} characters)", None, ""))
    return segments

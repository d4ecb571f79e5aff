"""The words of a prompt, marked by what became of the questions about them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from plumbline.operators.metrics.answered import EXTRA_WORDS

RIGHT_FROM = 0.75
WRONG_BELOW = 0.25
MOST_CHARACTERS = 8000
MOST_QUESTIONS = 24
MOST_IN_QUESTION = 400

State = Literal["right", "unsure", "wrong", "left out"]
_WORST_FIRST: tuple[State, ...] = ("wrong", "unsure", "right")


class Segment(NamedTuple):
    """A run of the prompt's characters that the same questions are about."""

    text: str
    state: State | None
    """The worst of its questions; None where no question is about it."""
    note: str
    """Those questions with their answers, for a tooltip."""
    score: float | None = None
    """The lowest of them."""

    @property
    def heat(self) -> int:
        """How far the lowest is from right, in percent."""
        return 0 if self.score is None else round(100 * (1 - min(max(self.score, 0.0), 1.0)))


class ComparedWords(NamedTuple):
    """The words that an image was to show beside those that were read in it, as they are shown."""

    wanted: str
    read: str
    missing: str
    """Those wanted that were not read, or not as they are spelt."""
    extra: str
    """Those read that are like none wanted."""


class MarkedQuestion(NamedTuple):
    """A question about an image, as it is shown."""

    text: str
    span: str
    wanted: str
    given: str
    score: float | None
    state: State


def state_of(score: float | None, wanted: str | None, given: str | None) -> State:
    """How a question went: wrong where it is, or is doubted with another answer given; unsure below three quarters."""
    if score is None:
        return "left out"
    if score < WRONG_BELOW or (score < 0.5 and wanted is not None and given != wanted):
        return "wrong"
    return "right" if score >= RIGHT_FROM else "unsure"


def _state(element: Mapping[str, Any]) -> State:
    return state_of(element["score"], element["wanted"], element["given"])


def asked_questions(elements: Sequence[Mapping[str, Any]]) -> list[MarkedQuestion]:
    """The questions of an image, those that went wrong first, and at most so many."""
    order = (*_WORST_FIRST, "left out")
    return sorted(map(asked_question, elements), key=lambda question: order.index(question.state))[:MOST_QUESTIONS]


def compared_words(elements: Sequence[Mapping[str, Any]]) -> ComparedWords | None:
    """What the elements of a metric that compares words say, the last of which has the extra ones; else None."""
    if not elements or elements[-1]["question_id"] != EXTRA_WORDS:
        return None
    *words, last = elements
    return ComparedWords(
        wanted=_listed(word["span"] for word in words),
        read=_listed(word["given"] for word in elements),
        missing=_listed(word["span"] for word in words if word["score"] != 1),
        extra=cut(last["given"]),
    )


def _listed(words: Iterable[str | None]) -> str:
    return cut(" ".join(filter(None, words)))


def asked_question(element: Mapping[str, Any]) -> MarkedQuestion:
    """An element of a score as it is shown."""
    return MarkedQuestion(
        text=cut(element["text"]),
        span=cut(element["span"]),
        wanted=cut(element["wanted"]),
        given=cut(element["given"]),
        score=element["score"],
        state=_state(element),
    )


def cut(text: str | None, most: int = MOST_IN_QUESTION) -> str:
    """The text, shortened where it is long."""
    text = text or ""
    return text if len(text) <= most else f"{text[:most]}…"


def unreadable(prompt_id: str) -> str:
    """What stands in place of a prompt's text."""
    return f"(the text of prompt {prompt_id} cannot be read)"


def mark_prompt(prompt: str, elements: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """The prompt in segments; characters that several questions are about show the worst of them."""
    shown = prompt[:MOST_CHARACTERS]
    placed = [element for element in elements if _is_placed(element, len(shown))]
    edges = sorted({0, len(shown), *(element[edge] for element in placed for edge in ("start", "end"))})
    segments = [_segment(shown, start, end, placed) for start, end in pairwise(edges)]
    if len(prompt) > len(shown):
        segments.append(Segment(f"… ({len(prompt):,} characters)", None, ""))
    return segments


def _is_placed(element: Mapping[str, Any], length: int) -> bool:
    start, end = element["start"], element["end"]
    return start is not None and end is not None and 0 <= start < end <= length and element["score"] is not None


def _segment(prompt: str, start: int, end: int, placed: Sequence[Mapping[str, Any]]) -> Segment:
    about = [element for element in placed if element["start"] <= start and end <= element["end"]]
    if not about:
        return Segment(prompt[start:end], None, "")
    states = set(map(_state, about))
    worst = next(state for state in _WORST_FIRST if state in states)
    notes = [
        f"{cut(element['text'], 120)} {cut(element['given'], 40) or '–'} ({element['score']:.2f})" for element in about
    ]
    return Segment(prompt[start:end], worst, "\n".join(notes[:4]), min(element["score"] for element in about))

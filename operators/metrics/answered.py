"""What a question-based metric scores, an image's answered questions, and what it gives: the score of each and all."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from operators.errors import RowError
from operators.metrics.writing import WrittenQuestion


class Answered(NamedTuple):
    """One question with what a model answered about one image."""

    question: WrittenQuestion
    token_logprobs: tuple[tuple[float, ...], ...] = ()
    """Natural-log probabilities of the tokens of each choice, EOS last; none where the model's own words were asked."""
    reply: str | None = None
    """The model's own words, where those were asked."""
    chosen: str | None = None
    """The choice that they mean."""
    p_entail: float | None = None
    """The probability that the prompt entails the question with its answer, where that was computed."""


class Element(NamedTuple):
    """One question's part in a score (operators/rows.py, ELEMENT)."""

    question_id: str
    text: str
    span: str | None
    start: int | None
    end: int | None
    wanted: str | None
    given: str | None
    score: float | None
    """In [0, 1]; null where the question was left out."""


class Scored(NamedTuple):
    """An image's score with its elements, or why there is none."""

    score: float | None
    elements: tuple[Element, ...]
    error: RowError | None = None

    @property
    def n_questions(self) -> int:
        return sum(element.score is not None for element in self.elements)


NO_QUESTIONS = RowError(
    "no_questions", "no question about the prompt is left to score it by; look at its questions, or lower the threshold"
)


def element(answered: Answered, *, given: str | None, score: float | None) -> Element:
    """The element of one answered question."""
    question = answered.question
    return Element(
        question.question_id, question.text, question.span, question.start, question.end, question.answer, given, score
    )


def mean_scored(elements: Sequence[Element]) -> Scored:
    """The mean over the elements that have a score; an error where none has."""
    scores = [one.score for one in elements if one.score is not None]
    if not scores:
        return Scored(None, tuple(elements), NO_QUESTIONS)
    return Scored(math.fsum(scores) / len(scores), tuple(elements))

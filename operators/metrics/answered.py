"""Answered questions of an image, and the scores that metrics make of them."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.writing import WrittenQuestion

if TYPE_CHECKING:
    from plumbline.operators.metrics.modules import LookResult


Logprobs = tuple[tuple[float, ...], ...]
"""Natural log probabilities of the tokens of each choice, EOS last."""


class Answered(NamedTuple):
    """A question with the answer of a model about one image."""

    question: WrittenQuestion
    token_logprobs: Logprobs = ()
    """Empty if the model answered in its own words."""
    reply: str | None = None
    """The model's own words, if it was asked for them."""
    chosen: str | None = None
    """The choice that the reply means."""
    p_entail: float | None = None
    """Probability that the prompt entails the question with its answer, if it was computed."""
    seen: "tuple[LookResult, ...]" = ()
    """Results of the looks, if modules answer the question (operators/metrics/modules.py)."""
    prior: Logprobs = ()
    """Like `token_logprobs`, for a blank image, if the metric removes the prior."""


EXTRA_WORDS = "extra"
"""Id of the last element of metrics that compare words: words in the image that were not wanted."""


class Element(NamedTuple):
    """The part of one question in a score (operators/base/schemas.py, ELEMENT)."""

    question_id: str
    text: str
    span: str | None
    start: int | None
    end: int | None
    wanted: str | None
    given: str | None
    score: float | None
    """Between 0 and 1; null if the question was left out."""


class Rating(NamedTuple):
    """One number of a judge's verdict."""

    name: str
    """Name of the rated property."""
    value: float


class Verdict(NamedTuple):
    """A judge's reply about one image."""

    ratings: tuple[Rating, ...]
    rationale: str


class Scored(NamedTuple):
    """The score of an image with its elements, or its error."""

    score: float | None
    elements: tuple[Element, ...] | None = None
    """Null for metrics that ask only once."""
    error: RowError | None = None
    n_questions: int | None = None
    """Number of questions in the score; null for metrics without questions."""
    truncated: bool = False
    """True if the model read only the beginning of the text."""
    ratings: tuple[Rating, ...] | None = None
    """Numbers of the judge's verdict; null for metrics without a judge."""
    rationale: str | None = None
    """Explanation of the judge."""


NO_QUESTIONS = RowError(
    "no_questions", "no question about the prompt is left to score it by; look at its questions, or lower the threshold"
)


def element(answered: Answered, *, given: str | None, score: float | None) -> Element:
    question = answered.question
    return Element(
        question.question_id, question.text, question.span, question.start, question.end, question.answer, given, score
    )


def mean_scored(elements: Sequence[Element]) -> Scored:
    """Return the mean over the elements with a score, or an error if no element has one."""
    scores = [element.score for element in elements if element.score is not None]
    if not scores:
        return Scored(None, tuple(elements), NO_QUESTIONS, n_questions=0)
    return Scored(math.fsum(scores) / len(scores), tuple(elements), n_questions=len(scores))


def mean_over_images(scored: Sequence[Scored], each: str = "Image") -> Scored:
    """Return the score of a row with several images: the mean over the images, also of each question.

    Videos are scored by their frames in this way (vqascore_genai_bench.txt, sec. 6). If an image has an error, the row
    has it too. The rationale calls an image `each`.
    """
    first = scored[0]
    if len(scored) == 1:
        return first
    failed = next((image for image in scored if image.error is not None), None)
    if failed is not None:
        return failed
    questions = zip(*(image.elements or () for image in scored), strict=True)
    rationales = [image.rationale or "" for image in scored]
    return first._replace(
        score=math.fsum(image.score or 0.0 for image in scored) / len(scored),
        elements=None if first.elements is None else tuple(map(_mean_element, questions)),
        truncated=any(image.truncated for image in scored),
        ratings=None if first.ratings is None else _mean_ratings([image.ratings or () for image in scored]),
        rationale=None
        if first.rationale is None
        else " ".join(f"{each} {number}: {text}" for number, text in enumerate(rationales, 1)),
    )


def _mean_element(images: Sequence[Element]) -> Element:
    """Return a question's mean over the images, with the answer if it is the same for all of them."""
    scores = [element.score for element in images if element.score is not None]
    given = {element.given for element in images}
    return images[0]._replace(
        score=math.fsum(scores) / len(scores) if scores else None, given=given.pop() if len(given) == 1 else None
    )


def _mean_ratings(images: Sequence[Sequence[Rating]]) -> tuple[Rating, ...]:
    """Return the mean of each rating over the images that have it."""
    given: dict[str, list[float]] = {}
    for rating in (rating for image in images for rating in image):
        given.setdefault(rating.name, []).append(rating.value)
    return tuple(Rating(name, math.fsum(numbers) / len(numbers)) for name, numbers in given.items())


def incomplete(stage: str, what: str) -> RowError:
    """Return the error of a row whose inputs do not match, because a stage's cell was computed from other questions."""
    message = f"the cell of {stage} {what}; run again; if it stays, delete the folder {stage}/ of the store"
    return RowError("incomplete_cell", message, retryable=True)

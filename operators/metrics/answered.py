"""What a question-based metric scores, an image's answered questions, and what it gives: the score of each and all."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.writing import WrittenQuestion

if TYPE_CHECKING:
    from plumbline.operators.metrics.modules import LookResult


Logprobs = tuple[tuple[float, ...], ...]
"""Natural-log probabilities of the tokens of each choice, EOS last."""


class Answered(NamedTuple):
    """One question with what a model answered about one image."""

    question: WrittenQuestion
    token_logprobs: Logprobs = ()
    """None where the model's own words were asked."""
    reply: str | None = None
    """The model's own words, where those were asked."""
    chosen: str | None = None
    """The choice that they mean."""
    p_entail: float | None = None
    """The probability that the prompt entails the question with its answer, where that was computed."""
    seen: "tuple[LookResult, ...]" = ()
    """What each of its looks has shown, where modules answer it (operators/metrics/modules.py)."""
    prior: Logprobs = ()
    """As `token_logprobs` where there is nothing to see, where the metric takes that out."""


EXTRA_WORDS = "extra"
"""The id of the last element of a metric that compares words: what was read and not wanted."""


class Element(NamedTuple):
    """One question's part in a score (operators/base/schemas.py, ELEMENT)."""

    question_id: str
    text: str
    span: str | None
    start: int | None
    end: int | None
    wanted: str | None
    given: str | None
    score: float | None
    """In [0, 1]; null where the question was left out."""


class Rating(NamedTuple):
    """A number of a judge's verdict."""

    name: str
    """What it rates."""
    value: float


class Scored(NamedTuple):
    """An image's score with its elements, or why there is none."""

    score: float | None
    elements: tuple[Element, ...] | None = None
    """Null for metrics that ask only once."""
    error: RowError | None = None
    n_questions: int | None = None
    """How many entered the score; null for metrics that ask none."""
    truncated: bool = False
    """Whether the model saw only the beginning of the text."""
    ratings: tuple[Rating, ...] | None = None
    """The numbers of a judge's verdict; null for metrics that have no judge."""
    rationale: str | None = None
    """The judge's reasons."""


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
    scores = [element.score for element in elements if element.score is not None]
    if not scores:
        return Scored(None, tuple(elements), NO_QUESTIONS, n_questions=0)
    return Scored(math.fsum(scores) / len(scores), tuple(elements), n_questions=len(scores))


def mean_over_images(scored: Sequence[Scored], each: str = "Image") -> Scored:
    """The score of a row by those of its images: their mean, and of each question too; an error of one is the row's.

    So are videos scored by their frames (vqascore_genai_bench.txt, sec. 6). `each` is what they are called.
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
        rationale=None if first.rationale is None else _each_rationale(rationales, each),
    )


def _mean_element(images: Sequence[Element]) -> Element:
    """One question's part over the images; the answer given where it is the same about all."""
    scores = [element.score for element in images if element.score is not None]
    given = {element.given for element in images}
    return images[0]._replace(
        score=math.fsum(scores) / len(scores) if scores else None, given=given.pop() if len(given) == 1 else None
    )


def _mean_ratings(images: Sequence[Sequence[Rating]]) -> tuple[Rating, ...]:
    """Each rating's mean over the images that have it."""
    given: dict[str, list[float]] = {}
    for rating in (rating for image in images for rating in image):
        given.setdefault(rating.name, []).append(rating.value)
    return tuple(Rating(name, math.fsum(numbers) / len(numbers)) for name, numbers in given.items())


def _each_rationale(rationales: Sequence[str], each: str) -> str:
    return " ".join(f"{each} {number}: {rationale}" for number, rationale in enumerate(rationales, 1))


def incomplete(stage: str, what: str) -> RowError:
    """The error of a row whose inputs do not fit each other: the stage's cell was computed from other questions."""
    message = f"the cell of {stage} {what}; run again; if it stays, delete the folder {stage}/ of the store"
    return RowError("incomplete_cell", message, retryable=True)

"""Shows the images of one prompt by several generators, with every metric's scores and the answers to its questions."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plumbline.operators.base.sentences import FirstRows, first_rows, number
from plumbline.operators.report.gallery import NO_DETAIL, ImageDetail, Picture
from plumbline.operators.report.marked_words import MarkedQuestion, cut, mark_question, unreadable
from plumbline.operators.report.picked_images import ImageKey, Pick

MAX_QUESTIONS = 16
MAX_CHARACTERS = 1000
MAX_LARGE = 7
"""Images of a prompt that are shown large; more are shown small."""
MAX_IN_LINE = 10
"""Small images in a line."""


class GeneratorImage(NamedTuple):
    generator: str
    thumbnail: str | None
    """Data URI of the thumbnail."""
    missing: str
    """Reason for a missing thumbnail."""
    source: int | None = None
    """Index of the source that the image was edited from, among the prompt's sources with a thumbnail."""


class ScoreRow(NamedTuple):
    """A metric's scores of the images."""

    metric: str
    lower_is_better: bool
    scores: list[str]
    """Scores as text, one for each image."""
    best: str
    """The best of these texts; empty if all scores have the same text."""


class QuestionRow(NamedTuple):
    """A question with the answer about each image; None if it was not asked about an image."""

    text: str
    wanted: str
    answers: list[MarkedQuestion | None]

    @property
    def differs(self) -> bool:
        """Return True if the answers have different states."""
        return len({answer.state for answer in self.answers if answer is not None}) > 1


class Questions(NamedTuple):
    """Questions of one metric."""

    metric: str
    rows: FirstRows[QuestionRow]
    n_differ: int
    """Number of shown questions whose answers differ."""


class SideBySide(NamedTuple):
    """A prompt with an image by each of several generators."""

    prompt_id: str
    prompt: str
    skills: tuple[str, ...]
    sources: list[Picture]
    """Images from which the shown images were edited, without duplicates."""
    sides: list[GeneratorImage]
    scores: list[ScoreRow]
    questions: list[Questions]

    @property
    def skills_json(self) -> str:
        return json.dumps(self.skills)

    @property
    def lines(self) -> list[slice]:
        """Slices of the images, one for each line; all lines are about equally long."""
        count = len(self.sides)
        length = math.ceil(count / math.ceil(count / MAX_IN_LINE))
        return [slice(first, first + length) for first in range(0, count, length)]

    @property
    def is_small(self) -> bool:
        """True if there are too many images to show them large."""
        return len(self.sides) > MAX_LARGE

    @property
    def search(self) -> str:
        """Text that the text filter searches."""
        return f"{self.prompt} {self.prompt_id}".lower()


def put_side_by_side(
    picks: Sequence[Pick],
    details: Mapping[ImageKey, ImageDetail],
    prompt: str | None,
    skills: Sequence[str],
    towards: Mapping[str, int],
) -> SideBySide:
    """Return the section about the images of one prompt.

    `towards` is, by metric, 1 if a higher score is better, -1 if a lower one is, and 0 if neither.
    """
    prompt_id, own = picks[0].prompt_id, [details.get(pick.key, NO_DETAIL) for pick in picks]
    sources = list(dict.fromkeys(source for detail in own for source in detail.sources))
    return SideBySide(
        prompt_id=prompt_id,
        prompt=cut(prompt if prompt is not None else unreadable(prompt_id), MAX_CHARACTERS),
        skills=tuple(skills),
        sources=sources,
        sides=[
            GeneratorImage(
                pick.key.generator, detail.thumbnail, cut(detail.missing), _first_source(detail.sources, sources)
            )
            for pick, detail in zip(picks, own, strict=True)
        ],
        scores=[_score_row(metric, sign, picks) for metric, sign in towards.items()],
        questions=[
            _questions(metric, [detail.elements.get(metric) or () for detail in own])
            for metric in towards
            if any(detail.elements.get(metric) for detail in own)
        ],
    )


def _first_source(own: Sequence[Picture], sources: Sequence[Picture]) -> int | None:
    """Return the index of an image's first source with a thumbnail, among all such sources of the prompt."""
    shown_sources = [source for source in sources if source.thumbnail]
    return next((shown_sources.index(source) for source in own if source.thumbnail), None)


def _score_row(metric: str, towards: int, picks: Sequence[Pick]) -> ScoreRow:
    scores = [pick.scores.get(metric) for pick in picks]
    shown_scores = [number(score, 2) for score in scores]
    known = [score for score in scores if score is not None]
    best = number(max(known, key=lambda score: towards * score), 2) if known and towards else ""
    alike = all(text == best for text, score in zip(shown_scores, scores, strict=True) if score is not None)
    return ScoreRow(metric, towards < 0, shown_scores, "" if alike else best)


def _questions(metric: str, elements: Sequence[Sequence[Mapping[str, Any]]]) -> Questions:
    """Return a metric's questions in order of appearance; `elements` are the elements of each image."""
    by_id: dict[str, list[MarkedQuestion | None]] = {}
    for image, own in enumerate(elements):
        for element in own:
            answers = by_id.setdefault(str(element["question_id"]), [None] * len(elements))
            answers[image] = mark_question(element)
    rows = []
    for answers in by_id.values():
        asked = next(answer for answer in answers if answer is not None)
        rows.append(QuestionRow(asked.text, asked.wanted, answers))
    limited = first_rows(rows, MAX_QUESTIONS)
    return Questions(metric, limited, sum(row.differs for row in limited.rows))

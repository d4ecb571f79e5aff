"""The same prompt by several generators: their images, with every metric's scores and the answers to its questions."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from plumbline.operators.base.sentences import FirstRows, number, shown
from plumbline.operators.report.gallery import NO_DETAIL, ImageDetail, Picture
from plumbline.operators.report.marked_words import MarkedQuestion, asked_question, cut, unreadable
from plumbline.operators.report.picked_images import ImageKey, Pick

MOST_QUESTIONS = 16
MOST_CHARACTERS = 1000
MAX_LARGE = 7
"""Images of a prompt that are shown large; more are shown small."""
MAX_IN_LINE = 10
"""Small images in a line."""


class GeneratorImage(NamedTuple):
    """One generator's image."""

    generator: str
    thumbnail: str | None
    """A data: address."""
    missing: str
    """Why there is no thumbnail."""
    source: int | None = None
    """Which of those sources of the prompt that can be shown it was edited from."""


class ScoreRow(NamedTuple):
    """A metric's scores of the images."""

    metric: str
    lower_is_better: bool
    scores: list[str]
    """As they are shown."""
    best: str
    """The best of them; empty where all that are shown are alike."""


class QuestionRow(NamedTuple):
    """A question with what is answered about every image, None where it is not asked."""

    text: str
    wanted: str
    answers: list[MarkedQuestion | None]

    @property
    def differs(self) -> bool:
        """Whether it goes otherwise for some image than for another."""
        return len({answer.state for answer in self.answers if answer is not None}) > 1


class Questions(NamedTuple):
    """The questions of one metric."""

    metric: str
    rows: FirstRows[QuestionRow]
    n_differ: int
    """Of those shown."""


class SideBySide(NamedTuple):
    """A prompt with an image by each of several generators."""

    prompt_id: str
    prompt: str
    skills: tuple[str, ...]
    sources: list[Picture]
    """What the images were edited from, each once."""
    sides: list[GeneratorImage]
    scores: list[ScoreRow]
    questions: list[Questions]

    @property
    def skills_json(self) -> str:
        return json.dumps(self.skills)

    @property
    def lines(self) -> list[slice]:
        """Places of the images that stand in a line; several lines are about equally long."""
        count = len(self.sides)
        length = math.ceil(count / math.ceil(count / MAX_IN_LINE))
        return [slice(first, first + length) for first in range(0, count, length)]

    @property
    def is_small(self) -> bool:
        """True if there are too many images to show them large."""
        return len(self.sides) > MAX_LARGE

    @property
    def search(self) -> str:
        """What the text filter looks in."""
        return f"{self.prompt} {self.prompt_id}".lower()


def put_side_by_side(
    picks: Sequence[Pick],
    details: Mapping[ImageKey, ImageDetail],
    prompt: str | None,
    skills: Sequence[str],
    towards: Mapping[str, int],
) -> SideBySide:
    """Put images of one prompt beside each other.

    Args:
        towards: By metric, 1 if a higher score is better, -1 if a lower one is, and 0 if neither.
    """
    prompt_id, of_sides = picks[0].prompt_id, [details.get(pick.key, NO_DETAIL) for pick in picks]
    sources = list(dict.fromkeys(source for detail in of_sides for source in detail.sources))
    return SideBySide(
        prompt_id=prompt_id,
        prompt=cut(prompt if prompt is not None else unreadable(prompt_id), MOST_CHARACTERS),
        skills=tuple(skills),
        sources=sources,
        sides=[
            GeneratorImage(
                pick.key.generator, detail.thumbnail, cut(detail.missing), _first_of(detail.sources, sources)
            )
            for pick, detail in zip(picks, of_sides, strict=True)
        ],
        scores=[_score_row(metric, sign, picks) for metric, sign in towards.items()],
        questions=[
            _questions(metric, [detail.elements.get(metric) or () for detail in of_sides])
            for metric in towards
            if any(detail.elements.get(metric) for detail in of_sides)
        ],
    )


def _first_of(own: Sequence[Picture], sources: Sequence[Picture]) -> int | None:
    """The place of an image's first source that can be shown among those of all images."""
    shown_sources = [source for source in sources if source.thumbnail]
    return next((shown_sources.index(source) for source in own if source.thumbnail), None)


def _score_row(metric: str, towards: int, picks: Sequence[Pick]) -> ScoreRow:
    scores = [pick.scores.get(metric) for pick in picks]
    shown_scores = [number(score, 2) for score in scores]
    known = [score for score in scores if score is not None]
    best = number(max(known, key=lambda score: towards * score), 2) if known and towards else ""
    alike = all(text == best for text, score in zip(shown_scores, scores, strict=True) if score is not None)
    return ScoreRow(metric, towards < 0, shown_scores, "" if alike else best)


def _questions(metric: str, of_sides: Sequence[Sequence[Mapping[str, Any]]]) -> Questions:
    """A metric's questions in the order in which they are asked first."""
    by_id: dict[str, list[MarkedQuestion | None]] = {}
    for place, elements in enumerate(of_sides):
        for element in elements:
            answers = by_id.setdefault(str(element["question_id"]), [None] * len(of_sides))
            answers[place] = asked_question(element)
    rows = []
    for answers in by_id.values():
        asked = next(answer for answer in answers if answer is not None)
        rows.append(QuestionRow(asked.text, asked.wanted, answers))
    limited = shown(rows, MOST_QUESTIONS)
    return Questions(metric, limited, sum(row.differs for row in limited.rows))

"""Shows several generators' images for one prompt, with all metrics' scores and the answers to their questions."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plumbline.operators.base.sentences import FirstRows, format_number, take_first_rows
from plumbline.operators.report.gallery import EMPTY_IMAGE_DETAIL, ImageDetail, Thumbnail
from plumbline.operators.report.marked_words import MarkedQuestion, describe_unreadable_prompt, mark_question, shorten
from plumbline.operators.report.picked_images import ImageKey, Pick

MAX_QUESTIONS = 16
MAX_CHARACTERS = 1000
MAX_LARGE_IMAGES = 7
"""Maximum number of images of a prompt that are shown large; if there are more, all are small."""
MAX_IMAGES_PER_LINE = 10
"""Maximum number of small images per line."""


class GeneratorImage(NamedTuple):
    generator: str
    image: Thumbnail
    source: int | None
    """Index of the source image that this image was edited from, among the prompt's sources with a thumbnail."""


class ScoreRow(NamedTuple):
    """One metric's scores for a prompt's images, formatted as strings."""

    metric: str
    lower_is_better: bool
    scores: list[str]
    best: str
    """The best score of the row, as a string; empty if all scores of the row are shown as the same string."""


class QuestionRow(NamedTuple):
    """A question about a prompt's images, with an answer for each; None for an image that was not asked about."""

    text: str
    wanted: str
    answers: list[MarkedQuestion | None]

    @property
    def differs(self) -> bool:
        """True if the answers about at least two images have different states, such as right and wrong."""
        return len({answer.state for answer in self.answers if answer is not None}) > 1


class QuestionTable(NamedTuple):
    """One metric's questions about a prompt, with the answers for each image."""

    metric: str
    rows: FirstRows[QuestionRow]
    n_differ: int
    """Number of shown questions whose answers differ between images."""


class SideBySide(NamedTuple):
    """A prompt with one image from each of several generators."""

    prompt_id: str
    prompt: str
    skills: tuple[str, ...]
    sources: list[Thumbnail]
    """Source images, without duplicates, if the images are edits."""
    sides: list[GeneratorImage]
    scores: list[ScoreRow]
    questions: list[QuestionTable]

    @property
    def lines(self) -> list[slice]:
        """Slices that divide the images into lines of about the same length."""
        count = len(self.sides)
        length = math.ceil(count / math.ceil(count / MAX_IMAGES_PER_LINE))
        return [slice(first, first + length) for first in range(0, count, length)]

    @property
    def is_small(self) -> bool:
        """True if the images are shown small, because there are more than MAX_LARGE_IMAGES."""
        return len(self.sides) > MAX_LARGE_IMAGES

    @property
    def search_text(self) -> str:
        """Text by which the page's search field finds this prompt."""
        return f"{self.prompt} {self.prompt_id}".lower()


def make_side_by_side(
    picks: Sequence[Pick],
    details: Mapping[ImageKey, ImageDetail],
    prompt: str | None,
    skills: Sequence[str],
    directions: Mapping[str, int],
) -> SideBySide:
    """Return the section that shows one prompt's images side by side.

    `directions` maps each metric to 1 if a higher score is better, -1 if a lower one is, and 0 if neither is.
    """
    prompt_id, own = picks[0].prompt_id, [details.get(pick.key, EMPTY_IMAGE_DETAIL) for pick in picks]
    sources = list(dict.fromkeys(source for detail in own for source in detail.sources))
    shown_sources = [source for source in sources if source.url]
    sides = []
    for pick, detail in zip(picks, own, strict=True):
        first = next((shown_sources.index(source) for source in detail.sources if source.url), None)
        sides.append(GeneratorImage(pick.key.generator, detail.image, first))
    return SideBySide(
        prompt_id=prompt_id,
        prompt=shorten(prompt if prompt is not None else describe_unreadable_prompt(prompt_id), MAX_CHARACTERS),
        skills=tuple(skills),
        sources=sources,
        sides=sides,
        scores=[_make_score_row(metric, direction, picks) for metric, direction in directions.items()],
        questions=[
            _list_questions(metric, own) for metric in directions if any(detail.elements.get(metric) for detail in own)
        ],
    )


def _make_score_row(metric: str, direction: int, picks: Sequence[Pick]) -> ScoreRow:
    scores = [pick.scores.get(metric) for pick in picks]
    known = [score for score in scores if score is not None]
    best = format_number(max(known, key=lambda score: direction * score), 2) if known and direction else ""
    alike = all(format_number(score, 2) == best for score in known)
    return ScoreRow(metric, direction < 0, [format_number(score, 2) for score in scores], "" if alike else best)


def _list_questions(metric: str, details: Sequence[ImageDetail]) -> QuestionTable:
    by_id: dict[str, list[MarkedQuestion | None]] = {}
    for image, detail in enumerate(details):
        for element in detail.elements.get(metric) or ():
            answers = by_id.setdefault(str(element["question_id"]), [None] * len(details))
            answers[image] = mark_question(element)
    rows = []
    for answers in by_id.values():
        asked = next(answer for answer in answers if answer is not None)
        rows.append(QuestionRow(asked.text, asked.wanted, answers))
    limited = take_first_rows(rows, MAX_QUESTIONS)
    return QuestionTable(metric, limited, sum(row.differs for row in limited.rows))

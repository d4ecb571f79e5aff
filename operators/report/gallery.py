"""The cards of the gallery: how an image is shown with its prompt, its scores and the answers about it."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.sentences import names
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import decode_picture
from plumbline.operators.images.rows import SOURCES, FetchUri, edit_error, numbered_error, read_sources
from plumbline.operators.report.marked_words import (
    ComparedWords,
    MarkedQuestion,
    Segment,
    asked_questions,
    compared_words,
    cut,
    mark_prompt,
    unreadable,
)
from plumbline.operators.report.picked_images import Pick
from plumbline.operators.results.usual_scores import NOTHING_USUAL, UsualScores

THUMBNAIL_SIDE = 512
THUMBNAIL_BYTES = 16_000
SMALLER = ((1, 82), (1, 70), (1, 55), (1, 40), (0.7, 55), (0.7, 40), (0.5, 55), (0.5, 40), (0.5, 25), (0.5, 10))
"""Of a picture that is too large, in this order: its size, and the quality of its WebP."""
SOURCE_BYTES = 500
"""What each of a row's sources may take, however many they are."""
MOST_UNSCROLLED = 120
"""Characters that a prompt has room for, be they as wide as they may."""


class Picture(NamedTuple):
    """An image as a page shows it."""

    thumbnail: str | None
    """A data: address, or where the page's server has it."""
    missing: str = ""
    """Why there is no thumbnail."""


class ImageDetail(NamedTuple):
    """What the store and the sources have about a picked image."""

    thumbnail: str | None
    """A data: address."""
    missing: str
    """Why there is no thumbnail."""
    elements: Mapping[str, Sequence[Mapping[str, Any]]]
    """By metric that has any, the questions with their scores (operators/base/schemas.py, ELEMENT)."""
    rationales: Mapping[str, str]
    """By metric that gives any, its judge's own reasons."""
    ratings: Mapping[str, Mapping[str, float]]
    """By metric whose judge gives any, its numbers by what they rate."""
    sources: Sequence[Picture] = ()
    """What it was edited from."""


NO_DETAIL = ImageDetail(None, "it was not looked for", {}, {}, {})


class MetricView(NamedTuple):
    """One metric's part of a card."""

    metric: str
    score: float
    rank: float
    usual: str
    """Where it stands among all images scored so far, in words; empty where they are too few."""
    questions: list[MarkedQuestion]
    words: list[Segment]
    """The prompt by what its questions score; empty where none says which words it is about."""
    compared: ComparedWords | None
    """Of a metric that reads words; they are its questions."""
    more: int
    """Questions that are not shown."""
    rationale: str
    ratings: list[tuple[str, str]]
    """What a judge rated, and how high."""


class Card(NamedTuple):
    """An image as the gallery shows it."""

    pick: Pick
    alt: str
    thumbnail: str | None
    missing: str
    sources: Sequence[Picture]
    """What it was edited from."""
    prompt: list[Segment]
    marked_by: str
    """The metric whose questions mark the prompt; empty where none has any."""
    skills: tuple[str, ...]
    views: list[MetricView]
    search: str
    """What the text filter looks in."""

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(reason.kind for reason in self.pick.reasons))

    @property
    def is_long(self) -> bool:
        """Whether its prompt may be too long for its place, so that it scrolls there."""
        text = "".join(segment.text for segment in self.prompt)
        return len(text) > MOST_UNSCROLLED or text.count("\n") > 4

    @property
    def why(self) -> str:
        """Why it is here, in words."""
        parts = []
        for kind in ("worst", "best", "lowest", "highest"):
            if metrics := [reason.metric for reason in self.pick.reasons if reason.kind == kind]:
                parts.append(f"among the {kind} by {names(metrics)}")
        return "; ".join([*parts, *[reason.text for reason in self.pick.reasons if reason.text][:1]])

    @property
    def reasons_json(self) -> str:
        """[[kind, metric], ...], for the filter."""
        return json.dumps([[reason.kind, reason.metric] for reason in self.pick.reasons])

    @property
    def skills_json(self) -> str:
        return json.dumps(self.skills)


def make_card(
    pick: Pick,
    detail: ImageDetail,
    prompt: str | None,
    skills: Sequence[str],
    usual: UsualScores = NOTHING_USUAL,
) -> Card:
    """The card of a picked image; its prompt is marked by the first of its reasons' metrics that has questions."""
    text = prompt if prompt is not None else unreadable(pick.prompt_id)
    metrics = [*(reason.metric for reason in pick.reasons), *detail.elements] if prompt is not None else []
    marked_by = next((metric for metric in metrics if detail.elements.get(metric)), "")
    return Card(
        pick=pick,
        alt=f"Image by {pick.key.generator} for the prompt: {cut(text, 200)}",
        thumbnail=detail.thumbnail,
        missing=cut(detail.missing),
        sources=detail.sources,
        prompt=mark_prompt(text, detail.elements.get(marked_by, ())),
        marked_by=marked_by,
        skills=tuple(skills),
        views=[_view(metric, pick, detail, prompt, usual) for metric in pick.scores],
        search=" ".join((cut(text, 1000), pick.key.generator, pick.key.image_id, pick.prompt_id)).lower(),
    )


def _view(metric: str, pick: Pick, detail: ImageDetail, prompt: str | None, usual: UsualScores) -> MetricView:
    elements = detail.elements.get(metric) or ()
    words = mark_prompt(prompt, elements) if prompt is not None else []
    compared = compared_words(elements)
    elements = elements if compared is None else elements[:-1]
    questions = asked_questions(elements)
    return MetricView(
        metric=metric,
        score=pick.scores[metric],
        rank=pick.ranks[metric],
        usual=usual.say(metric, pick.scores[metric]),
        questions=questions,
        words=words if any(word.state for word in words) else [],
        compared=compared,
        more=len(elements) - len(questions),
        rationale=cut(detail.rationales.get(metric), 2000),
        ratings=[(cut(name, 80), f"{value:g}") for name, value in detail.ratings.get(metric, {}).items()],
    )


class Thumbnails(NamedTuple):
    """A row's image and what it was edited from, as large as they are enlarged to."""

    image: Picture
    sources: Sequence[Picture] = ()


def make_thumbnails(row: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri) -> Thumbnails:
    """As data: addresses, each of at most `THUMBNAIL_BYTES` encoded bytes, and so all sources of the row."""
    sources = make_sources(row, limits, fetch)
    return Thumbnails(_embedded(make_picture(row, limits, fetch)), [_embedded(source) for source in sources])


def _embedded(image: bytes | RowError) -> Picture:
    if isinstance(image, RowError):
        return Picture(None, cut(image.message))
    return Picture(f"data:image/webp;base64,{base64.b64encode(image).decode()}")


def make_picture(
    row: Mapping[str, Any],
    limits: ImageLimits,
    fetch: FetchUri,
    *,
    side: int = THUMBNAIL_SIDE,
    most: int = THUMBNAIL_BYTES,
) -> bytes | RowError:
    """The row's image as WebP, no larger than a square of this `side` and of at most so many bytes."""
    image = decode_picture(row, limits, fetch)
    if isinstance(image, RowError):
        return image
    image.thumbnail((side, side))
    return _small(image, most)


def make_sources(
    row: Mapping[str, Any],
    limits: ImageLimits,
    fetch: FetchUri,
    *,
    side: int = THUMBNAIL_SIDE,
    most: int = THUMBNAIL_BYTES,
) -> list[bytes | RowError]:
    """Each source of the row's image as `make_picture` makes it, together of so many bytes; none where its table has no
    column of sources."""
    if not any(name in row for name in SOURCES):
        return []
    encoded = read_sources(row, limits.max_images, fetch)
    if isinstance(encoded, RowError):
        return [encoded]
    count, each = len(encoded), max(most // len(encoded), SOURCE_BYTES)
    made = (make_picture({"image": content}, limits, fetch, side=side, most=each) for content in encoded)
    return [
        edit_error(numbered_error(source, number, count), "source") if isinstance(source, RowError) else source
        for number, source in enumerate(made, 1)
    ]


def _small(image: Image.Image, most: int) -> bytes:
    """The image as the largest and best WebP that is small enough, at a half of the smallest size where none is."""
    for size, quality in SMALLER:
        buffer = io.BytesIO()
        _scaled(image, size).save(buffer, "WEBP", quality=quality, method=0)
        if buffer.tell() <= most:
            return buffer.getvalue()
    return _small(_scaled(image, SMALLER[-1][0] / 2), most)


def _scaled(image: Image.Image, size: float) -> Image.Image:
    if size == 1:
        return image
    return image.resize((max(1, round(size * image.width)), max(1, round(size * image.height))))

"""Cards of the gallery: an image with its prompt, its scores and the answers to questions about it."""

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
    compared_words,
    cut,
    mark_prompt,
    mark_questions,
    unreadable,
)
from plumbline.operators.report.picked_images import Pick
from plumbline.operators.results.percentile_ranks import NOTHING_USUAL, UsualScores

THUMBNAIL_SIDE = 512
THUMBNAIL_BYTES = 16_000
SMALLER = ((1, 82), (1, 70), (1, 55), (1, 40), (0.7, 55), (0.7, 40), (0.5, 55), (0.5, 40), (0.5, 25), (0.5, 10))
"""(scale, WebP quality) to try in this order for an image that takes too many bytes."""
SOURCE_BYTES = 500
"""Bytes that each of a row's sources may take at least, even if there are many."""
MAX_UNSCROLLED = 120
"""Characters of a prompt that always fit, even if they are wide."""


class Picture(NamedTuple):
    """Thumbnail of an image, or the reason for its absence."""

    thumbnail: str | None
    """Data URI, or a URL on the page's server."""
    missing: str = ""
    """Reason for a missing thumbnail."""


class ImageDetail(NamedTuple):
    """Details of a picked image from the store and from the benchmark's files."""

    thumbnail: str | None
    """Data URI."""
    missing: str
    """Reason for a missing thumbnail."""
    elements: Mapping[str, Sequence[Mapping[str, Any]]]
    """Questions with their scores, by metric that has any (operators/base/schemas.py, ELEMENT)."""
    rationales: Mapping[str, str]
    """Reasons that a metric's judge gave, by metric that has any."""
    ratings: Mapping[str, Mapping[str, float]]
    """Named numbers that a metric's judge gave, by metric that has any."""
    sources: Sequence[Picture] = ()
    """Images that it was edited from."""


NO_DETAIL = ImageDetail(None, "it was not looked for", {}, {}, {})


class MetricView(NamedTuple):
    """Part of a card about one metric."""

    metric: str
    score: float
    rank: float
    usual: str
    """Percentile rank of the score among all images in the store, in words; empty if there are too few images."""
    questions: list[MarkedQuestion]
    words: list[Segment]
    """The prompt, marked by the scores of the metric's questions; empty if no question names its words."""
    compared: ComparedWords | None
    """Wanted words and read words, for a metric that reads words in images."""
    more: int
    """Number of questions that are not shown."""
    rationale: str
    ratings: list[tuple[str, str]]
    """Names and values of a judge's ratings."""


class Card(NamedTuple):
    """An image in the gallery."""

    pick: Pick
    alt: str
    thumbnail: str | None
    missing: str
    sources: Sequence[Picture]
    """Images that it was edited from."""
    prompt: list[Segment]
    marked_by: str
    """The metric whose questions mark the prompt; empty if no metric has questions."""
    skills: tuple[str, ...]
    views: list[MetricView]
    search: str
    """Text that the text filter searches."""

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(reason.kind for reason in self.pick.reasons))

    @property
    def is_long(self) -> bool:
        """Return True if the prompt may be too long to be shown without scrolling."""
        text = "".join(segment.text for segment in self.prompt)
        return len(text) > MAX_UNSCROLLED or text.count("\n") > 4

    @property
    def why(self) -> str:
        """Reasons why the image is in the gallery, in words."""
        parts = []
        for kind in ("worst", "best", "lowest", "highest"):
            if metrics := [reason.metric for reason in self.pick.reasons if reason.kind == kind]:
                parts.append(f"among the {kind} by {names(metrics)}")
        return "; ".join([*parts, *[reason.text for reason in self.pick.reasons if reason.text][:1]])

    @property
    def reasons_json(self) -> str:
        """Reasons as [[kind, metric], ...], for the filter."""
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
    """Return the card of a picked image; the prompt is None if it cannot be read.

    The prompt is marked by the questions of one metric: the first one with questions among the image's reasons. `usual`
    has the scores of all images of the benchmark in the store.
    """
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
    questions = mark_questions(elements)
    return MetricView(
        metric=metric,
        score=pick.scores[metric],
        rank=pick.ranks[metric],
        usual=usual.describe(metric, pick.scores[metric]),
        questions=questions,
        words=words if any(word.state for word in words) else [],
        compared=compared,
        more=len(elements) - len(questions),
        rationale=cut(detail.rationales.get(metric), 2000),
        ratings=[(cut(name, 80), f"{value:g}") for name, value in detail.ratings.get(metric, {}).items()],
    )


class Thumbnails(NamedTuple):
    """Thumbnails of a row's image and of the images that it was edited from."""

    image: Picture
    sources: Sequence[Picture] = ()


def make_thumbnails(row: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri) -> Thumbnails:
    """Return thumbnails as data URIs: at most THUMBNAIL_BYTES encoded bytes for the image, and for all its sources."""
    sources = make_sources(row, limits, fetch)
    return Thumbnails(_embed(make_picture(row, limits, fetch)), [_embed(source) for source in sources])


def _embed(image: bytes | RowError) -> Picture:
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
    """Return the row's image as WebP with at most `most` bytes, no larger than a square of this `side` in pixels."""
    image = decode_picture(row, limits, fetch)
    if isinstance(image, RowError):
        return image
    image.thumbnail((side, side))
    return _encode(image, most)


def make_sources(
    row: Mapping[str, Any],
    limits: ImageLimits,
    fetch: FetchUri,
    *,
    side: int = THUMBNAIL_SIDE,
    most: int = THUMBNAIL_BYTES,
) -> list[bytes | RowError]:
    """Return the sources of the row's image as WebP, together about `most` bytes; none if the row has no sources."""
    if not any(name in row for name in SOURCES):
        return []
    encoded = read_sources(row, limits.max_images, fetch)
    if isinstance(encoded, RowError):
        return [encoded]
    count, each = len(encoded), max(most // len(encoded), SOURCE_BYTES)
    pictures = (make_picture({"image": content}, limits, fetch, side=side, most=each) for content in encoded)
    return [
        edit_error(numbered_error(source, number, count), "source") if isinstance(source, RowError) else source
        for number, source in enumerate(pictures, 1)
    ]


def _encode(image: Image.Image, most: int) -> bytes:
    """Return the image as the largest and best WebP that is small enough; if none is, try again at a smaller size."""
    for size, quality in SMALLER:
        buffer = io.BytesIO()
        _scale(image, size).save(buffer, "WEBP", quality=quality, method=0)
        if buffer.tell() <= most:
            return buffer.getvalue()
    return _encode(_scale(image, SMALLER[-1][0] / 2), most)


def _scale(image: Image.Image, size: float) -> Image.Image:
    if size == 1:
        return image
    return image.resize((max(1, round(size * image.width)), max(1, round(size * image.height))))

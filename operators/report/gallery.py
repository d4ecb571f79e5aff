"""Builds the cards of the gallery: each has an image, its prompt, its scores, and the answers to questions about it."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from PIL import Image, WebPImagePlugin  # noqa: F401  # otherwise the first WebP imports all formats, in 0.1 s

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.sentences import format_names
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import decode_row_image
from plumbline.operators.images.rows import SOURCE_COLUMNS, FetchUri, add_image_number, name_edit_error, read_sources
from plumbline.operators.report.marked_words import (
    ComparedWords,
    MarkedQuestion,
    Segment,
    describe_unreadable_prompt,
    find_compared_words,
    mark_prompt,
    mark_questions,
    shorten,
)
from plumbline.operators.report.picked_images import Pick
from plumbline.operators.results.percentile_ranks import NO_USUAL_SCORES, UsualScores

THUMBNAIL_SIDE_PIXELS = 512
THUMBNAIL_BYTES = 16_000
COMPRESSION_STEPS = (
    (1, 82),
    (1, 70),
    (1, 55),
    (1, 40),
    (0.7, 55),
    (0.7, 40),
    (0.5, 55),
    (0.5, 40),
    (0.5, 25),
    (0.5, 10),
)
"""(scale, WebP quality) pairs to try in this order until an image is small enough."""
MIN_SOURCE_BYTES = 500
"""Minimum number of bytes allowed for each source image of a row, even if there are many."""
MAX_UNSCROLLED_CHARACTERS = 120
"""Maximum number of characters of a prompt that fits without scrolling, even if all characters are wide."""


class Thumbnail(NamedTuple):
    """A small version of an image for a page, or the reason why it is missing."""

    url: str | None
    """Data URI, or a URL on the page's server."""
    missing: str = ""
    """Reason why the thumbnail is missing, if `url` is None."""


class ImageDetail(NamedTuple):
    """Details of an image in the report besides its scores, such as the answers to questions about it."""

    image: Thumbnail
    elements: Mapping[str, Sequence[Mapping[str, Any]]]
    """Questions with their scores, by metric (operators/base/schemas.py, ELEMENT)."""
    rationales: Mapping[str, str]
    """Explanations given by the metrics' judges, by metric."""
    ratings: Mapping[str, Mapping[str, float]]
    """Named numbers given by the metrics' judges, by metric."""
    sources: Sequence[Thumbnail] = ()


EMPTY_IMAGE_DETAIL = ImageDetail(Thumbnail(None, "it has not been read"), {}, {}, {})


class MetricView(NamedTuple):
    """One metric's score for an image in the gallery, with the questions, words and rationale behind it."""

    metric: str
    score: float
    rank: float
    usual: str
    """Percentile rank of the score among all scores in the store, as text; empty if there are too few images."""
    questions: list[MarkedQuestion]
    words: list[Segment]
    """The prompt, highlighted by the scores of the metric's questions; empty if no question refers to words of the
    prompt.
    """
    compared: ComparedWords | None
    more: int
    """Number of questions that are not shown."""
    rationale: str
    ratings: list[tuple[str, str]]


class Card(NamedTuple):
    """Everything that the gallery shows about one image: thumbnails, prompt, and each metric's score."""

    pick: Pick
    alt: str
    image: Thumbnail
    sources: Sequence[Thumbnail]
    prompt: list[Segment]
    marked_by: str
    """Metric whose questions determine how the prompt is highlighted; empty if no metric has questions."""
    skills: tuple[str, ...]
    views: list[MetricView]
    search: str

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(reason.kind for reason in self.pick.reasons))

    @property
    def is_long(self) -> bool:
        """Return True if the prompt may be too long to show without scrolling: it has many characters or lines."""
        text = "".join(segment.text for segment in self.prompt)
        return len(text) > MAX_UNSCROLLED_CHARACTERS or text.count("\n") > 4

    @property
    def why(self) -> str:
        """Text that says why the image is in the gallery, such as `among the worst by m and k`."""
        parts = []
        for kind in ("worst", "best", "lowest", "highest"):
            if metrics := [reason.metric for reason in self.pick.reasons if reason.kind == kind]:
                parts.append(f"among the {kind} by {format_names(metrics)}")
        return "; ".join([*parts, *[reason.text for reason in self.pick.reasons if reason.text][:1]])


def make_card(
    pick: Pick,
    detail: ImageDetail,
    prompt: str | None,
    skills: Sequence[str],
    usual: UsualScores = NO_USUAL_SCORES,
) -> Card:
    """Return the card of an image in the gallery; the prompt is None if it cannot be read.

    The prompt is highlighted by the first metric that has questions, in the order of the reasons for showing the image.
    """
    text = prompt if prompt is not None else describe_unreadable_prompt(pick.prompt_id)
    metrics = [*(reason.metric for reason in pick.reasons), *detail.elements] if prompt is not None else []
    marked_by = next((metric for metric in metrics if detail.elements.get(metric)), "")
    return Card(
        pick=pick,
        alt=f"Image by {pick.key.generator} for the prompt: {shorten(text, 200)}",
        image=detail.image,
        sources=detail.sources,
        prompt=mark_prompt(text, detail.elements.get(marked_by, ())),
        marked_by=marked_by,
        skills=tuple(skills),
        views=[_make_view(metric, pick, detail, prompt, usual) for metric in pick.scores],
        search=" ".join((shorten(text, 1000), pick.key.generator, pick.key.image_id, pick.prompt_id)).lower(),
    )


def _make_view(metric: str, pick: Pick, detail: ImageDetail, prompt: str | None, usual: UsualScores) -> MetricView:
    elements = detail.elements.get(metric) or ()
    words = mark_prompt(prompt, elements) if prompt is not None else []
    compared = find_compared_words(elements)
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
        rationale=shorten(detail.rationales.get(metric), 2000),
        ratings=[(shorten(name, 80), f"{value:g}") for name, value in detail.ratings.get(metric, {}).items()],
    )


def make_thumbnails(row: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri) -> list[Thumbnail]:
    """Return thumbnails, as data URIs, of a row's image and then of the source images that it was edited from.

    The image takes at most THUMBNAIL_BYTES encoded bytes, and all source images together take at most as many again.
    """
    encoded = [encode_thumbnail(row, limits, fetch), *encode_source_thumbnails(row, limits, fetch)]
    return [
        Thumbnail(None, shorten(image.message))
        if isinstance(image, RowError)
        else Thumbnail(f"data:image/webp;base64,{base64.b64encode(image).decode()}")
        for image in encoded
    ]


def encode_thumbnail(
    row: Mapping[str, Any],
    limits: ImageLimits,
    fetch: FetchUri,
    *,
    side: int = THUMBNAIL_SIDE_PIXELS,
    max_bytes: int = THUMBNAIL_BYTES,
) -> bytes | RowError:
    """Return the row's image as WebP, at most `side` pixels wide and high and at most `max_bytes` long."""
    image = decode_row_image(row, limits, fetch)
    if isinstance(image, RowError):
        return image
    image.thumbnail((side, side))
    return _encode_webp(image, max_bytes)


def encode_source_thumbnails(
    row: Mapping[str, Any],
    limits: ImageLimits,
    fetch: FetchUri,
    *,
    side: int = THUMBNAIL_SIDE_PIXELS,
    max_bytes: int = THUMBNAIL_BYTES,
) -> list[bytes | RowError]:
    """Return the source images of the row as WebP, about `max_bytes` in total; empty if the row has no sources."""
    if not any(name in row for name in SOURCE_COLUMNS):
        return []
    encoded = read_sources(row, limits.max_images, fetch)
    if isinstance(encoded, RowError):
        return [encoded]
    count, each = len(encoded), max(max_bytes // len(encoded), MIN_SOURCE_BYTES)
    thumbnails = (encode_thumbnail({"image": content}, limits, fetch, side=side, max_bytes=each) for content in encoded)
    return [
        name_edit_error(add_image_number(source, number, count), "source") if isinstance(source, RowError) else source
        for number, source in enumerate(thumbnails, 1)
    ]


def _encode_webp(image: Image.Image, max_bytes: int) -> bytes:
    """Return the image as WebP of at most `max_bytes`, using the first of COMPRESSION_STEPS that makes it small enough.

    If none does, the image is scaled down further.
    """
    for size, quality in COMPRESSION_STEPS:
        buffer = io.BytesIO()
        _scale_image(image, size).save(buffer, "WEBP", quality=quality, method=0)
        if buffer.tell() <= max_bytes:
            return buffer.getvalue()
    return _encode_webp(_scale_image(image, COMPRESSION_STEPS[-1][0] / 2), max_bytes)


def _scale_image(image: Image.Image, size: float) -> Image.Image:
    if size == 1:
        return image
    return image.resize((max(1, round(size * image.width)), max(1, round(size * image.height))))

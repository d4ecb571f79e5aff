"""Decodes and preprocesses a shard's images once for all questions about them, and makes the image that people see."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean
from threading import BoundedSemaphore
from typing import Any, NamedTuple

import pyarrow as pa
from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.rows import input_digest
from plumbline.operators.base.stopping import STOP, STOPPED
from plumbline.operators.images.decoding import ImageLimits, decode_bytes, decode_each, too_large
from plumbline.operators.images.rows import (
    ADDRESSES,
    FetchUri,
    ImageRow,
    digest_of,
    edit_error,
    identify,
    image_records,
    is_embedded,
    numbered_error,
    read_images,
    read_mask,
    read_row_images,
    read_sources,
)
from plumbline.operators.images.videos import FRAME_SECONDS, LISTED_SECONDS, STANDARD, Clips, grid

FETCHES = 8
"""Number of threads that read addresses while others decode: a server takes about as long to answer as a decoder."""


def decode_picture(row: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri) -> Image.Image | RowError:
    """Return the image of a row that people see, as RGB: its image, or a grid.

    The image comes from `image` (bytes, or the {bytes, path} struct of HF datasets) or else from `uri`. Several images,
    a video or an animation become a grid.

    As in the papers' released code, neither transparency nor an EXIF orientation is applied.
    """
    encoded = read_images(row, limits.max_images, fetch)
    if isinstance(encoded, RowError):
        return encoded
    return next(_make_grid(_decode_images(encoded, limits, STANDARD), limits))


Preprocess = Callable[[Image.Image], Any]
PreprocessVideo = Callable[[Sequence[Image.Image], float], Any]
"""Preprocesses a video's frames, given the seconds that each frame represents."""


class Edit(NamedTuple):
    """The source of an edited image, and its mask."""

    source: Image.Image
    """The image that it was edited from."""
    mask: Image.Image | None = None
    """Area of the edit, if the metric reads masks and the table has them."""


PreprocessEdit = Callable[[Image.Image, Edit], Any]
IsKnown = Callable[[int, ImageRow, str, str | None], bool]
"""Returns True if the result for a row of a table is already known. Arguments: the row's place, its ids, the digest of
its image, and that of its sources if they are looked at."""


def nothing_known(place: int, row: ImageRow, digest: str, sources: str | None) -> bool:
    """Return False: no result is known, so every row is computed."""
    return False


@dataclass(slots=True)
class PreparedImages:
    """One shard's images, decoded and preprocessed once for every question on them."""

    rows: list[ImageRow] = field(default_factory=list)
    """Ids of the rows, in the shard's order."""
    digests: list[str | None] = field(default_factory=list)
    """SHA-256 of each row's encoded image, 16 hexadecimal digits; None for a row without an image."""
    errors: list[RowError | None] = field(default_factory=list)
    """Error of each row that has no pixels."""
    pixels: list[Any] = field(default_factory=list)
    """Preprocessed images of all rows without error, in row order, on the CPU."""
    places: list[int] = field(default_factory=list)
    """Numbers of the rows in the table, as rows that are already known are left out."""
    counts: list[int] = field(default_factory=list)
    """Number of `pixels` of each row: 0 for an error, more than 1 for rows of several images and videos."""
    sources: list[str | None] = field(default_factory=list)
    """Digest of each row's sources and mask; None if it has none or they are not read."""

    def add(
        self,
        place: int,
        row: ImageRow,
        digest: str | None,
        pixels: Sequence[Any] | RowError,
        sources: str | None = None,
    ) -> None:
        """Add a row with its preprocessed images, or with the error in their place."""
        error = pixels if isinstance(pixels, RowError) else None
        of_row = [] if isinstance(pixels, RowError) else pixels
        self.rows.append(row)
        self.digests.append(digest)
        self.errors.append(error)
        self.pixels.extend(of_row)
        self.places.append(place)
        self.counts.append(len(of_row))
        self.sources.append(sources)


class _PreparedRow(NamedTuple):
    row: ImageRow
    digest: str | None
    pixels: list[Any] | RowError
    sources: str | None = None


def prepare_images(
    images: pa.Table,
    generator: str,
    *,
    preprocess: Preprocess,
    limits: ImageLimits,
    fetch: FetchUri,
    clips: Clips = STANDARD,
    preprocess_video: PreprocessVideo | None = None,
    preprocess_edit: PreprocessEdit | None = None,
    masked: bool = False,
    is_known: IsKnown = nothing_known,
    decoders: int = 1,
) -> PreparedImages:
    """Decode and preprocess a shard's images; a row that fails has its error.

    `preprocess_video` is called for rows of several images that are shown as a video; without it, each is shown by
    itself. `preprocess_edit` is called in place of both, with each image, its row's source and, if `masked`, the row's
    mask. Rows that are known already (`is_known`) are left out.

    Up to `decoders` images are decoded at once, each in a thread that also calls the functions above. Pillow and numpy
    release Python's lock while they compute.
    """
    records, decoding = image_records(images), BoundedSemaphore(decoders)

    def prepare(place: int, record: Mapping[str, Any]) -> _PreparedRow | None:
        row = identify(record, generator)
        if STOP.is_set():
            return _PreparedRow(row, None, STOPPED)
        encoded = read_row_images(row, record, limits.max_images, fetch)
        if isinstance(encoded, RowError):
            return _PreparedRow(row, None, encoded)
        sources = [] if preprocess_edit is None else read_sources(record, limits.max_images, fetch)
        mask = read_mask(record, limits.max_images, fetch) if masked else None
        digest = digest_of(encoded)
        if isinstance(sources, RowError):
            return _PreparedRow(row, digest, sources)
        if isinstance(mask, RowError):
            return _PreparedRow(row, digest, mask)
        sources_digest = _digest_sources(sources, mask)
        if is_known(place, row, digest, sources_digest):
            return None
        with decoding:
            if preprocess_edit is None:
                pixels = _preprocess_row(encoded, preprocess, preprocess_video, limits, clips)
            else:
                pixels = _preprocess_edits(encoded, sources, mask, preprocess_edit, limits, clips)
        return _PreparedRow(row, digest, pixels, sources_digest)

    fetches = (
        FETCHES if any(not is_embedded(record) or any(map(record.get, ADDRESSES[1:])) for record in records) else 0
    )
    threads = min(decoders + fetches, len(records))
    prepared = PreparedImages()
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        in_order = (pool.map if threads > 1 else map)(prepare, range(len(records)), records)
        for place, outcome in enumerate(in_order):
            if outcome is not None:
                prepared.add(place, *outcome)
    return prepared


def _preprocess_row(
    encoded: Sequence[bytes],
    preprocess: Preprocess,
    preprocess_video: PreprocessVideo | None,
    limits: ImageLimits,
    clips: Clips,
) -> list[Any] | RowError:
    """Preprocess each of a row's images, or all as one grid or video; a RowError if one fails."""
    images = _decode_images(encoded, limits, clips)
    if clips.shown == "video" and preprocess_video is not None:
        frames = _collect(images, limits, "video")
        if isinstance(frames, RowError):
            return frames
        if len(frames) > 1:
            seconds = fmean(frame.info.get(FRAME_SECONDS, LISTED_SECONDS) for frame in frames)
            video = _preprocess(frames[0], lambda first: preprocess_video(frames, seconds))
            return video if isinstance(video, RowError) else [video]
        images = iter(frames)  # a single image is shown as an image
    if clips.shown == "grid":
        images = _make_grid(images, limits)
    pixels: list[Any] = []
    for image in images:
        made = image if isinstance(image, RowError) else _preprocess(image, preprocess)
        if isinstance(made, RowError):
            return made
        pixels.append(made)
    return pixels


def _digest_sources(sources: Sequence[bytes], mask: bytes | None) -> str | None:
    """Return the digest of a row's sources and mask; None if there are none."""
    digest = digest_of(sources) if sources else None
    return digest if mask is None else input_digest(digest or "", digest_of([mask]))


def _preprocess_edits(
    encoded: Sequence[bytes],
    sources: Sequence[bytes],
    mask: bytes | None,
    preprocess: PreprocessEdit,
    limits: ImageLimits,
    clips: Clips,
) -> list[Any] | RowError:
    """Preprocess each of a row's images with its source and its mask."""
    before = _collect(_decode_images(sources, limits, STANDARD), limits, "source")
    where = None if mask is None else decode_bytes(mask, limits)
    if isinstance(before, RowError):
        return edit_error(before, "source")
    if isinstance(where, RowError):
        return edit_error(where, "mask")
    if len(before) > 1:
        found = f"{len(before)} pictures in the row, where metrics look at one"
        return edit_error(
            RowError("too_many_images", f"{found}; keep the one that the image was edited from"), "source"
        )
    edit = Edit(before[0], where)
    return _preprocess_row(encoded, lambda image: preprocess(image, edit), None, limits, clips)


def _decode_images(encoded: Sequence[bytes], limits: ImageLimits, clips: Clips) -> Iterator[Image.Image | RowError]:
    """Yield a row's images and the frames of its videos, one after the other; none is kept."""
    for place in clips.select_listed(len(encoded)):
        for image in decode_each(encoded[place], limits, clips):
            yield numbered_error(image, place + 1, len(encoded)) if isinstance(image, RowError) else image


def _make_grid(images: Iterator[Image.Image | RowError], limits: ImageLimits) -> Iterator[Image.Image | RowError]:
    """Yield all of a row's images as one grid, which must be within the limits too."""
    frames = _collect(images, limits, "grid")
    if isinstance(frames, RowError):
        yield frames
    else:
        yield frames[0] if len(frames) == 1 else grid(frames)


def _collect(images: Iterator[Image.Image | RowError], limits: ImageLimits, what: str) -> list[Image.Image] | RowError:
    """Return all of a row's images; a RowError if one fails, or if together they exceed the limits of one image."""
    frames: list[Image.Image] = []
    for image in images:
        if isinstance(image, RowError):
            return image
        frames.append(image)
        first = frames[0]
        if len(frames) * first.width * first.height > limits.max_pixels:
            found = f"a {what} of {len(frames)} or more images of {first.width}x{first.height} pixels"
            return too_large(found, f"max_pixels={limits.max_pixels}")
    return frames


def _preprocess(image: Image.Image, preprocess: Preprocess) -> Any:
    """Preprocess one image, or return a RowError."""
    try:
        return preprocess(image)
    except Exception as error:
        message = f"a {image.width}x{image.height} image cannot be resized: {error or type(error).__name__}; replace it"
        of_the_image = isinstance(error, (ValueError, OSError, ArithmeticError))
        return RowError("corrupt_image", message, retryable=not of_the_image)

"""Decodes and preprocesses a shard's images once for all questions, and builds the image that shows a row to people."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean
from threading import BoundedSemaphore
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.rows import digest_inputs
from plumbline.operators.base.stopping import STOP_REQUESTED, STOPPED_ERROR
from plumbline.operators.images.decoding import ImageLimits, RowFailure, decode_bytes, decode_each, make_too_large_error
from plumbline.operators.images.rows import (
    ADDRESS_COLUMNS,
    FetchUri,
    ImageRow,
    add_image_number,
    digest_images,
    is_embedded,
    list_image_records,
    name_edit_error,
    read_image_row,
    read_images,
    read_mask,
    read_original,
    read_row_images,
    read_sources,
)
from plumbline.operators.images.videos import (
    DEFAULT_CLIPS,
    FRAME_SECONDS_KEY,
    SECONDS_PER_LISTED_FRAME,
    Clips,
    make_grid,
)

N_FETCH_THREADS = 8
"""Number of extra threads that fetch images from addresses while other threads decode: fetching an image takes about as
long as decoding it.
"""

Preprocess = Callable[[Image.Image], Any]
PreprocessVideo = Callable[[Sequence[Image.Image], float], Any]
"""Function that preprocesses a video, given its frames and the number of seconds that each frame represents."""


class Edit(NamedTuple):
    """The image before an edit, and the mask of the edited area, if there is one."""

    source: Image.Image
    """The image before the edit."""
    mask: Image.Image | None = None
    """Mask of the edited area, if the metric reads masks and the table has them."""
    original: Image.Image | None = None
    """The image before the edit, if `source` is another edit with which the image is compared."""


PreprocessEdit = Callable[[Image.Image, Edit], Any]
IsKnown = Callable[[int, ImageRow, str, str | None], bool]
"""Function that returns True if the result for a row is already known. Arguments: the row's index in the table, its
ids, the digest of its image, and the digest of its source images if they are used.
"""


@dataclass(slots=True)
class PreparedImages:
    """One shard's images, decoded and preprocessed once for all questions about them."""

    rows: list[ImageRow] = field(default_factory=list)
    """Ids of the rows, in shard order."""
    digests: list[str | None] = field(default_factory=list)
    """First 16 hexadecimal digits of the SHA-256 of each row's encoded image; None for a row without an image."""
    errors: list[RowError | None] = field(default_factory=list)
    """Error for a row that has no pixels."""
    pixels: list[Any] = field(default_factory=list)
    """Preprocessed images of all rows without an error, in row order, on the CPU."""
    row_numbers: list[int] = field(default_factory=list)
    """Indices of the rows in the table; rows with known results are left out."""
    counts: list[int] = field(default_factory=list)
    """Number of entries in `pixels` for each row: 0 for an error, more than 1 for rows with several images or a video.
    """
    sources: list[str | None] = field(default_factory=list)
    """Digest of each row's sources and mask; None if the row has neither, or if they are not read."""
    equal_sources: list[bool] = field(default_factory=list)
    """For each row, True if its image and its source are the same file."""

    def add(
        self,
        row_number: int,
        row: ImageRow,
        digest: str | None,
        pixels: Sequence[Any] | RowError,
        sources: str | None = None,
        equals_source: bool = False,
    ) -> None:
        """Add a row of the table, with the preprocessed images in `pixels`, or with an error in their place."""
        error, of_row = (pixels, ()) if isinstance(pixels, RowError) else (None, pixels)
        self.rows.append(row)
        self.digests.append(digest)
        self.errors.append(error)
        self.pixels.extend(of_row)
        self.row_numbers.append(row_number)
        self.counts.append(len(of_row))
        self.sources.append(sources)
        self.equal_sources.append(equals_source)


Value = TypeVar("Value")


def _raise_if_error(found: Value | RowError) -> Value:
    if isinstance(found, RowError):
        raise RowFailure(found)
    return found


def decode_row_image(row: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri) -> Image.Image | RowError:
    """Return the image that people see for a row, as RGB. Several images, a video or an animation become a grid.

    The image comes from `image` (bytes, or the {bytes, path} struct of HF datasets) or else from `uri`.

    As in the papers' released code, neither transparency nor EXIF orientation is applied.
    """
    try:
        encoded = _raise_if_error(read_images(row, limits.max_images, fetch))
        return _join_images(_decode_images(encoded, limits, DEFAULT_CLIPS), limits)
    except RowFailure as failure:
        return failure.error


def prepare_images(
    images: pa.Table,
    generator: str,
    *,
    preprocess: Preprocess,
    limits: ImageLimits,
    fetch: FetchUri,
    clips: Clips = DEFAULT_CLIPS,
    preprocess_video: PreprocessVideo | None = None,
    preprocess_edit: PreprocessEdit | None = None,
    masked: bool = False,
    is_known: IsKnown = lambda number, row, digest, sources: False,
    decoders: int = 1,
) -> PreparedImages:
    """Return a shard's images, decoded and preprocessed; a row that fails gets an error.

    `preprocess_video` is called for rows with several images that are shown as a video; without it, each image is shown
    separately. `preprocess_edit` replaces both `preprocess` and `preprocess_video`: it is called with each image, the
    row's source and, if `masked`, the row's mask. Rows for which `is_known` returns True are left out. Rows with the
    same images share the same objects in `pixels`, so that models encode them once.

    Up to `decoders` images are decoded at once, each in a thread that also calls the functions above. Pillow and numpy
    release the GIL while they compute.
    """
    records, decoding = list_image_records(images), BoundedSemaphore(decoders)
    pixels_of: dict[tuple[str, str | None], Sequence[Any]] = {}
    preprocess_images = _make_preprocessing(preprocess, preprocess_video, preprocess_edit, limits, clips)

    def prepare(number: int, record: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return the arguments of PreparedImages.add that follow `row_number`; None if the row's result is known."""
        row = read_image_row(record, generator)
        digest = sources_digest = None
        equals_source = False
        try:
            if STOP_REQUESTED.is_set():
                raise RowFailure(STOPPED_ERROR)
            encoded = _raise_if_error(read_row_images(row, record, limits.max_images, fetch))
            digest = digest_images(encoded)
            edited = _read_encoded_edit(record, limits, fetch, has_sources=preprocess_edit is not None, masked=masked)
            equals_source = bool(edited.sources) and digest_images(edited.sources) == digest
            sources_digest = edited.compute_digest()
            if is_known(number, row, digest, sources_digest):
                return None
            with decoding:
                pixels = pixels_of.get((digest, sources_digest))
                if pixels is None:  # setdefault, because another thread may have preprocessed the same image meanwhile
                    pixels = pixels_of.setdefault((digest, sources_digest), preprocess_images(encoded, edited))
            return row, digest, pixels, sources_digest, equals_source
        except RowFailure as failure:
            return row, digest, failure.error, sources_digest, equals_source

    has_addresses = any(not is_embedded(record) or any(map(record.get, ADDRESS_COLUMNS[1:])) for record in records)
    threads = min(decoders + (N_FETCH_THREADS if has_addresses else 0), len(records))
    prepared = PreparedImages()
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        in_order = (pool.map if threads > 1 else map)(prepare, range(len(records)), records)
        for number, outcome in enumerate(in_order):
            if outcome is not None:
                prepared.add(number, *outcome)
    return prepared


def _make_preprocessing(
    preprocess: Preprocess,
    preprocess_video: PreprocessVideo | None,
    preprocess_edit: PreprocessEdit | None,
    limits: ImageLimits,
    clips: Clips,
) -> "Callable[[Sequence[bytes], EncodedEdit], list[Any]]":
    """Return a function that decodes and preprocesses a row's images, given the images that they were edited from."""

    def preprocess_images(encoded: Sequence[bytes], edited: EncodedEdit) -> list[Any]:
        if preprocess_edit is None:
            return _preprocess_row(encoded, preprocess, preprocess_video, limits, clips)
        edit = _decode_edit(edited, limits)
        return _preprocess_row(encoded, lambda image: preprocess_edit(image, edit), None, limits, clips)

    return preprocess_images


def _preprocess_row(
    encoded: Sequence[bytes],
    preprocess: Preprocess,
    preprocess_video: PreprocessVideo | None,
    limits: ImageLimits,
    clips: Clips,
) -> list[Any]:
    images = _decode_images(encoded, limits, clips)
    if clips.shown == "video" and preprocess_video is not None:
        frames = _collect_images(images, limits, "video")
        if len(frames) > 1:
            seconds = fmean(frame.info.get(FRAME_SECONDS_KEY, SECONDS_PER_LISTED_FRAME) for frame in frames)
            return [_preprocess_image(frames[0], lambda first: preprocess_video(frames, seconds))]
        images = iter(frames)  # a single image is shown as an image
    if clips.shown == "grid":
        images = iter([_join_images(images, limits)])
    return [_preprocess_image(image, preprocess) for image in images]


class EncodedEdit(NamedTuple):
    """The encoded images that an edited image was made from."""

    sources: Sequence[bytes]
    original: bytes | None
    mask: bytes | None

    def compute_digest(self) -> str | None:
        """Return the digest of all these images; None if there are none."""
        digest = digest_images(self.sources) if self.sources else None
        for other in (self.original, self.mask):
            if other is not None:
                digest = digest_inputs(digest or "", digest_images([other]))
        return digest


def _read_encoded_edit(
    record: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri, *, has_sources: bool, masked: bool
) -> EncodedEdit:
    sources = _raise_if_error(read_sources(record, limits.max_images, fetch)) if has_sources else []
    mask = _raise_if_error(read_mask(record, limits.max_images, fetch)) if masked else None
    original = _raise_if_error(read_original(record, limits.max_images, fetch)) if has_sources else None
    return EncodedEdit(sources, original, mask)


def _decode_edit(edited: EncodedEdit, limits: ImageLimits) -> Edit:
    """Return the images of an edit, decoded; raise RowFailure if one fails or there are several sources."""
    try:
        decoded = _collect_images(_decode_images(edited.sources, limits, DEFAULT_CLIPS), limits, "source")
        if len(decoded) > 1:
            found = f"{len(decoded)} images in the row, but metrics use only one"
            raise RowFailure(RowError("too_many_images", f"{found}; keep only the source image"))
    except RowFailure as failure:
        raise RowFailure(name_edit_error(failure.error, "source")) from failure
    decoded_mask = None if edited.mask is None else decode_bytes(edited.mask, limits)
    if isinstance(decoded_mask, RowError):
        raise RowFailure(name_edit_error(decoded_mask, "mask"))
    decoded_original = None if edited.original is None else decode_bytes(edited.original, limits)
    if isinstance(decoded_original, RowError):
        raise RowFailure(name_edit_error(decoded_original, "original"))
    return Edit(decoded[0], decoded_mask, decoded_original)


def _decode_images(encoded: Sequence[bytes], limits: ImageLimits, clips: Clips) -> Iterator[Image.Image]:
    """Yield a row's images and the frames of its videos one at a time, so that only one is in memory."""
    for index in clips.select_listed_frames(len(encoded)):
        for image in decode_each(encoded[index], limits, clips):
            if isinstance(image, RowError):
                raise RowFailure(add_image_number(image, index + 1, len(encoded)))
            yield image


def _join_images(images: Iterator[Image.Image], limits: ImageLimits) -> Image.Image:
    """Return all images of a row as one grid; raise RowFailure if it has more pixels than one image may have."""
    frames = _collect_images(images, limits, "grid")
    return frames[0] if len(frames) == 1 else make_grid(frames)


def _collect_images(images: Iterator[Image.Image], limits: ImageLimits, what: str) -> list[Image.Image]:
    """Return a row's images as a list; raise RowFailure if together they have more pixels than one image may have.

    `what` is the word for the list in the message: grid or video.
    """
    frames: list[Image.Image] = []
    for image in images:
        frames.append(image)
        first = frames[0]
        if len(frames) * first.width * first.height > limits.max_pixels:
            found = f"a {what} of {len(frames)} or more images of {first.width}x{first.height} pixels"
            raise RowFailure(make_too_large_error(found, f"max_pixels={limits.max_pixels}"))
    return frames


def _preprocess_image(image: Image.Image, preprocess: Preprocess) -> Any:
    try:
        return preprocess(image)
    except RowFailure:
        raise
    except Exception as error:
        message = f"a {image.width}x{image.height} image cannot be resized: {error or type(error).__name__}; replace it"
        of_the_image = isinstance(error, (ValueError, OSError, ArithmeticError))
        raise RowFailure(RowError("corrupt_image", message, retryable=not of_the_image)) from error

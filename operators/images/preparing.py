"""A shard's images, decoded and preprocessed once for every question on them, and the picture that people are shown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean
from threading import BoundedSemaphore
from typing import Any, NamedTuple

import pyarrow as pa
from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.rows import basis_of
from plumbline.operators.base.stopping import STOP, STOPPED
from plumbline.operators.images.decoding import ImageLimits, decode_bytes, decode_each, too_large
from plumbline.operators.images.rows import (
    ADDRESSES,
    FetchUri,
    ImageRow,
    digest_of,
    each_encoded,
    identify,
    image_records,
    is_embedded,
    mask_bytes,
    of_edit,
    of_image,
    row_bytes,
    source_bytes,
)
from plumbline.operators.images.videos import FRAME_SECONDS, LISTED_SECONDS, STANDARD, Clips, grid

FETCHES = 8
"""Threads that read addresses while others decode: a server takes about as long to answer as a decoder."""


def decode_picture(row: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri) -> Image.Image | RowError:
    """Return the picture of a row that a person is shown, as RGB: its image, or a grid.

    The image comes from `image` (bytes, or the {bytes, path} struct of HF datasets) or else from `uri`. Several images,
    a video or an animation become a grid.

    As in the papers' released code, neither transparency nor an EXIF orientation is applied.
    """
    encoded = each_encoded(row, limits.max_images, fetch)
    if isinstance(encoded, RowError):
        return encoded
    return next(_in_grid(_images(encoded, limits, STANDARD), limits))


Preprocess = Callable[[Image.Image], Any]
PreprocessVideo = Callable[[Sequence[Image.Image], float], Any]
"""Preprocesses a video's frames, given the seconds that each frame represents."""


class Edit(NamedTuple):
    """What a row has beside an edited image."""

    source: Image.Image
    """The image that it was edited from."""
    mask: Image.Image | None = None
    """Where the edit belongs, if that is looked at and the table has it."""


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
    """In the shard's order."""
    digests: list[str | None] = field(default_factory=list)
    """Beside each row, the SHA-256 of its encoded image, 16 hexadecimal digits; None where there is none."""
    errors: list[RowError | None] = field(default_factory=list)
    """Beside each row, why it has no pixels."""
    pixels: list[Any] = field(default_factory=list)
    """What the preprocessing made of every image of every row without error, in row order, on the CPU."""
    places: list[int] = field(default_factory=list)
    """Which rows of the table they are: all but those that were known already."""
    counts: list[int] = field(default_factory=list)
    """Beside each row, how many of the `pixels` are of it: 0 where it has an error, and 1 but for rows of several and
    videos."""
    sources: list[str | None] = field(default_factory=list)
    """Beside each row, the digest of its sources and mask; None where there are none, or none are looked at."""

    def add(
        self,
        place: int,
        row: ImageRow,
        digest: str | None,
        pixels: Sequence[Any] | RowError,
        sources: str | None = None,
    ) -> None:
        """Adds a row with the pixels of its images, or with the RowError in their place."""
        error = pixels if isinstance(pixels, RowError) else None
        of_row = [] if isinstance(pixels, RowError) else pixels
        self.rows.append(row)
        self.digests.append(digest)
        self.errors.append(error)
        self.pixels.extend(of_row)
        self.places.append(place)
        self.counts.append(len(of_row))
        self.sources.append(sources)


class _Prepared(NamedTuple):
    """What became of one row."""

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
    """Decode and preprocess a shard; a row that fails keeps its error, and a row that `is_known` is left out.

    `preprocess_video` is called for rows of several images that are shown as a video; without it these are each shown
    by itself. `preprocess_edit`, if given, is called in place of both, with each image and its row's source, and if
    `masked` its mask. `decoders` images are decoded at once, each in a thread, which Pillow's and numpy's loops leave
    to one another; what is to be called is called from these.
    """
    records, decoding = image_records(images), BoundedSemaphore(decoders)

    def prepare(place: int, record: Mapping[str, Any]) -> _Prepared | None:
        row = identify(record, generator)
        if STOP.is_set():
            return _Prepared(row, None, STOPPED)
        encoded = row_bytes(row, record, limits.max_images, fetch)
        if isinstance(encoded, RowError):
            return _Prepared(row, None, encoded)
        sources = [] if preprocess_edit is None else source_bytes(record, limits.max_images, fetch)
        mask = mask_bytes(record, limits.max_images, fetch) if masked else None
        digest = digest_of(encoded)
        if isinstance(sources, RowError):
            return _Prepared(row, digest, sources)
        if isinstance(mask, RowError):
            return _Prepared(row, digest, mask)
        sources_digest = _digest_beside(sources, mask)
        if is_known(place, row, digest, sources_digest):
            return None
        with decoding:
            if preprocess_edit is None:
                pixels = _row_pixels(encoded, preprocess, preprocess_video, limits, clips)
            else:
                pixels = _edit_pixels(encoded, sources, mask, preprocess_edit, limits, clips)
        return _Prepared(row, digest, pixels, sources_digest)

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


def _row_pixels(
    encoded: Sequence[bytes],
    preprocess: Preprocess,
    preprocess_video: PreprocessVideo | None,
    limits: ImageLimits,
    clips: Clips,
) -> list[Any] | RowError:
    """What the preprocessing makes of each of a row's images, or of all in one, or why it makes nothing of one."""
    images = _images(encoded, limits, clips)
    if clips.shown == "video" and preprocess_video is not None:
        return _video_pixels(images, preprocess, preprocess_video, limits)
    if clips.shown == "grid":
        images = _in_grid(images, limits)
    pixels: list[Any] = []
    for image in images:
        made = image if isinstance(image, RowError) else _preprocessed(image, preprocess)
        if isinstance(made, RowError):
            return made
        pixels.append(made)
    return pixels


def _digest_beside(sources: Sequence[bytes], mask: bytes | None) -> str | None:
    """The digest of a row's sources and mask."""
    digest = digest_of(sources) if sources else None
    return digest if mask is None else basis_of(digest or "", digest_of([mask]))


def _edit_pixels(
    encoded: Sequence[bytes],
    sources: Sequence[bytes],
    mask: bytes | None,
    preprocess: PreprocessEdit,
    limits: ImageLimits,
    clips: Clips,
) -> list[Any] | RowError:
    """What the preprocessing makes of each of a row's images with its source and its mask."""
    before = _all_within(_images(sources, limits, STANDARD), limits, "source")
    where = None if mask is None else decode_bytes(mask, limits)
    if isinstance(before, RowError):
        return of_edit(before, "source")
    if isinstance(where, RowError):
        return of_edit(where, "mask")
    if len(before) > 1:
        found = f"{len(before)} pictures in the row, where metrics look at one"
        return of_edit(RowError("too_many_images", f"{found}; keep the one that the image was edited from"), "source")
    edit = Edit(before[0], where)
    return _row_pixels(encoded, lambda image: preprocess(image, edit), None, limits, clips)


def _video_pixels(
    images: Iterator[Image.Image | RowError],
    preprocess: Preprocess,
    preprocess_video: PreprocessVideo,
    limits: ImageLimits,
) -> list[Any] | RowError:
    """What the preprocessing makes of all of a row's images in one; a single image is shown as an image."""
    frames = _all_within(images, limits, "video")
    if isinstance(frames, RowError):
        return frames
    seconds = fmean(frame.info.get(FRAME_SECONDS, LISTED_SECONDS) for frame in frames)
    alone = len(frames) == 1
    made = _preprocessed(frames[0], preprocess if alone else lambda first: preprocess_video(frames, seconds))
    return made if isinstance(made, RowError) else [made]


def _images(encoded: Sequence[bytes], limits: ImageLimits, clips: Clips) -> Iterator[Image.Image | RowError]:
    """A row's images and the frames of its videos, one after the other; none is kept."""
    for place in clips.select_listed(len(encoded)):
        for image in decode_each(encoded[place], limits, clips):
            yield of_image(image, place + 1, len(encoded)) if isinstance(image, RowError) else image


def _in_grid(images: Iterator[Image.Image | RowError], limits: ImageLimits) -> Iterator[Image.Image | RowError]:
    """All of a row's images in one, which is within the limits too."""
    frames = _all_within(images, limits, "grid")
    if isinstance(frames, RowError):
        yield frames
    else:
        yield frames[0] if len(frames) == 1 else grid(frames)


def _all_within(
    images: Iterator[Image.Image | RowError], limits: ImageLimits, what: str
) -> list[Image.Image] | RowError:
    """All of a row's images, which together have no more pixels than one may have, or why there are not all."""
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


def _preprocessed(image: Image.Image, preprocess: Preprocess) -> Any:
    """What the preprocessing makes of one image, or a RowError."""
    try:
        return preprocess(image)
    except Exception as error:
        message = f"a {image.width}x{image.height} image cannot be resized: {error or type(error).__name__}; replace it"
        of_the_image = isinstance(error, (ValueError, OSError, ArithmeticError))
        return RowError("corrupt_image", message, retryable=not of_the_image)

"""From encoded bytes to RGB images, each within the size limits or with its reason for not being one."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import fmean
from threading import BoundedSemaphore
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image, UnidentifiedImageError

from plumbline.operators import rows
from plumbline.operators.errors import ConfigError, RefusedUri, RowError, without_secrets
from plumbline.operators.image_completeness import (
    FORMATS,
    JPEG,
    STORED,
    CostlyImage,
    UncheckedImage,
    decode_jpeg,
    open_image,
    read_jpeg,
    require_pixels,
)
from plumbline.operators.videos import FRAME_SECONDS, LISTED_SECONDS, STANDARD, Clips, demuxer_of, grid, sample_frames

Image.MAX_IMAGE_PIXELS = None  # Pillow's own cap, of the whole process; ImageLimits is checked before any decoding

MOST_ELONGATED = 16
"""Longest over shortest side: models pad an image to its square, or resize its shortest side to hundreds of pixels."""
LIKENESSES = {b"PK\x03\x04": "a zip archive", b"%PDF": "a PDF document", b"<": "a web page or other markup"}

LONGEST_ADDRESS = 1000
"""Characters of one that a message shows; S3 allows as many."""

FETCHES = 8
"""Threads that read addresses while others decode: a server takes about as long to answer as a decoder."""

DECODING = 2
"""Raised when what is refused as broken, or the pixels of what is not, changes."""

FetchUri = Callable[[str], bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLimits:
    """What an image may cost before it is refused."""

    max_pixels: int = 64_000_000
    """Largest width x height that is decoded."""
    max_bytes: int = 64_000_000
    """Largest encoded size that is decoded."""
    max_scans: int = 64
    """Most scans of a JPEG that is decoded; a progressive one has about ten, and each costs as much as all pixels."""
    max_seconds: float = 10.0
    """Processor time after which decoding an image, or a video, is given up."""
    max_images: int = 64
    """Most images of one row, such as the frames of a film."""

    def semantic(self) -> dict[str, int]:
        """What refuses an image for good; one that took too long is tried again by the next run."""
        return {
            "max_pixels": self.max_pixels,
            "max_bytes": self.max_bytes,
            "max_scans": self.max_scans,
            "max_images": self.max_images,
            "decoding": DECODING,
        }

    def admit(self, then: Mapping[str, int]) -> bool:
        """Whether these limits let in all that those that are given, as `semantic` gives them, let in."""
        now = self.semantic()
        same = then.keys() == now.keys() and then["decoding"] == DECODING
        return same and all(then[name] <= now[name] for name in now)

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_bytes", "max_scans", "max_images"):
            if getattr(self, name) < 1:
                raise ConfigError(f"limits.{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 < self.max_seconds < math.inf:
            raise ConfigError(f"limits.max_seconds: expected a number above 0, got {self.max_seconds:g}")


def decode_picture(row: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri) -> Image.Image | RowError:
    """What a person is shown of the row, as RGB: its image, from `image` (bytes, or the {bytes, path} struct of HF
    datasets) or else from `uri`; of several, or of a video, a grid.

    As in the papers' released code, of an animation it is the first frame, and neither transparency nor an EXIF
    orientation is applied.
    """
    encoded = _each_encoded(row, limits.max_images, fetch)
    if isinstance(encoded, RowError):
        return encoded
    return next(_in_grid(_images(encoded, limits, STANDARD), limits))


def _each_image(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A row for each image of a row whose columns hold lists; the row itself where they hold one image or none."""
    images, uris = _listed(row.get("image")), _listed(row.get("uri"))
    if not images and (_embedded(row) or not uris):
        return [row]
    return [{"image": image, "uri": uri} for image, uri in zip_longest(images, uris)]


def _listed(value: Any) -> list[Any]:
    """The images or addresses of a column that holds several."""
    images = isinstance(value, list) and all(part is None or isinstance(part, (bytes, str, Mapping)) for part in value)
    return value if images else []


def decode_each(encoded: bytes, limits: ImageLimits, clips: Clips) -> Iterator[Image.Image | RowError]:
    """An encoded image as RGB, or of a video the frames that are looked at; the last may be why there is none."""
    demuxer = demuxer_of(encoded)
    if demuxer is None or len(encoded) > limits.max_bytes:
        yield decode_bytes(encoded, limits)
    else:
        yield from _frames(encoded, demuxer, limits, clips.frames)


def decode_bytes(encoded: bytes, limits: ImageLimits) -> Image.Image | RowError:
    """An encoded image as RGB, or why it is none."""
    if len(encoded) > limits.max_bytes:
        return _too_large(f"a file of {len(encoded)} bytes", f"max_bytes={limits.max_bytes}")
    return _decode(encoded, limits)


class _Refused(Exception):
    """A frame that the limits refuse."""

    def __init__(self, error: RowError) -> None:
        self.error = error


def _frames(encoded: bytes, demuxer: str, limits: ImageLimits, count: int) -> Iterator[Image.Image | RowError]:
    """Whatever FFmpeg raises is about these bytes, and so costs this row alone."""

    def check(width: int, height: int) -> None:
        if refusal := _oversize(width, height, limits):
            raise _Refused(refusal)

    try:
        yield from sample_frames(encoded, demuxer, count, seconds=limits.max_seconds, check=check)
    except _Refused as refused:
        yield refused.error
    except CostlyImage:
        yield _too_slow(limits)
    except Exception as error:
        message = f"the video does not decode: {error or type(error).__name__}; generate it again"
        yield RowError("corrupt_video", message, retryable=isinstance(error, MemoryError))


def _encoded(row: Mapping[str, Any], fetch: FetchUri) -> bytes | RowError:
    """The bytes of the row's image, embedded or fetched; never empty."""
    embedded, uri = _embedded(row), row.get("uri")
    if embedded is not None and not isinstance(embedded, bytes):
        found = "text" if isinstance(embedded, str) else f"a value of type {type(embedded).__name__}"
        return RowError(
            "corrupt_image",
            f"expected encoded bytes in the `image` column, found {found}; put bytes there, or addresses in `uri`",
        )
    if not embedded and uri:
        return _fetched(uri, fetch)
    return embedded or _absent(row)


def _embedded(row: Mapping[str, Any]) -> Any:
    """What the `image` column holds, bare or in a struct; None where it is empty."""
    image = row.get("image")
    embedded = image.get("bytes") if isinstance(image, Mapping) else image
    return None if embedded == [] else embedded


def is_embedded(row: Mapping[str, Any]) -> bool:
    """Whether the row holds its image, so that nothing need be fetched."""
    return bool(_embedded(row))


def _absent(row: Mapping[str, Any]) -> RowError:
    """What to do about a row without bytes, whose struct may still have a path."""
    image = row.get("image")
    if isinstance(image, Mapping) and image.get("path"):
        found = f"only the path {image['path']!r} in `image`"
        return RowError("image_not_embedded", f"{found}; embed the bytes, or put the address in `uri`")
    return RowError("missing_image", "the row has neither image bytes nor a uri; generate the image again")


def _fetched(uri: Any, fetch: FetchUri) -> bytes | RowError:
    """The bytes at an address, or why there are none; whatever a storage client raises costs this row alone."""
    if not isinstance(uri, str):
        return RowError("unreadable_uri", f"expected text in the `uri` column, found {uri!r}; write addresses as text")
    shown = without_secrets(uri[:LONGEST_ADDRESS])
    try:
        encoded = fetch(uri)
    except RefusedUri as error:
        remedy = "move the image there, or add its folder to benchmark.uri_roots"
        return RowError("uri_refused", f"{shown!r} is not read: {error}; {remedy}", retryable=True)
    except FileNotFoundError:
        return RowError("missing_image", f"nothing at {shown!r}; generate the image again", retryable=True)
    except Exception as error:
        found = without_secrets(str(error)) or type(error).__name__
        return RowError("unreadable_uri", f"cannot read {shown!r}: {found}; check the address", retryable=True)
    return encoded or RowError("missing_image", f"an empty file at {shown!r}; generate the image again", retryable=True)


def _decode(encoded: bytes, limits: ImageLimits) -> Image.Image | RowError:
    """Whatever Pillow raises is about these bytes, and so costs this row alone."""
    try:
        return _pixels(encoded, limits)
    except UnidentifiedImageError:
        message = f"expected an image ({', '.join(FORMATS)}), found {_likeness(encoded)}; generate it again"
        return RowError("corrupt_image", message)
    except UncheckedImage as error:
        message = f"found {error}, whose reader does not say what is missing; save the image as PNG"
        return RowError("corrupt_image", message)
    except CostlyImage:
        return _too_slow(limits)
    except Exception as error:
        message = f"the image does not decode: {error or type(error).__name__}; generate it again"
        return RowError("corrupt_image", message, retryable=isinstance(error, MemoryError))


def _pixels(encoded: bytes, limits: ImageLimits) -> Image.Image | RowError:
    """Checks what the header declares before a pixel is decoded, so that a decompression bomb costs nothing."""
    jpeg = read_jpeg(encoded) if encoded.startswith(JPEG) else None
    if jpeg is not None and len(jpeg.scans) > limits.max_scans:
        return _too_large(f"a JPEG of {len(jpeg.scans)} scans", f"max_scans={limits.max_scans}")
    image = open_image(jpeg.encoded if jpeg is not None else encoded, limits.max_seconds)
    refusal = _oversize(*image.size, limits)
    if refusal is not None:
        return refusal
    if jpeg is not None:
        return _rgb(decode_jpeg(image, jpeg))
    require_pixels(image, encoded)
    return _rgb(image)


def _likeness(encoded: bytes) -> str:
    """What bytes that are no image look like; of what they say, nothing."""
    kinds = [kind for signature, kind in LIKENESSES.items() if encoded.lstrip().startswith(signature)]
    return kinds[0] if kinds else "something else"


def _oversize(width: int, height: int, limits: ImageLimits) -> RowError | None:
    """Refuses what is large as it is, or would be in the square that models pad it to."""
    if width * height > limits.max_pixels:
        return _too_large(f"{width}x{height} pixels", f"max_pixels={limits.max_pixels}")
    if max(width, height) > MOST_ELONGATED * min(width, height):
        return RowError("image_too_large", f"{width}x{height} is over {MOST_ELONGATED} times as long as wide; crop it")
    return None


def _rgb(image: Image.Image) -> Image.Image | RowError:
    """The first frame as RGB; a 16-bit grey keeps its brightness, which Pillow's own conversion would clip.

    What cannot be resized alike before and after the conversion is kept beside it, under STORED.
    """
    if image.mode in ("I", "F"):
        return RowError(
            "corrupt_image", f"pixels of mode {image.mode} have no fixed range; save the image as 8-bit RGB"
        )
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8))
    if image.mode == "RGB":
        return image
    rgb = image.convert("RGB")
    if image.mode != "L":
        rgb.info[STORED] = image
    return rgb


def _too_slow(limits: ImageLimits) -> RowError:
    found = f"decoding takes over limits.max_seconds={limits.max_seconds:g} of a processor"
    return RowError("image_too_slow", f"{found}; save the image anew, or raise the limit", retryable=True)


def _too_large(found: str, limit: str) -> RowError:
    return RowError("image_too_large", f"{found} is over limits.{limit}; check the image, or raise the limit")


class ImageRow(NamedTuple):
    """Which image a row is about, whatever became of it."""

    image_id: str | None
    prompt_id: str | None
    generator: str

    def row(self, **columns: Any) -> dict[str, Any]:
        """A row of an image table with these further columns."""
        return {**self._asdict(), **columns}


Preprocess = Callable[[Image.Image], Any]
PreprocessVideo = Callable[[Sequence[Image.Image], float], Any]
"""Of a video's frames, each standing for so many seconds."""
IsKnown = Callable[[int, ImageRow, str], bool]
"""Whether the result for a row of a table is known already, by its place, its ids and the digest of its image."""


def nothing_known(place: int, row: ImageRow, digest: str) -> bool:
    """No result is known: every row is to be computed."""
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

    def add(self, place: int, row: ImageRow, digest: str | None, pixels: Sequence[Any] | RowError) -> None:
        """Adds a row with the pixels of its images, or with the RowError in their place."""
        error = pixels if isinstance(pixels, RowError) else None
        of_row = [] if isinstance(pixels, RowError) else pixels
        self.rows.append(row)
        self.digests.append(digest)
        self.errors.append(error)
        self.pixels.extend(of_row)
        self.places.append(place)
        self.counts.append(len(of_row))


def prepare_images(
    images: pa.Table,
    generator: str,
    *,
    preprocess: Preprocess,
    limits: ImageLimits,
    fetch: FetchUri,
    clips: Clips = STANDARD,
    preprocess_video: PreprocessVideo | None = None,
    is_known: IsKnown = nothing_known,
    decoders: int = 1,
) -> PreparedImages:
    """Decodes and preprocesses a shard; a row that cannot be is kept with its error, one that `is_known` left out.

    `preprocess_video` is called for rows of several images that are shown as a video; without it these are each shown
    by itself. `decoders` images are decoded at once, each in a thread, which Pillow's and numpy's loops leave to one
    another; what is to be called is called from these.
    """
    records, decoding = image_records(images), BoundedSemaphore(decoders)

    def prepare(place: int, record: Mapping[str, Any]) -> tuple[ImageRow, str | None, list[Any] | RowError] | None:
        row = identify(record, generator)
        encoded = row_bytes(row, record, limits.max_images, fetch)
        digest = None if isinstance(encoded, RowError) else digest_of(encoded)
        if digest is not None and is_known(place, row, digest):
            return None
        if isinstance(encoded, RowError):
            return row, digest, encoded
        with decoding:
            return row, digest, _row_pixels(encoded, preprocess, preprocess_video, limits, clips)

    fetches = FETCHES if any(not _embedded(record) for record in records) else 0
    threads = min(decoders + fetches, len(records))
    prepared = PreparedImages()
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        in_order = (pool.map if threads > 1 else map)(prepare, range(len(records)), records)
        for place, outcome in enumerate(in_order):
            if outcome is not None:
                prepared.add(place, *outcome)
    return prepared


def row_bytes(row: ImageRow, record: Mapping[str, Any], most: int, fetch: FetchUri) -> list[bytes] | RowError:
    """The bytes of each of a row's images, or why one has none; nothing is read of a row that is refused anyhow."""
    if row.prompt_id is None:
        return RowError("missing_prompt_id", "the row names no prompt; fill its prompt_id")
    return _each_encoded(record, most, fetch)


def _each_encoded(record: Mapping[str, Any], most: int, fetch: FetchUri) -> list[bytes] | RowError:
    each = _each_image(record)
    if len(each) > most:
        found = f"{len(each)} images in the row, where limits.max_images={most}"
        return RowError("too_many_images", f"{found}; keep fewer")
    encoded: list[bytes] = []
    for number, image in enumerate(each, 1):
        content = _encoded(image, fetch)
        if isinstance(content, RowError):
            return _of_image(content, number, len(each))
        encoded.append(content)
    return encoded


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
    for number, content in enumerate(encoded, 1):
        for image in decode_each(content, limits, clips):
            yield _of_image(image, number, len(encoded)) if isinstance(image, RowError) else image


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
            return _too_large(found, f"max_pixels={limits.max_pixels}")
    return frames


def _of_image(error: RowError, number: int, count: int) -> RowError:
    """The error of one image of a row, which it names where there are several."""
    return error if count == 1 else error._replace(message=f"image {number} of {count}: {error.message}")


def digest_of(encoded: Sequence[bytes]) -> str:
    """The start of the SHA-256 of a row's encoded image, or of those of all its images."""
    digests = [hashlib.sha256(content) for content in encoded]
    whole = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digest.digest() for digest in digests))
    return whole.hexdigest()[:16]


def _preprocessed(image: Image.Image, preprocess: Preprocess) -> Any:
    """What the preprocessing makes of one image, or a RowError."""
    try:
        return preprocess(image)
    except Exception as error:
        message = f"a {image.width}x{image.height} image cannot be resized: {error or type(error).__name__}; replace it"
        of_the_image = isinstance(error, (ValueError, OSError, ArithmeticError))
        return RowError("corrupt_image", message, retryable=not of_the_image)


def image_records(images: pa.Table) -> list[dict[str, Any]]:
    """The table's rows; text that is not UTF-8 is read with replacement characters, not at the cost of the shard."""
    try:
        return list(images.to_pylist())
    except UnicodeDecodeError:
        columns = {name: [_value(scalar) for scalar in images.column(name)] for name in images.column_names}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _value(scalar: pa.Scalar) -> Any:
    if isinstance(scalar, pa.ListScalar) and scalar.is_valid:
        return [_value(part) for part in scalar]
    if isinstance(scalar, pa.StructScalar) and scalar.is_valid:
        return {name: _value(scalar[name]) for name in scalar}
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes().decode("utf-8", "replace")


def identify(record: Mapping[str, Any], generator: str) -> ImageRow:
    """The ids of a source row; a row without `image_id` gets a hash of its generator, prompt and content."""
    prompt_id, image_id = id_text(record.get("prompt_id")), id_text(record.get("image_id"))
    if image_id is None:
        image_id = _content_id(record, prompt_id, generator)
    return ImageRow(image_id, prompt_id, generator)


def id_text(value: Any) -> str | None:
    """An id as text; NaN, as pandas writes a missing number, is none."""
    return None if rows.is_missing(value) else str(value)


def _content_id(record: Mapping[str, Any], prompt_id: str | None, generator: str) -> str:
    contents = [_content(image) for image in _each_image(record)]
    content = contents[0] if len(contents) == 1 else b"".join(hashlib.sha256(one).digest() for one in contents)
    return hashlib.sha256(f"{generator}\0{prompt_id}\0".encode() + content).hexdigest()[:16]


def _content(record: Mapping[str, Any]) -> bytes:
    """An image's bytes, or where they are not in the row its address."""
    embedded = _embedded(record)
    address = record.get("uri") or (record["image"].get("path") if isinstance(record.get("image"), Mapping) else None)
    return embedded if isinstance(embedded, bytes) and embedded else str(embedded or address).encode()

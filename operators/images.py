"""From encoded bytes to RGB images, each within the size limits or with its reason for not being one."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image, UnidentifiedImageError

from operators import rows
from operators.containers import FORMATS, JPEG, CostlyImage, open_image, read_jpeg, require_pixels, require_scans
from operators.errors import ConfigError, RefusedUri, RowError, without_secrets

Image.MAX_IMAGE_PIXELS = None  # Pillow's own cap, of the whole process; ImageLimits is checked before any decoding

MOST_ELONGATED = 16
"""Longest over shortest side: models pad an image to its square, or resize its shortest side to hundreds of pixels."""
LIKENESSES = {b"PK\x03\x04": "a zip archive", b"%PDF": "a PDF document", b"<": "a web page or other markup"}

LONGEST_ADDRESS = 1000
"""Characters of one that a message shows; S3 allows as many."""

STORED = "stored"
"""Where `info` of an RGB image keeps the image as its file has it, of a palette or with transparency."""

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
    """Processor time after which decoding an image is given up."""

    def semantic(self) -> dict[str, int]:
        """What refuses an image for good; one that took too long is tried again by the next run."""
        return {"max_pixels": self.max_pixels, "max_bytes": self.max_bytes, "max_scans": self.max_scans}

    def __post_init__(self) -> None:
        for name in self.semantic():
            if getattr(self, name) < 1:
                raise ConfigError(f"limits.{name}: expected at least 1, got {getattr(self, name)}")
        if self.max_seconds <= 0:
            raise ConfigError(f"limits.max_seconds: expected more than 0, got {self.max_seconds:g}")


def decode_image(row: Mapping[str, Any], limits: ImageLimits, fetch: FetchUri) -> Image.Image | RowError:
    """The row's image as RGB: from `image` (bytes, or the {bytes, path} struct of HF datasets), else from `uri`.

    As in the papers' released code, of an animation it is the first frame, and neither transparency nor an EXIF
    orientation is applied.
    """
    encoded = _encoded(row, fetch)
    return encoded if isinstance(encoded, RowError) else decode_bytes(encoded, limits)


def decode_bytes(encoded: bytes, limits: ImageLimits) -> Image.Image | RowError:
    """An encoded image as RGB, or why it is none."""
    if len(encoded) > limits.max_bytes:
        return _too_large(f"a file of {len(encoded)} bytes", f"max_bytes={limits.max_bytes}")
    return _decode(encoded, limits)


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
    """What the `image` column holds, bare or in a struct."""
    image = row.get("image")
    return image.get("bytes") if isinstance(image, Mapping) else image


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
    except CostlyImage:
        found = f"decoding takes over limits.max_seconds={limits.max_seconds:g} of a processor"
        return RowError("image_too_slow", f"{found}; save the image anew, or raise the limit", retryable=True)
    except Exception as error:
        message = f"the image does not decode: {error or type(error).__name__}; generate it again"
        return RowError("corrupt_image", message, retryable=isinstance(error, MemoryError))


def _pixels(encoded: bytes, limits: ImageLimits) -> Image.Image | RowError:
    """Checks what the header declares before a pixel is decoded, so that a decompression bomb costs nothing."""
    jpeg = read_jpeg(encoded) if encoded.startswith(JPEG) else None
    if jpeg is not None and jpeg.scans > limits.max_scans:
        return _too_large(f"a JPEG of {jpeg.scans} scans", f"max_scans={limits.max_scans}")
    image = open_image(jpeg.encoded if jpeg is not None else encoded, limits.max_seconds)
    refusal = _oversize(*image.size, limits)
    if refusal is not None:
        return refusal
    if jpeg is not None:
        require_scans(image, jpeg, limits.max_seconds)
    else:
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
    rgb = image.convert("RGB")
    if image.mode not in ("RGB", "L"):
        rgb.info[STORED] = image
    return rgb


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
Held = Callable[[int, ImageRow, str], bool]
"""Whether the result for a row of a table is known already, by its place, its ids and the digest of its image."""


def nothing_held(place: int, row: ImageRow, digest: str) -> bool:
    """No result is known: every row is to be computed."""
    return False


class PreparedImages(NamedTuple):
    """One shard's images, decoded and preprocessed once for every question on them."""

    rows: list[ImageRow]
    """In the shard's order."""
    digests: list[str | None]
    """Beside each row, the SHA-256 of its encoded image, 16 hexadecimal digits; None where there is none."""
    errors: list[RowError | None]
    """Beside each row, why it has no pixels."""
    pixels: list[Any]
    """What the preprocessing made of every image without error, in row order, on the CPU."""
    places: list[int]
    """Which rows of the table they are: all but those that were held already."""

    def add(self, place: int, row: ImageRow, digest: str | None, pixels: Any) -> None:
        """Adds a row with its pixels, or with the RowError in their place."""
        failed = isinstance(pixels, RowError)
        self.rows.append(row)
        self.digests.append(digest)
        self.errors.append(pixels if failed else None)
        self.pixels.extend([] if failed else [pixels])
        self.places.append(place)


def prepare_images(
    images: pa.Table,
    generator: str,
    *,
    preprocess: Preprocess,
    limits: ImageLimits,
    fetch: FetchUri,
    held: Held = nothing_held,
) -> PreparedImages:
    """Decodes and preprocesses a shard; a row that cannot be is kept with its error, one that is `held` left out."""
    prepared = PreparedImages([], [], [], [], [])
    for place, record in enumerate(image_records(images)):
        row, encoded = identify(record, generator), _encoded(record, fetch)
        digest = None if isinstance(encoded, RowError) else hashlib.sha256(encoded).hexdigest()[:16]
        if digest is None or not held(place, row, digest):
            pixels = _prepare(row, encoded, preprocess, limits)
            prepared.add(place, row, digest, pixels)
    return prepared


def _prepare(row: ImageRow, encoded: bytes | RowError, preprocess: Preprocess, limits: ImageLimits) -> Any:
    """What the preprocessing makes of one image, or a RowError."""
    if row.prompt_id is None:
        return RowError("missing_prompt_id", "the row names no prompt; fill its prompt_id")
    image = encoded if isinstance(encoded, RowError) else decode_bytes(encoded, limits)
    if isinstance(image, RowError):
        return image
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
    embedded = _embedded(record)
    address = record.get("uri") or (record["image"].get("path") if isinstance(record.get("image"), Mapping) else None)
    content = embedded if isinstance(embedded, bytes) and embedded else str(embedded or address).encode()
    return hashlib.sha256(f"{generator}\0{prompt_id}\0".encode() + content).hexdigest()[:16]

"""Decodes bytes to RGB images within the limits, or returns the reason why this is not possible."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from plumbline.operators.base.bounds import BoundsChecked, Positive, Seconds
from plumbline.operators.base.errors import MissingExtraError, RowError
from plumbline.operators.images.animations import find_animation, sample_animation
from plumbline.operators.images.image_formats import (
    DECODED_FORMATS,
    JPEG_SIGNATURE,
    STORED_IMAGE_KEY,
    CostlyImageError,
    UncheckedImageError,
    decode_jpeg,
    decode_png,
    load_whole_image,
    open_image,
    read_jpeg,
)
from plumbline.operators.images.videos import Clips, find_demuxer, sample_video

Image.MAX_IMAGE_PIXELS = None  # Pillow's limit is for the whole process; ImageLimits is checked instead

MAX_ASPECT_RATIO = 16
"""Maximum ratio of longest to shortest side. Models pad an image to a square, or resize its shortest side to hundreds
of pixels.
"""
FILE_KINDS_BY_SIGNATURE = {
    b"PK\x03\x04": "a zip archive",
    b"%PDF": "a PDF document",
    b"<": "a web page or other markup",
}
CLOSED_IMAGE_MARK = b"\0closed"
"""Placeholder for the bytes of a PIL.Image that was closed before its pixels were read."""
VIDEO_FORMATS = "MP4, MOV, WebM, Matroska, AVI"
UNREAD_VIDEO_SIGNATURES = {
    b"FLV\x01": "a Flash video",
    b"\x00\x00\x01\xba": "an MPEG programme stream",
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "a Windows Media video",
}
TS_SYNC, TS_PACKET = 0x47, 188
"""First byte of each packet of an MPEG transport stream, and the length of a packet in bytes."""
SUBFILE_TAG, REDUCED_OR_MASK = 254, 0b101
"""The TIFF tag NewSubfileType, and its bits for a reduced-size copy of another page and for a mask."""
MAX_PAGES = 1000
DECODING_VERSION = 1
"""Version of the decoding. Increase it when different images are refused as broken, or when decoded pixels change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageLimits(BoundsChecked):
    """Limits on size, bytes, scans, time and number of images; an image that exceeds one becomes an error row."""

    section: ClassVar[str] = "limits."
    max_pixels: Positive = 64_000_000
    """Maximum width x height of an image."""
    max_bytes: Positive = 64_000_000
    """Maximum size of an encoded image or video in bytes."""
    max_scans: Positive = 64
    """Maximum number of scans of a JPEG. A progressive JPEG has about ten, and each costs as much as decoding all
    pixels.
    """
    max_seconds: Seconds = 10.0
    """Processor time in seconds after which the decoding of an image or video is abandoned."""
    max_images: Positive = 64
    """Maximum number of images in one row, such as the frames of a film."""

    def list_key_properties(self) -> dict[str, int]:
        """Return a mapping of the limits that rule out an image for good, and the version of the decoding code.

        The time limit is left out: images that took too long are retried in the next run.
        """
        names = ("max_pixels", "max_bytes", "max_scans", "max_images")
        return {**{name: getattr(self, name) for name in names}, "decoding": DECODING_VERSION}

    def accepts_all_of(self, earlier: Mapping[str, int]) -> bool:
        """Return True if these limits accept every image that the limits `earlier` accept.

        `earlier` is a result of `list_key_properties`.
        """
        now = self.list_key_properties()
        same = earlier.keys() == now.keys() and earlier["decoding"] == now["decoding"]
        return same and all(earlier[name] <= now[name] for name in now)


class RowFailure(Exception):
    """Exception for a row whose images cannot be read, decoded or preprocessed; `error` is reported for the row."""

    def __init__(self, error: RowError) -> None:
        self.error = error


def decode_each(encoded: bytes, limits: ImageLimits, clips: Clips) -> Iterator[Image.Image | RowError]:
    """Yield an encoded image as RGB, or the sampled frames of a video or animation.

    If decoding fails, the last item is a RowError. An exception in a decoder is blamed on these bytes, so only
    this row fails. If an image decoder is not installed, the whole shard fails and is tried again.
    """

    def check_size(width: int, height: int) -> None:
        if refusal := _refuse_oversize(width, height, limits):
            raise RowFailure(refusal)

    kind = "animation"
    try:
        too_long = len(encoded) > limits.max_bytes
        if not too_long and (animation := find_animation(encoded)) is not None:
            yield from sample_animation(encoded, animation, clips, seconds=limits.max_seconds, check_size=check_size)
            return
        kind = "video"
        if not too_long and (demuxer := find_demuxer(encoded)) is not None:
            yield from sample_video(encoded, demuxer, clips, seconds=limits.max_seconds, check_size=check_size)
            return
    except RowFailure as failure:
        yield failure.error
    except CostlyImageError:
        yield _make_slow_error(limits)
    except MissingExtraError as missing:
        yield RowError("missing_extra", str(missing), retryable=True)
    except ImportError:  # the machine's fault, not the image's
        raise
    except Exception as error:
        message = f"the {kind} does not decode: {error or type(error).__name__}; generate it again"
        yield RowError("corrupt_video", message, retryable=isinstance(error, MemoryError))
    else:
        yield decode_bytes(encoded, limits)


def decode_bytes(encoded: bytes, limits: ImageLimits) -> Image.Image | RowError:
    """Return an encoded image as RGB, or the reason why it cannot be decoded (see decode_each on exceptions)."""
    if len(encoded) > limits.max_bytes:
        return make_too_large_error(f"a file of {len(encoded)} bytes", f"max_bytes={limits.max_bytes}")
    if encoded == CLOSED_IMAGE_MARK:
        message = "the PIL.Image is closed; score it inside its `with` block, or call its load() there"
        return RowError("corrupt_image", message)
    try:
        return _decode_image(encoded, limits)
    except UnidentifiedImageError:
        expected = f"expected an image ({', '.join(DECODED_FORMATS)}) or a video ({VIDEO_FORMATS})"
        return RowError("corrupt_image", f"{expected}, found {_describe_unreadable_file(encoded)}")
    except UncheckedImageError as error:
        message = f"found {error}, whose decoder does not report missing data; save the image as PNG"
        return RowError("corrupt_image", message)
    except CostlyImageError:
        return _make_slow_error(limits)
    except ImportError:
        raise
    except Exception as error:
        message = f"the image does not decode: {error or type(error).__name__}; generate it again"
        return RowError("corrupt_image", message, retryable=isinstance(error, MemoryError))


def _describe_unreadable_file(encoded: bytes) -> str:
    """Return text that says what kind of file the bytes seem to be and what to do, without quoting their content."""
    kinds = [kind for signature, kind in UNREAD_VIDEO_SIGNATURES.items() if encoded.startswith(signature)]
    if encoded[:1] == encoded[TS_PACKET : TS_PACKET + 1] == bytes([TS_SYNC]):
        kinds = ["an MPEG transport stream"]
    if kinds:
        return f"{kinds[0]}; convert it to MP4"
    kinds = [kind for signature, kind in FILE_KINDS_BY_SIGNATURE.items() if encoded.lstrip().startswith(signature)]
    return f"{kinds[0] if kinds else 'something else'}; generate it again"


def _decode_image(encoded: bytes, limits: ImageLimits) -> Image.Image | RowError:
    # The header is checked before any pixel is decoded, so that a decompression bomb costs nothing.
    jpeg = read_jpeg(encoded) if encoded.startswith(JPEG_SIGNATURE) else None
    if jpeg is not None and len(jpeg.scans) > limits.max_scans:
        return make_too_large_error(f"a JPEG of {len(jpeg.scans)} scans", f"max_scans={limits.max_scans}")
    image = open_image(jpeg.encoded if jpeg is not None else encoded, limits.max_seconds)
    refusal = _refuse_oversize(*image.size, limits) or _refuse_multiple_images(image, encoded)
    if refusal is not None:
        return refusal
    if jpeg is not None:
        image = decode_jpeg(image, jpeg)
    elif image.format == "PNG" and (pixels := decode_png(image, encoded)) is not None:
        image = pixels
    else:
        load_whole_image(image, encoded)
    return _convert_to_rgb(image)


def _refuse_multiple_images(image: Image.Image, encoded: bytes) -> RowError | None:
    """Return an error if a file has several images: an animation, or a TIFF with pages other than copies and masks."""
    if find_animation(encoded) is not None:
        return RowError(
            "too_many_images", "found an animation, but one image is expected; save the intended one as PNG"
        )
    if image.format != "TIFF" or not getattr(image, "is_animated", False):
        return None
    pages = 0
    for page in range(min(getattr(image, "n_frames", 1), MAX_PAGES)):
        image.seek(page)
        pages += not int(image.tag_v2.get(SUBFILE_TAG, 0)) & REDUCED_OR_MASK  # type: ignore[attr-defined]
    image.seek(0)
    found = f"found a TIFF with {pages} pages; save the intended page, or each page, as PNG"
    return RowError("too_many_images", found) if pages > 1 else None


def _refuse_oversize(width: int, height: int, limits: ImageLimits) -> RowError | None:
    """Return an error if an image is too large, or too elongated to be padded to a square."""
    if width * height > limits.max_pixels:
        return make_too_large_error(f"{width}x{height} pixels", f"max_pixels={limits.max_pixels}")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        found = f"the longer side of {width}x{height} pixels is over {MAX_ASPECT_RATIO} times the shorter one"
        return RowError("image_too_large", f"{found}; crop it")
    return None


def _convert_to_rgb(image: Image.Image) -> Image.Image | RowError:
    """Return the first frame as RGB. 16-bit grey is scaled to 8 bits, because Pillow's own conversion would clip it.

    `info[STORED_IMAGE_KEY]` keeps the original image if resizing it gives different pixels from resizing its RGB form.
    """
    if image.mode in ("I", "F"):
        message = f"pixels of mode {image.mode} have no fixed range; save the image as 8-bit RGB"
        return RowError("corrupt_image", message)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8))
    if image.mode == "RGB":
        return image
    rgb = image.convert("RGB")
    if image.mode != "L":
        rgb.info[STORED_IMAGE_KEY] = image
    return rgb


def _make_slow_error(limits: ImageLimits) -> RowError:
    found = f"decoding takes more than limits.max_seconds={limits.max_seconds:g} of processor time"
    return RowError("image_too_slow", f"{found}; save the image again, or raise the limit", retryable=True)


def make_too_large_error(found: str, limit: str) -> RowError:
    return RowError("image_too_large", f"{found} is over limits.{limit}; check the image, or raise the limit")

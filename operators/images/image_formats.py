"""Opens and decodes image files within limits, and checks that they are complete, which Pillow does not do."""

import io
import re
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile

DECODED_FORMATS = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF")
STORED_IMAGE_KEY = "stored"
"""Key in the `info` of an RGB image for the image as stored in its file, with a palette or transparency."""

MAX_READS_PER_FILE = 8
"""Maximum number of times that a file may be read in full. A TIFF's tags may refer to the same bytes many times."""
MAX_TIFF_HEADER_BYTES = 16_000_000
"""Maximum size in bytes of a TIFF's tags, which are read twice. They contain the position of each strip, and Pillow
needs hundreds of bytes of memory per position.
"""
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

JPEG_SIGNATURE = b"\xff\xd8\xff"
MAX_SEGMENTS = 100_000
"""Maximum number of segments in a JPEG, or of chunks in a PNG."""
MARKER_PATTERN = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)
"""Pattern for a marker that ends a scan or starts a segment. It does not match byte stuffing or restart markers."""
FRAME_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""Start-of-frame markers. A frame header declares the JPEG's type and components."""
CHECKED_FRAME_MARKERS = {0xC0, 0xC1, 0xC2}
"""Frame markers of Huffman-coded JPEGs (baseline, extended and progressive), in which missing data can be detected.
Arithmetic-coded data may end anywhere.
"""
END_MARKER, SCAN_MARKER = 0xD9, 0xDA
PIXEL_SEGMENTS = {*range(0xC0, 0xC8), *range(0xC9, 0xD0), *range(0xD9, 0xDE), 0xE0, 0xEE}
"""Segments that affect pixels: frames, tables, scans, the end marker, and two application segments with the colour
space.
"""
COEFFICIENTS_PER_BLOCK = 64
"""Number of coefficients per block and component."""
TURBOJPEG_COLOUR_SPACES = {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}
"""TurboJPEG's names for Pillow's modes."""
UNKNOWN_SAMPLING_MESSAGE = "Could not determine subsampling"
"""TurboJPEG's message for a JPEG with a chroma subsampling that it does not support, such as a CMYK JPEG with 4:2:0."""

CHECKED_TIFF_COMPRESSIONS = {
    "raw", "packbits", "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "lzma", "zstd",
}  # fmt: skip
"""TIFF compressions for which libtiff reports missing data. For fax and JPEG compression, libtiff does not report
missing data.
"""
RLE8, RLE4 = 1, 2
"""Run-length encodings of a BMP with 8 and 4 bits per pixel."""
END_OF_BITMAP, DELTA = 1, 2
"""Meanings of the second byte after a run length of zero."""

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
COMPRESSIBLE_CHUNK_TYPES = (b"zTXt", b"iTXt", b"iCCP")
"""Types of the PNG chunks whose content, text or a colour profile, may be compressed."""
PNG_SAMPLES_PER_PIXEL = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Number of samples per pixel, by colour type."""
ADAM7_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column, first row, column step and row step of each pass of an interlaced PNG."""
INFLATE_CHUNK_BYTES = 1 << 16
BIT_DEPTH_OFFSET, USUAL_BIT_DEPTH = 24, 8
"""Byte offset of a PNG's bit depth in the file, and the usual bit depth."""


class CostlyImageError(Exception):
    """Error for an image that takes too long to decode; not an OSError, because Pillow turns OSErrors into warnings."""


class BrokenImageError(Exception):
    """Error for an image that is incomplete or damaged."""


class UncheckedImageError(Exception):
    """Error for an image that cannot be checked, because the decoder of its format does not report missing data."""


class BoundedBytes(io.BytesIO):
    """Byte stream that limits the time and the number of bytes read, because Pillow trusts any header.

    The work between two reads is bounded by the image's pixels and scans.
    """

    def __init__(self, encoded: bytes, seconds: float) -> None:
        super().__init__(encoded)
        self.size = len(encoded)
        self.stop = time.thread_time() + seconds
        self.left = MAX_TIFF_HEADER_BYTES if encoded.startswith(TIFF_SIGNATURES) else MAX_READS_PER_FILE * self.size

    def limit_pixel_reads(self, n_frames: int) -> None:
        """Limit the number of bytes that may still be read for the pixels of `n_frames` frames.

        The decoder may read up to one block beyond each frame.
        """
        self.left = MAX_READS_PER_FILE * self.size + n_frames * ImageFile.MAXBLOCK

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        self.left -= len(piece)
        if self.left < 0:
            raise BrokenImageError("the header is too large, or refers to the same bytes over and over")
        if time.thread_time() > self.stop:
            raise CostlyImageError
        return piece


class Jpeg(NamedTuple):
    """A JPEG without its metadata, which does not affect pixels but takes Pillow quadratic time to read."""

    encoded: bytes
    frame: bytes
    """The segment with one of the markers FRAME_MARKERS; empty if the file has no such segment."""
    scans: list[bytes]


def read_jpeg(encoded: bytes) -> Jpeg:
    """Return a JPEG without its metadata, with its frame and scans; raise BrokenImageError for too many segments."""
    bare, scans = [JPEG_SIGNATURE[:2]], list[bytes]()
    frame = b""
    marker = MARKER_PATTERN.search(encoded, len(JPEG_SIGNATURE[:2]))
    for _ in range(MAX_SEGMENTS):
        if marker is None:
            return Jpeg(b"".join(bare), frame, scans)
        code, after = marker[1][0], marker.end()
        stop = after if code == END_MARKER else after + int.from_bytes(encoded[after : after + 2])
        following = MARKER_PATTERN.search(encoded, stop) if code != END_MARKER else None
        if code == SCAN_MARKER:  # it includes the data after it
            stop = following.start() if following is not None else len(encoded)
        segment = encoded[marker.start() : stop]
        if code in PIXEL_SEGMENTS:
            bare.append(segment)
        if code == SCAN_MARKER:
            scans.append(segment)
        frame = segment if code in FRAME_MARKERS else frame
        marker = following
    raise BrokenImageError(f"the file has over {MAX_SEGMENTS} segments")


def open_image(encoded: bytes, seconds: float, n_frames: int = 1) -> Image.Image:
    """Return an image whose header has been read but whose pixels have not; for a PNG, verify all checksums.

    Pillow ignores the checksums of a PNG when it decodes the pixels.
    """
    bare = encoded
    if encoded.startswith(PNG_SIGNATURE) and any(note in encoded for note in COMPRESSIBLE_CHUNK_TYPES):
        # Pillow limits the size of compressed texts and profiles. No pixel depends on them, and image generators write
        # whole workflows there.
        bare = _select_chunks(encoded, lambda chunk_type: chunk_type not in COMPRESSIBLE_CHUNK_TYPES)
    stream = BoundedBytes(bare, seconds)
    image = Image.open(stream, formats=DECODED_FORMATS)
    stream.limit_pixel_reads(n_frames)
    if image.format == "PNG":
        for chunk_type, data, checksum in iterate_png_chunks(encoded):
            if zlib.crc32(data, zlib.crc32(chunk_type)) != checksum:
                raise BrokenImageError(f"the checksum of the {chunk_type.decode('latin-1')!r} chunk is wrong")
    return image


def decode_png(image: Image.Image, png: bytes) -> Image.Image | None:
    """Decode an opened PNG in half the time that Pillow takes, without blocking other Python threads.

    Returns None for a PNG that this function does not support, and for a damaged PNG (Pillow describes faults better).
    Also returns None if imagecodecs, which the extra `fast` installs, is missing.
    """
    try:
        import imagecodecs
    except ModuleNotFoundError:
        return None
    plain = image.mode in ("RGB", "RGBA") and png[BIT_DEPTH_OFFSET] == USUAL_BIT_DEPTH
    if not plain or image.info.get("interlace") or getattr(image, "is_animated", False):
        return None
    try:
        only_pixels = _select_chunks(png, lambda chunk_type: chunk_type in (b"IHDR", b"IDAT", b"IEND"))
        pixels = imagecodecs.spng_decode(only_pixels)
    except imagecodecs.SpngError:
        return None
    return Image.fromarray(pixels)


def _select_chunks(png: bytes, wanted: Callable[[bytes], bool]) -> bytes:
    kept: list[bytes | memoryview] = [PNG_SIGNATURE]
    for chunk_type, data, checksum in iterate_png_chunks(png):
        if wanted(chunk_type):
            kept += struct.pack(">I4s", len(data), chunk_type), data, checksum.to_bytes(4)
    return b"".join(kept)


def load_whole_image(image: Image.Image, encoded: bytes) -> None:
    """Decode an image in place; raise BrokenImageError if pixels are missing from a PNG, TIFF or BMP.

    Pillow reports missing pixels in other formats, but fills them in for these three. Raises UncheckedImageError for a
    TIFF whose decoder hides missing pixels.
    """
    if image.format == "TIFF":
        _require_full_coverage(image)
    image.load()
    if image.format == "PNG":
        last = image.crop((0, image.height - 1, image.width, image.height))
        # Missing rows are black, or hidden between the passes of an interlaced PNG_SIGNATURE.
        if (image.info.get("interlace") or not np.asarray(last).any()) and not _has_every_row(encoded):
            raise BrokenImageError("the data end before the last row")
    if image.format == "BMP" and image.info["compression"] in (RLE8, RLE4):
        n_pixels = sum(_iterate_runs(encoded, pixels_in_byte=image.info["compression"]))
        if n_pixels < image.width * image.height:
            raise BrokenImageError("the run-length encoding leaves out some pixels")


def _require_full_coverage(image: Image.Image) -> None:
    """Raise BrokenImageError if a TIFF's strips or tiles leave gaps, UncheckedImageError if its decoder hides gaps."""
    compression = image.info.get("compression", "raw")
    if compression not in CHECKED_TIFF_COMPRESSIONS:
        raise UncheckedImageError(f"a TIFF compressed as {compression}")
    covered: Counter[object] = Counter()
    """Number of pixels covered by strips or tiles, for each colour if colours are stored separately."""
    for _, (left, upper, right, lower), _, arguments in image.tile:  # type: ignore[attr-defined]
        covered[arguments[0]] += (right - left) * (lower - upper)
    if min(covered.values(), default=0) < image.width * image.height:
        raise BrokenImageError("the strips do not cover the whole image")


def _iterate_runs(bmp: bytes, *, pixels_in_byte: int) -> Iterator[int]:
    """Yield the number of pixels in each run of a run-length encoded BMP; skipped pixels belong to no run."""
    position = int.from_bytes(bmp[10:14], "little")
    while position + 1 < len(bmp):
        run, code = bmp[position : position + 2]
        position += 2
        if run:
            yield run
        elif code == END_OF_BITMAP:
            return
        elif code == DELTA:
            position += 2
        elif code > DELTA:
            yield code
            position += -(-code // pixels_in_byte)
            position += position % 2


def _has_every_row(png: bytes) -> bool:
    """Return True if a PNG's data, once inflated, contain all bytes of all rows."""
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", png, 16)
    bits = depth * PNG_SAMPLES_PER_PIXEL[colour]
    missing = 0
    for left, top, right, down in ADAM7_PASSES if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(width - left) // right), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            missing += rows * (1 + -(-columns * bits // 8))  # the first byte of a row names its filter
    inflate = zlib.decompressobj()
    for chunk_type, data, _ in iterate_png_chunks(png):
        # Pieces stay small when they are inflated.
        for start in range(0, len(data) if chunk_type == b"IDAT" else 0, INFLATE_CHUNK_BYTES):
            missing -= len(inflate.decompress(data[start : start + INFLATE_CHUNK_BYTES]))
            if missing <= 0:
                return True
    return False


def iterate_png_chunks(png: bytes) -> Iterator[tuple[bytes, memoryview, int]]:
    """Yield the type, data and checksum of each chunk up to IEND; raise BrokenImageError if the PNG ends before it.

    This is faster than Pillow's `verify`, after which the file would have to be reopened.
    """
    position, content = len(PNG_SIGNATURE), memoryview(png)
    for _ in range(MAX_SEGMENTS):
        if position + 12 > len(png):
            raise BrokenImageError("the file ends before its last chunk")
        length, chunk_type = struct.unpack_from(">I4s", png, position)
        stop = position + 8 + length
        if stop + 4 > len(png):
            raise BrokenImageError("the file ends within a chunk")
        yield chunk_type, content[position + 8 : stop], int.from_bytes(content[stop : stop + 4])
        if chunk_type == b"IEND":
            return
        position = stop + 4
    raise BrokenImageError(f"the file has over {MAX_SEGMENTS} chunks")


def decode_jpeg(image: Image.Image, jpeg: Jpeg) -> Image.Image:
    """Decode an opened JPEG; raise BrokenImageError, or ValueError with libjpeg's message, if pixels are missing.

    The pixels are identical to Pillow's, but Pillow hides libjpeg's warnings. Raises UncheckedImageError for a JPEG
    in which missing pixels cannot be detected, because of its chroma subsampling or its coding.
    """
    import simplejpeg

    try:
        pixels = simplejpeg.decode_jpeg(jpeg.encoded, TURBOJPEG_COLOUR_SPACES[image.mode], strict=True)
    except ValueError as error:
        if UNKNOWN_SAMPLING_MESSAGE in str(error):
            raise UncheckedImageError("a JPEG with unusual chroma subsampling") from error
        raise
    if image.mode == "CMYK":  # Pillow assumes that inks are inverted, as Adobe writes them
        pixels = ~pixels
    if jpeg.frame[1] not in CHECKED_FRAME_MARKERS:
        raise UncheckedImageError("an arithmetic-coded or lossless JPEG")
    # libjpeg accepts missing scans: together they must have the last bit of each coefficient of each component.
    sent: set[tuple[int, int]] = set()
    for scan in jpeg.scans:
        components = scan[5 : 5 + 2 * scan[4] : 2]
        first, last, low_bits = scan[5 + 2 * scan[4] : 8 + 2 * scan[4]]
        if not low_bits % 16:
            sent.update(product(components, range(first, last + 1)))
    if len(sent) < COEFFICIENTS_PER_BLOCK * jpeg.frame[9]:
        raise BrokenImageError("the file lacks some of its scans")
    return Image.frombytes(image.mode, image.size, pixels)

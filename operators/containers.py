"""What an image's bytes must hold before Pillow's word is taken for its pixels, and what reading them may cost."""

import io
import re
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageChops

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
STORED = "stored"
"""Where `info` of an RGB image keeps the image as its file has it, of a palette or with transparency."""

MOST_READ = 8
"""How often all bytes may be read; a TIFF's tags may name the same ones over and over."""
MOST_OF_A_TIFF_HEADER = 16_000_000
"""Bytes of tags, which are read twice; they hold the places of the strips, each of which costs Pillow hundreds."""
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

JPEG = b"\xff\xd8\xff"
MOST_SEGMENTS = 100_000
"""Of a JPEG, and chunks of a PNG."""
MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)
"""What ends a scan or begins a segment: neither stuffing nor a restart."""
END, SCAN = 0xD9, 0xDA
BASELINE, PROGRESSIVE = {0xC0, 0xC1}, 0xC2
OF_THE_PIXELS = {*range(0xC0, 0xC8), *range(0xC9, 0xD0), *range(0xD9, 0xDE), 0xE0, 0xEE}
"""Frames, tables, scans, the end, and the two application segments that name the colour space."""
FILLER = bytes(37 * step % 251 + 1 for step in range(64))
"""Bits that no whole scan needs; no byte begins a marker."""
MID_GREY = {127, 128}
"""What libjpeg makes of blocks that have no data."""

PNG = b"\x89PNG\r\n\x1a\n"
PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Of a pixel, by the colour type."""
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column, first row, and the steps to the next, of each pass of an interlaced PNG."""
PIECE = 1 << 16


class CostlyImage(Exception):
    """Decoding takes longer than it may; no OSError, because Pillow makes warnings of those."""


class BrokenImage(Exception):
    """The bytes are not those of a whole image."""


class BoundedBytes(io.BytesIO):
    """Bytes that may be read for so long and so often: Pillow's readers follow whatever a header says.

    What happens between two reads is bounded by the image's pixels and scans.
    """

    def __init__(self, encoded: bytes, seconds: float) -> None:
        super().__init__(encoded)
        self.size = len(encoded)
        self.stop = time.thread_time() + seconds
        self.left = MOST_OF_A_TIFF_HEADER if encoded.startswith(TIFF) else MOST_READ * self.size

    def end_header(self) -> None:
        """From here on the pixels are read."""
        self.left = MOST_READ * self.size

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        self.left -= len(piece)
        if self.left < 0:
            raise BrokenImage("its header is too large, or names the same bytes over and over")
        if time.thread_time() > self.stop:
            raise CostlyImage
        return piece


class Jpeg(NamedTuple):
    """A JPEG without its metadata, which no pixel depends on and which Pillow reads in loops and joins in squares."""

    encoded: bytes
    padded: bytes
    """With further bits after each scan, which a whole scan does not need."""
    scans: int
    frame: int
    """The marker of its kind."""


def read_jpeg(encoded: bytes) -> Jpeg:
    """A JPEG's scans and what they need; raises BrokenImage where it has more segments than any image."""
    bare, padded, scans, frame = [JPEG[:2]], [JPEG[:2]], 0, 0
    for kind, segment in _segments(encoded):
        if kind in OF_THE_PIXELS:
            bare.append(segment)
            padded.append(segment.rstrip(b"\xff") + FILLER if kind == SCAN else segment)
        scans += kind == SCAN
        frame = kind if kind in (*BASELINE, PROGRESSIVE) else frame
    return Jpeg(b"".join(bare), b"".join(padded), scans, frame)


def _segments(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    """Each segment with its marker, a scan's with the data after it, as far as the end of the image."""
    marker = MARKER.search(encoded, len(JPEG[:2]))
    for _ in range(MOST_SEGMENTS):
        if marker is None:
            return
        kind, after = marker[1][0], marker.end()
        stop = after if kind == END else after + int.from_bytes(encoded[after : after + 2])
        following = MARKER.search(encoded, stop) if kind != END else None
        if kind == SCAN:
            stop = following.start() if following is not None else len(encoded)
        yield kind, encoded[marker.start() : stop]
        marker = following
    raise BrokenImage(f"it has over {MOST_SEGMENTS} segments")


def open_image(encoded: bytes, seconds: float) -> Image.Image:
    """The image with its header read; of a PNG the checksums are verified, which Pillow's decoding does not do."""
    stream = BoundedBytes(encoded, seconds)
    image = Image.open(stream, formats=FORMATS)
    stream.end_header()
    if image.format == "PNG":
        for kind, data, checksum in _chunks(encoded):
            if zlib.crc32(data, zlib.crc32(kind)) != checksum:
                raise BrokenImage(f"the checksum of its {kind.decode('latin-1')!r} chunk is wrong")
    return image


def require_pixels(image: Image.Image, encoded: bytes) -> None:
    """Raises BrokenImage where a PNG or TIFF lacks pixels, which Pillow leaves black; of other formats it tells."""
    if image.format == "TIFF" and not _is_covered(image):
        raise BrokenImage("its strips do not cover it")
    image.load()
    if image.format == "PNG" and _ends_black(image) and not _holds_every_row(encoded):
        raise BrokenImage("its data end before its last row")


def _is_covered(image: Image.Image) -> bool:
    """Whether the strips or tiles of a TIFF cover it; where its colours lie apart, those of each colour."""
    covered: Counter[object] = Counter()
    for _, (left, upper, right, lower), _, arguments in image.tile:  # type: ignore[attr-defined]
        covered[arguments[0]] += (right - left) * (lower - upper)
    return min(covered.values(), default=0) >= image.width * image.height


def _ends_black(image: Image.Image) -> bool:
    """Whether a PNG's last row may be missing: it is black, or the passes of an interlaced one would hide it."""
    last = image.crop((0, image.height - 1, image.width, image.height))
    return bool(image.info.get("interlace")) or not np.asarray(last).any()


def _holds_every_row(png: bytes) -> bool:
    """Whether a PNG's data are as many bytes as its rows take, once inflated."""
    width, height, depth, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", png, 16)
    missing = _row_bytes(width, height, depth * PNG_SAMPLES[colour], ADAM7 if interlaced else ((0, 0, 1, 1),))
    inflate = zlib.decompressobj()
    for piece in _png_data(png):
        missing -= len(inflate.decompress(piece))
        if missing <= 0:
            return True
    return False


def _row_bytes(width: int, height: int, bits: int, passes: tuple[tuple[int, int, int, int], ...]) -> int:
    """The bytes of all rows of all passes, each with the byte that names its filter."""
    sizes = [(-(-(width - left) // right), -(-(height - top) // down)) for left, top, right, down in passes]
    return sum(rows * (1 + -(-columns * bits // 8)) for columns, rows in sizes if columns > 0 and rows > 0)


def _png_data(png: bytes) -> Iterator[memoryview]:
    """The compressed pixels, in pieces that stay small when inflated."""
    for kind, data, _ in _chunks(png):
        if kind == b"IDAT":
            yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))


def _chunks(png: bytes) -> Iterator[tuple[bytes, memoryview, int]]:
    """Each chunk's kind, data and checksum as far as the end of the image; raises BrokenImage where that is not there.

    Faster than Pillow's `verify`, after which a file is to be opened anew.
    """
    position, content = len(PNG), memoryview(png)
    for _ in range(MOST_SEGMENTS):
        if position + 12 > len(png):
            raise BrokenImage("it ends before its last chunk")
        length, kind = struct.unpack_from(">I4s", png, position)
        stop = position + 8 + length
        if stop + 4 > len(png):
            raise BrokenImage("it ends within a chunk")
        yield kind, content[position + 8 : stop], int.from_bytes(content[stop : stop + 4])
        if kind == b"IEND":
            return
        position = stop + 4
    raise BrokenImage(f"it has over {MOST_SEGMENTS} chunks")


def require_scans(image: Image.Image, jpeg: Jpeg, seconds: float) -> None:
    """Raises BrokenImage where a scan ends early, which libjpeg fills up: the bits after a whole scan change nothing.

    Of a baseline JPEG only one whose last block is blank is decoded a second time.
    """
    image.load()
    if jpeg.frame != PROGRESSIVE and not (jpeg.frame in BASELINE and _ends_grey(image)):
        return
    if ImageChops.difference(image, open_image(jpeg.padded, seconds)).getbbox() is not None:
        raise BrokenImage("its data end before its last block")


def _ends_grey(image: Image.Image) -> bool:
    """Whether a JPEG's last block may be missing: libjpeg leaves it grey."""
    last = image.getpixel((image.width - 1, image.height - 1))
    return (set(last) if isinstance(last, tuple) else {last}) <= MID_GREY

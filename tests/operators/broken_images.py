"""Images with missing pixels but valid markers and headers, each made by damaging a complete image."""

import base64
import re
import struct
from collections.abc import Sequence

from tests.operators.tiny import draw_image, encode_image

PLAIN_IMAGE = draw_image(0, width=120, height=96)
MARKER_PATTERN = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
RESTART_MARKER_PATTERN = re.compile(rb"\xff[\xd0-\xd7]")
END_MARKER = b"\xff\xd9"
ARITHMETIC_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0Hyc5PTgyPC4zNDL/"
    "yQALCAAQABABAREA/8wABgAQEAX/2gAIAQEAAD8A0lphObIGysQEj3ERIU58Hq2fOUz3rTpK46xki6XoIK0ANf8A071SdY2Fa3LO65qtZ/8AJ8NURlGT4od3"
    "EXxmXKP1b2Uyw+AGif/Z"
)
"""A grey 16x16 JPEG made by `jpegtran -arithmetic`; its last 90 bytes are the scan."""
LOSSLESS_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/wwALCAAQABABAREA/8QAGQABAAMBAQAAAAAAAAAAAAAAAAYHCAUC/9oACAEBAAEAAI8JGLAHXASMWAOuAkYsAdcBIxYA"
    "64vAdwYjGlAHcGIxpQB3BiMaUAdwYjGlBlEa2HoVQA1sPQqgBrYehVADWw9CqBtcQQZSE1AQQZSE1AQQZSE1AQQZSE1H/9k="
)
"""A grey 16x16 JPEG with lossless compression, made by libjpeg-turbo 3."""


def split_segments(jpeg: bytes) -> list[bytes]:
    """Return the parts of a JPEG, each of which starts with a marker other than a restart marker."""
    starts = [match.start() for match in MARKER_PATTERN.finditer(jpeg)]
    return [jpeg[start:stop] for start, stop in zip(starts, [*starts[1:], len(jpeg)], strict=True)]


def drop_intervals(first: int, count: int) -> bytes:
    """Return a JPEG that lacks `count` restart intervals from number `first` on; a row of blocks is one interval."""
    jpeg = encode_image(PLAIN_IMAGE, "JPEG", restart_marker_rows=1, subsampling=0)
    scan = jpeg.rindex(b"\xff\xda")
    starts = [scan + 14, *(match.end() for match in RESTART_MARKER_PATTERN.finditer(jpeg, scan)), len(jpeg)]
    return jpeg[: starts[first]] + jpeg[starts[first + count] :]


def make_three_scans(*, kept: Sequence[float] = (1, 1, 1)) -> bytes:
    """Return a baseline JPEG with separate scans for Y, Cb and Cr; `kept` is the fraction of each scan that is kept."""
    greys = [split_segments(encode_image(channel, "JPEG")) for channel in PLAIN_IMAGE.convert("YCbCr").split()]
    frame = bytearray(b"".join(part for part in greys[0][:-2] if part[1] != 0xC0))
    size = next(part for part in greys[0] if part[1] == 0xC0)[4:9]
    frame += b"\xff\xc0\0\x11" + size + b"\3" + b"".join(bytes((component, 0x11, 0)) for component in (1, 2, 3))
    scans = (
        truncate_scan(parts[-2], component, share)
        for component, (parts, share) in enumerate(zip(greys, kept, strict=True), 1)
    )
    return bytes(frame) + b"".join(scans) + END_MARKER


def truncate_scan(scan: bytes, component: int, share: float) -> bytes:
    """Return the first `share` of a scan, labelled as the given component; return nothing if `share` is 0."""
    renamed = scan[:5] + bytes((component,)) + scan[6:]
    return renamed[: 10 + int(share * (len(scan) - 10))] if share else b""


def make_progressive(scans: int) -> bytes:
    """Return a progressive JPEG that ends after this number of scans."""
    parts = split_segments(encode_image(PLAIN_IMAGE, "JPEG", progressive=True))
    places = [place for place, part in enumerate(parts) if part[1] == 0xDA]
    return b"".join(parts[: places[scans - 1] + 1]) + END_MARKER


def make_tiff(compression: str, share: float = 1) -> bytes:
    """Return a one-strip TIFF whose header declares only the fraction `share` of the strip's true length."""
    fax = compression in ("group3", "group4", "tiff_ccitt")
    image = PLAIN_IMAGE.convert("1" if fax else "RGB")
    tiff = bytearray(encode_image(image, "TIFF", compression=compression))
    tags = struct.unpack_from("<I", tiff, 4)[0]
    entries = (tags + 2 + 12 * number for number in range(struct.unpack_from("<H", tiff, tags)[0]))
    size_place = next(entry + 8 for entry in entries if struct.unpack_from("<H", tiff, entry) == (279,))
    size = struct.unpack_from("<I", tiff, size_place)[0]
    struct.pack_into("<I", tiff, size_place, max(int(share * size), 1))
    return bytes(tiff)


def make_bmp(runs: bytes, *, bits: int = 8, side: int = 20) -> bytes:
    """Return a BMP of `side` x `side` pixels with a grey palette, whose run-length encoded data are `runs`."""
    greys = b"".join(bytes((255 * grey // (2**bits - 1),) * 3) + b"\0" for grey in range(2**bits))
    start = 54 + len(greys)
    kind = {8: 1, 4: 2}[bits]
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, bits, kind, len(runs), 0, 0, 2**bits, 0)
    return b"BM" + struct.pack("<IHHI", start + len(runs), 0, 0, start) + header + greys + runs


WHITE_ROW = b"\x14\xff"
"""Run-length encoding of one white row of a BMP with 20 columns."""
INCOMPLETE_JPEGS = {
    "an interval in the middle is missing": drop_intervals(5, 1),
    "eight intervals are missing, so that the numbers go on": drop_intervals(2, 8),
    "the first interval is missing": drop_intervals(0, 1),
    "the last interval is missing": drop_intervals(11, 1)[:-2] + END_MARKER,
    "the scan of Y is cut": make_three_scans(kept=(0.3, 1, 1)),
    "the scan of Y is missing": make_three_scans(kept=(0, 1, 1)),
    "the scan of Cr is missing": make_three_scans(kept=(1, 1, 0)),
    "progressive, with its first scan alone": make_progressive(1),
    "progressive, without its last scan": make_progressive(9),
    "lossless, cut in half": LOSSLESS_JPEG[:110] + END_MARKER,
    "arithmetic, cut in half": ARITHMETIC_JPEG[:150] + END_MARKER,
}
"""JPEGs in which libjpeg would silently fill in missing pixels, keyed by their defect."""
INCOMPLETE_BMPS = {
    "it skips its pixels": make_bmp(b"\0\2\xff\x13" + b"\0\2\x14\0" + b"\0\1"),
    "its rows end early": make_bmp(b"\1\xff\0\0" * 20 + b"\0\1"),
    "it skips a row": make_bmp((WHITE_ROW + b"\0\0") * 9 + b"\0\2\0\1" + (WHITE_ROW + b"\0\0") * 10 + b"\0\1"),
    "it skips its pixels, of four bits": make_bmp(b"\x05\xff\0\2\xff\x13\0\2\x14\0\0\1", bits=4),
}
"""BMPs in which Pillow would silently fill in missing pixels, keyed by their defect."""

"""Every row of an image table becomes, in the same position, an RGB image or an error that states the reason."""

import hashlib
import io
import math
import resource
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from plumbline.operators.base.errors import ConfigError, PlumblineError, RowError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import PreparedImages, decode_row_image, prepare_images
from plumbline.operators.images.rows import read_image_row
from plumbline.operators.models.families.dual_encoders import ClipSimilarity
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood
from tests.operators.broken_images import (
    ARITHMETIC_JPEG,
    INCOMPLETE_BMPS,
    INCOMPLETE_JPEGS,
    LOSSLESS_JPEG,
    WHITE_ROW,
    drop_intervals,
    make_bmp,
    make_progressive,
    make_three_scans,
    make_tiff,
)
from tests.operators.tiny import draw_image, encode_image, make_image_table, refuse_fetch
from tests.releases import is_older

LIMITS = ImageLimits(max_pixels=1_000_000, max_bytes=1_000_000)
ORANGE = (220, 120, 40)
PLAIN_IMAGE = Image.new("RGB", (20, 10), ORANGE)
BLUE_IMAGE = Image.new("RGB", (20, 10), (20, 40, 200))


def decode(content: Any, limits: ImageLimits = LIMITS) -> Image.Image:
    image = decode_row_image({"image": content}, limits, refuse_fetch)
    assert isinstance(image, Image.Image), image
    return image


def decode_refused(row: dict[str, Any], limits: ImageLimits = LIMITS, fetch: Any = refuse_fetch) -> RowError:
    error = decode_row_image(row, limits, fetch)
    assert isinstance(error, RowError)
    return error


def test_a_missing_decoder_is_not_an_error_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(ImportError, match="simplejpeg"):
        decode(encode_image(PLAIN_IMAGE, "JPEG"))


def make_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def make_png_of_declared_size(width: int, height: int) -> bytes:
    """Return a PNG of about 100 bytes that declares an image of any size but contains no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + make_chunk(b"IHDR", header)
        + make_chunk(b"IDAT", zlib.compress(b""))
        + make_chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("content", "colour"),
    [
        pytest.param(encode_image(PLAIN_IMAGE), ORANGE, id="rgb-png"),
        pytest.param(encode_image(PLAIN_IMAGE.convert("RGBA")), ORANGE, id="rgba-png"),
        pytest.param(encode_image(PLAIN_IMAGE.quantize(4)), ORANGE, id="palette-png"),
        pytest.param(encode_image(PLAIN_IMAGE.convert("L")), (141, 141, 141), id="greyscale-png"),
        pytest.param(encode_image(PLAIN_IMAGE.convert("LA")), (141, 141, 141), id="greyscale-alpha-png"),
        pytest.param(encode_image(Image.new("1", (20, 10), 1)), (255, 255, 255), id="bilevel-png"),
        pytest.param(encode_image(PLAIN_IMAGE, "JPEG", quality=95), ORANGE, id="jpeg"),
        pytest.param(encode_image(PLAIN_IMAGE.convert("CMYK"), "JPEG", quality=95), ORANGE, id="cmyk-jpeg"),
        pytest.param(encode_image(PLAIN_IMAGE, "WEBP", lossless=True), ORANGE, id="webp"),
        pytest.param(encode_image(PLAIN_IMAGE, "AVIF", quality=95), ORANGE, id="avif"),
        pytest.param(encode_image(PLAIN_IMAGE.quantize(4), "GIF"), ORANGE, id="gif"),
        pytest.param(encode_image(PLAIN_IMAGE, "BMP"), ORANGE, id="bmp"),
        pytest.param(encode_image(PLAIN_IMAGE, "TIFF", compression="tiff_lzw"), ORANGE, id="tiff"),
        pytest.param(encode_image(PLAIN_IMAGE.convert("CMYK"), "TIFF"), ORANGE, id="cmyk-tiff"),
    ],
)  # fmt: skip
def test_every_known_format_and_mode_becomes_rgb(content: bytes, colour: tuple[int, int, int]) -> None:
    image = decode(content)
    assert (image.mode, image.size) == ("RGB", (20, 10))
    assert np.abs(np.asarray(image).astype(int) - colour).max() <= 4


@pytest.mark.parametrize("image_format", ["PNG", "TIFF"])
def test_sixteen_bit_greys_keep_their_brightness(image_format: str) -> None:
    greys = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    image = decode(encode_image(Image.fromarray(greys), image_format))
    assert image.mode == "RGB"
    assert np.abs(np.asarray(image)[:, :, 0].astype(int) - greys // 257).max() <= 1


@pytest.mark.parametrize(
    "secret", [b"root:x:0:0:", b"PK\x03\x04hush", b"<!DOCTYPE html>hush", b"%PDF-1.7 hush", b"AWS=hush\0"]
)
def test_the_refusal_of_a_file_that_is_not_an_image_shows_none_of_its_content(secret: bytes) -> None:
    error = decode_refused({"uri": "a.png"}, fetch=lambda uri: secret * 1000)
    text = error.message.replace("a.png", "").replace("MP4", "")
    assert not any(piece in text for piece in ("root", "hush", "PK", "DOCTYPE", "1.7", "AWS"))
    assert not any(sign.isdigit() for sign in text)


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP", "TIFF"])
def test_a_truncated_image_is_corrupt_and_not_half_grey(image_format: str) -> None:
    content = encode_image(draw_image(0, width=200, height=200), image_format)
    assert decode_refused({"image": content[: len(content) // 2]}).kind == "corrupt_image"


def test_the_given_pixel_limit_holds_even_above_pillows_own() -> None:
    limits = ImageLimits(max_pixels=400_000_000)
    error = decode_refused({"image": make_png_of_declared_size(13_400, 13_400)}, limits)
    assert error.kind == "corrupt_image", "the file has no pixels, but its size is within the limit"


def test_an_image_at_the_limits_is_accepted_and_an_image_over_either_limit_is_refused() -> None:
    content = encode_image(draw_image(1, width=30, height=20))
    exact = ImageLimits(max_pixels=600, max_bytes=len(content))
    assert decode(content, exact).size == (30, 20)
    fewer_pixels = decode_refused({"image": content}, ImageLimits(max_pixels=599))
    fewer_bytes = decode_refused({"image": content}, ImageLimits(max_bytes=len(content) - 1))
    assert {fewer_pixels.kind, fewer_bytes.kind} == {"image_too_large"}
    assert "30x20 pixels is over limits.max_pixels=599" in fewer_pixels.message
    assert f"{len(content)} bytes is over limits.max_bytes={len(content) - 1}" in fewer_bytes.message


@pytest.mark.parametrize("field", ["max_pixels", "max_bytes", "max_scans", "max_images"])
def test_a_limit_below_one_is_refused_by_name(field: str) -> None:
    with pytest.raises(ConfigError, match=f"limits.{field}: expected at least 1, got 0"):
        ImageLimits(**{field: 0})


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_an_infinite_or_negative_time_limit_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(
        ConfigError, match=rf"limits\.max_seconds: expected a positive number of seconds, got {seconds}"
    ):
        ImageLimits(max_seconds=seconds)


# Images that lack pixels although their checksums are sound


def make_png(width: int, rows: bytes, *, height: int, interlaced: bool = False, pieces: int = 1) -> bytes:
    """Return an RGB PNG of a declared width and height, with correct checksums and `rows` as its uncompressed data.

    The compressed data are divided into `pieces` chunks.
    """
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, interlaced)
    data = zlib.compress(rows)
    size = -(-len(data) // pieces)
    parts = [make_chunk(b"IDAT", data[at : at + size]) for at in range(0, len(data), size)]
    return b"\x89PNG\r\n\x1a\n" + make_chunk(b"IHDR", header) + b"".join(parts) + make_chunk(b"IEND", b"")


def test_a_png_that_lacks_rows_is_corrupt_even_if_its_checksums_are_sound() -> None:
    row = b"\0" + bytes([220, 120, 40]) * 64
    assert decode(make_png(64, row * 64, height=64, pieces=5)).getpixel((63, 63)) == ORANGE
    for rows in (0, 1, 20, 63):
        assert decode_refused({"image": make_png(64, row * rows, height=64, pieces=5)}).kind == "corrupt_image"
    assert "end before the last row" in decode_refused({"image": make_png(64, row * 20, height=64)}).message


def test_a_png_that_ends_in_black_is_accepted() -> None:
    black = Image.new("RGB", (20, 10))
    for image in (black, black.convert("L"), black.convert("1"), black.convert("RGBA"), black.quantize(2)):
        assert decode(encode_image(image)).getpixel((19, 9)) == (0, 0, 0)
    letterbox = PLAIN_IMAGE.copy()
    letterbox.paste((0, 0, 0), (0, 5, 20, 10))
    assert decode(encode_image(letterbox)).getpixel((0, 0)) == ORANGE


@settings(max_examples=60)
@given(width=st.integers(1, 40), height=st.integers(1, 20), seed=st.integers(0, 2**32), samples=st.sampled_from([3, 4]))
def test_a_png_has_the_pixels_that_pillow_decodes(width: int, height: int, seed: int, samples: int) -> None:
    """Random bytes with random filter types always form a valid PNG."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, 256, (height, 1 + samples * width), np.uint8)
    rows[:, 0] = random.integers(0, 5, height)
    header = struct.pack(">IIBBBBB", width, height, 8, {3: 2, 4: 6}[samples], 0, 0, 0)
    told = make_chunk(b"tEXt", b"Software\0a generator"), make_chunk(b"IDAT", zlib.compress(rows.tobytes()))
    content = b"\x89PNG\r\n\x1a\n" + make_chunk(b"IHDR", header) + b"".join(told) + make_chunk(b"IEND", b"")
    wide = width > 16 * height or height > 16 * width
    if not wide:
        pillows = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        assert np.array_equal(np.asarray(decode(content)), pillows)


def filter_row(filter_type: int, row: bytes) -> bytes:
    return bytes([filter_type]) + row


@pytest.mark.parametrize(
    ("data", "sound"),
    [
        (zlib.compress(filter_row(1, bytes(24)) * 8), True),
        (zlib.compress(filter_row(1, bytes(24)) * 8) + b"more", True),
        (zlib.compress(filter_row(1, bytes(24)) * 8)[:-4] + bytes(4), False),
        (zlib.compress(filter_row(1, bytes(24)) * 8)[:-6], False),
        (zlib.compress(filter_row(9, bytes(24)) * 8), False),
        (b"no deflated data", False),
    ],
)
def test_a_png_with_unsound_data_is_corrupt(data: bytes, sound: bool) -> None:
    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + make_chunk(b"IHDR", header) + make_chunk(b"IDAT", data) + make_chunk(b"IEND", b"")
    if sound:
        assert decode(content).size == (8, 8)
    else:
        error = decode_refused({"image": content})
        assert (error.kind, error.message.endswith("; generate it again")) == ("corrupt_image", True)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (2, 1), (1, 3), (5, 5), (8, 8), (13, 7)])
def test_an_interlaced_png_must_have_the_bytes_of_all_its_passes(width: int, height: int) -> None:
    starts = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    passes = [(len(range(x, width, dx)), len(range(y, height, dy))) for x, y, dx, dy in starts]
    rows = b"".join((b"\0" + b"\x55" * 3 * columns) * lines for columns, lines in passes if columns)
    assert decode(make_png(width, rows, height=height, interlaced=True)).size == (width, height)
    assert decode_refused({"image": make_png(width, rows[:-1], height=height, interlaced=True)}).kind == "corrupt_image"


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_rows": 2}, {"subsampling": 0}])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_whose_data_end_early_is_corrupt_even_if_its_end_is_marked(options: dict[str, Any], mode: str) -> None:
    content = encode_image(draw_image(0, width=120, height=90).convert(mode), "JPEG", quality=90, **options)
    assert decode(content).size == (120, 90)
    for share in (0.5, 0.7, 0.9):
        assert decode_refused({"image": content[: int(len(content) * share)] + b"\xff\xd9"}).kind == "corrupt_image"


@pytest.mark.parametrize("content", INCOMPLETE_JPEGS.values(), ids=INCOMPLETE_JPEGS)
def test_a_jpeg_whose_missing_pixels_libjpeg_fills_in_is_corrupt(content: bytes) -> None:
    Image.open(io.BytesIO(content)).load()
    error = decode_refused({"image": content})
    assert (error.kind, error.retryable) == ("corrupt_image", False)


@pytest.mark.parametrize("content", [ARITHMETIC_JPEG, LOSSLESS_JPEG])
def test_a_kind_of_jpeg_that_cannot_be_checked_for_completeness_is_refused_with_the_remedy(content: bytes) -> None:
    message = (
        "found an arithmetic-coded or lossless JPEG, whose decoder does not report missing data; save the image as PNG"
    )
    assert decode_refused({"image": content}) == RowError("corrupt_image", message)


def test_a_jpeg_with_an_unknown_colour_sampling_is_refused_with_the_remedy() -> None:
    error = decode_refused({"image": encode_image(draw_image(0).convert("CMYK"), "JPEG", subsampling=2)})
    assert error.message.startswith("found a JPEG with unusual chroma subsampling, whose decoder")
    assert error.message.endswith("; save the image as PNG") and error.kind == "corrupt_image"


def test_fill_bytes_before_the_end_of_a_jpeg_are_allowed_and_other_bytes_are_not() -> None:
    content = encode_image(draw_image(0), "JPEG")
    assert decode(content[:-2] + b"\xff" * 7 + content[-2:]).tobytes() == decode(content).tobytes()
    assert "extraneous bytes" in decode_refused({"image": content[:-2] + bytes(7) + content[-2:]}).message


@pytest.mark.parametrize(
    "content",
    [
        *(
            pytest.param(encode_image(draw_image(3, width=width, height=height).convert(mode), "JPEG", **options))
            for mode in ("RGB", "L", "CMYK")
            for width, height in ((61, 47), (1, 1))
            for options in ({}, {"progressive": True}, {"restart_marker_rows": 1}, {"quality": 100, "subsampling": 0})
        ),
        *(
            encode_image(draw_image(3, width=61, height=47), "JPEG", **options)
            for options in (
                {"subsampling": 1},
                {"subsampling": 2},
                {"keep_rgb": True},
                {"quality": 3},
                {"optimize": True},
            )
        ),
        make_three_scans(),
        drop_intervals(0, 0),
        make_progressive(10),
    ],
)
def test_a_complete_jpeg_has_the_pixels_that_pillow_decodes(content: bytes) -> None:
    assert decode(content).tobytes() == Image.open(io.BytesIO(content)).convert("RGB").tobytes()


@pytest.mark.parametrize("colour", [(127, 127, 127), (128, 128, 128), (129, 129, 129)])
@pytest.mark.parametrize("progressive", [True, False])
def test_a_jpeg_that_ends_in_grey_is_accepted(colour: tuple[int, int, int], progressive: bool) -> None:
    image = decode(encode_image(Image.new("RGB", (50, 30), colour), "JPEG", progressive=progressive))
    assert image.getpixel((49, 29)) == colour


def test_only_the_metadata_of_a_jpeg_are_left_out() -> None:
    exif = Image.Exif()
    exif[0x010E] = "a description" * 1000
    content = encode_image(draw_image(0), "JPEG", exif=exif, comment=b"hello", icc_profile=bytes(100_000), dpi=(72, 72))
    trailed = content + b"a film that a telephone puts behind the image" * 100
    plain = np.asarray(decode(encode_image(draw_image(0), "JPEG")))
    assert (np.asarray(decode(content)) == plain).all() and (np.asarray(decode(trailed)) == plain).all()
    adobe = encode_image(draw_image(0).convert("CMYK"), "JPEG")
    assert (np.asarray(decode(adobe)) == np.asarray(Image.open(io.BytesIO(adobe)).convert("RGB"))).all()


def test_a_tiff_whose_strips_do_not_cover_it_is_corrupt() -> None:
    content = bytearray(encode_image(draw_image(0, width=64, height=64), "TIFF", tiffinfo={278: 8}))
    entries = struct.unpack_from("<I", content, 4)[0] + 2
    tags = {struct.unpack_from("<H", content, at)[0]: at for at in range(entries, entries + 12 * 10, 12)}
    for tag in (273, 279):
        struct.pack_into("<I", content, tags[tag] + 4, 3)
    assert "strips do not cover the whole image" in decode_refused({"image": bytes(content)}).message


@pytest.mark.parametrize("compression", ["packbits", "tiff_lzw", "tiff_adobe_deflate", "lzma", "zstd"])
def test_a_tiff_whose_strips_end_early_is_corrupt(compression: str) -> None:
    assert decode(make_tiff(compression)).size == (120, 96)
    for share in (0.01, 0.5, 0.9):
        assert decode_refused({"image": make_tiff(compression, share)}).kind == "corrupt_image"


@pytest.mark.parametrize("compression", ["group3", "group4", "tiff_ccitt", "jpeg"])
@pytest.mark.parametrize("share", [1, 0.01])
def test_a_tiff_whose_reader_hides_missing_data_is_refused_with_the_remedy(
    compression: str, share: float, capfd: pytest.CaptureFixture[str]
) -> None:
    error = decode_refused({"image": make_tiff(compression, share)})
    assert error.message.startswith(f"found a TIFF compressed as {compression}, whose decoder does not report")
    assert error.message.endswith("; save the image as PNG") and not error.retryable
    assert capfd.readouterr().err == "", "libtiff prints nothing; its warnings would fill a worker's log"


@pytest.mark.parametrize("content", INCOMPLETE_BMPS.values(), ids=INCOMPLETE_BMPS)
def test_a_bmp_whose_runs_leave_out_pixels_is_corrupt(content: bytes) -> None:
    error = decode_refused({"image": content})
    assert error.kind == "corrupt_image"
    if not is_older("12.2", "pillow"):  # earlier releases refuse some of the files themselves
        Image.open(io.BytesIO(content)).load()
        assert "the run-length encoding leaves out some pixels" in error.message


@pytest.mark.parametrize(
    ("runs", "bits"),
    [
        pytest.param((WHITE_ROW + b"\0\0") * 20 + b"\0\1", 8, id="a run a row"),
        pytest.param((b"\0\x13" + b"\xff" * 19 + b"\0\1\xff\0\0") * 20 + b"\0\1", 8, id="pixels that are no run"),
        pytest.param((b"\0\x12" + b"\xff" * 9 + b"\0\2\xff\0\0") * 20 + b"\0\1", 4, id="of four bits"),
    ],
)
def test_a_complete_run_length_encoded_bmp_is_accepted(runs: bytes, bits: int) -> None:
    assert np.asarray(decode(make_bmp(runs, bits=bits))).min() == 255


# Costs of decoding


def make_jpeg_of_scans(count: int) -> bytes:
    content = encode_image(draw_image(0), "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * count + content[-2:]


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded() -> None:
    scans = make_jpeg_of_scans(1).count(b"\xff\xda")
    assert decode(make_jpeg_of_scans(1), ImageLimits(max_scans=scans)).size == draw_image(0).size
    error = decode_refused({"image": make_jpeg_of_scans(200)})
    assert error.kind == "image_too_large" and not error.retryable
    assert f"a JPEG of {scans + 199} scans is over limits.max_scans=64" in error.message


def make_gif_of_comments() -> bytes:
    """Return a GIF with many comment blocks. Pillow joins them one by one, which takes quadratic time."""
    content = encode_image(PLAIN_IMAGE.quantize(4), "GIF")
    palette = 13 + 3 * (2 << (content[10] & 7))
    return content[:palette] + b"!\xfe" + (b"\xff" + b"a" * 255) * 60_000 + b"\0" + content[palette:]


def make_bmp_of_runs() -> bytes:
    """Return a run-length encoded BMP with 3 million runs, which Pillow decodes one by one."""
    data = b"\xff\x55" * 3_000_000
    header = struct.pack("<IiiHHIIiiII", 40, 200, 200, 1, 8, 1, len(data), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 1078 + len(data), 0, 0, 1078) + header + bytes(1024) + data


def make_png_of_empty_chunks() -> bytes:
    content = encode_image(PLAIN_IMAGE)
    return content[:33] + make_chunk(b"abCd", b"") * 1_000_000 + content[33:]


@pytest.mark.parametrize("make", [make_gif_of_comments, make_bmp_of_runs, make_png_of_empty_chunks])
def test_decoding_stops_at_the_time_limit(make: Callable[[], bytes]) -> None:
    error = decode_refused({"image": make()}, ImageLimits(max_seconds=0.1))
    assert (error.kind, error.retryable) == ("image_too_slow", True)
    assert "more than limits.max_seconds=0.1 of processor time" in error.message and "raise the limit" in error.message


def test_a_tiff_whose_tags_share_the_same_bytes_is_corrupt() -> None:
    tags = [(256, 4, 1, 8), (257, 4, 1, 8), *((tag, 7, 1_000_000, 0) for tag in range(1000, 2000))]
    content = b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags)
    error = decode_refused({"image": content + bytes(1_000_000)}, ImageLimits())
    found = "the same bytes over and over" if is_older("13", "pillow") else "found something else"
    assert error.kind == "corrupt_image" and found in error.message


def test_a_jpeg_with_too_many_segments_is_corrupt() -> None:
    content = encode_image(PLAIN_IMAGE, "JPEG")
    error = decode_refused({"image": content[:20] + b"\xff\xe1\0\2" * 200_000 + content[20:]})
    assert error.kind == "corrupt_image" and "segments" in error.message


FILES_TO_MUTATE = {
    "png": encode_image(draw_image(0)),
    "palette-png": encode_image(draw_image(0).quantize(16)),
    "jpeg": encode_image(draw_image(0), "JPEG"),
    "progressive-jpeg": encode_image(draw_image(0), "JPEG", progressive=True),
    "webp": encode_image(draw_image(0), "WEBP"),
    "lossless-webp": encode_image(draw_image(0), "WEBP", lossless=True),
    "gif": encode_image(draw_image(0).quantize(16), "GIF", save_all=True, append_images=[draw_image(1).quantize(16)]),
    "bmp": encode_image(draw_image(0), "BMP"),
    "tiff": encode_image(draw_image(0), "TIFF"),
    "lzw-tiff": encode_image(draw_image(0), "TIFF", compression="tiff_lzw"),
    "jpeg-tiff": encode_image(draw_image(0), "TIFF", compression="jpeg"),
}
SHARES = st.floats(0, 1)
MUTATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), SHARES, st.binary(min_size=1, max_size=4)),
        st.tuples(st.just("insert"), SHARES, st.binary(min_size=1, max_size=20)),
        st.tuples(st.just("cut"), SHARES, SHARES),
        st.tuples(st.just("repeat"), SHARES, SHARES),
    ),
    min_size=1,
    max_size=6,
)


def mutate(content: bytes, mutations: list[tuple[str, float, Any]]) -> bytes:
    for kind, share, detail in mutations:
        place = int(share * len(content))
        if kind == "set":
            content = content[:place] + detail + content[place + len(detail) :]
        elif kind == "insert":
            content = content[:place] + detail + content[place:]
        else:
            stop = min(len(content), place + int(detail * 100) + 1)
            content = content[:place] + (content[place:stop] * 3 if kind == "repeat" else b"") + content[stop:]
    return content


@pytest.mark.parametrize("seed", FILES_TO_MUTATE)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(derandomize=True, max_examples=60, deadline=None, database=None)
@given(mutations=MUTATIONS)
def test_any_bytes_become_an_image_within_the_limits_or_a_row_error(seed: str, mutations: Any) -> None:
    result = decode_row_image({"image": mutate(FILES_TO_MUTATE[seed], mutations)}, LIMITS, refuse_fetch)
    if isinstance(result, RowError):
        kinds = ("corrupt_image", "corrupt_video", "image_too_large", "missing_image", "too_many_images")
        assert result.kind in kinds and result.message
    else:
        assert result.mode == "RGB" and result.width * result.height <= LIMITS.max_pixels


@pytest.mark.parametrize("colour", [(220, 120, 40, 0), (220, 120, 40, 128)])
def test_transparency_is_ignored_as_the_released_code_does(colour: tuple[int, int, int, int]) -> None:
    assert decode(encode_image(Image.new("RGBA", (4, 4), colour))).getpixel((0, 0)) == ORANGE


def test_an_exif_orientation_is_ignored_as_the_released_code_does() -> None:
    orientation = Image.Exif()
    orientation[0x0112] = 6
    assert decode(encode_image(PLAIN_IMAGE, "JPEG", exif=orientation)).size == (20, 10)


@pytest.mark.parametrize("value", ["outputs/a.png", 7, 0, 1.5, True, [1, 2], [[1.0], [2.0]]])
@pytest.mark.parametrize("bare", [True, False])
def test_a_value_that_is_not_bytes_is_refused_with_its_type(value: Any, bare: bool) -> None:
    error = decode_refused({"image": value if bare else {"bytes": value, "path": None}, "uri": "a.png"})
    assert error.kind == "corrupt_image" and not error.retryable
    assert ("text" if isinstance(value, str) else f"type {type(value).__name__};") in error.message


def test_a_uri_that_is_not_text_is_refused_and_not_fetched() -> None:
    error = decode_refused({"uri": 7})
    assert (error.kind, error.retryable) == ("unreadable_uri", False)


def test_the_image_struct_of_hugging_face_datasets_is_read() -> None:
    assert decode({"bytes": encode_image(PLAIN_IMAGE), "path": "a.png"}).size == (20, 10)


def test_a_uri_is_fetched_if_the_row_has_no_bytes() -> None:
    store = {"s3://bucket/a.png": encode_image(PLAIN_IMAGE)}
    image = decode_row_image({"image": None, "uri": "s3://bucket/a.png"}, LIMITS, store.__getitem__)
    assert isinstance(image, Image.Image)
    assert image.getpixel((0, 0)) == ORANGE


def test_a_uri_is_not_fetched_if_the_row_has_bytes() -> None:
    image = decode_row_image({"image": encode_image(PLAIN_IMAGE), "uri": "s3://bucket/a.png"}, LIMITS, refuse_fetch)
    assert isinstance(image, Image.Image)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (FileNotFoundError("gone"), "missing_image"),
        (PermissionError("denied"), "unreadable_uri"),
        (TimeoutError("slow"), "unreadable_uri"),
        (ValueError("Protocol not known: foo"), "unreadable_uri"),
        (PlumblineError("expected a local path or an address"), "unreadable_uri"),
        (RuntimeError("the client's own error"), "unreadable_uri"),
    ],
)
def test_a_uri_that_cannot_be_read_is_named_and_may_be_retried(raised: Exception, kind: str) -> None:
    def fetch(uri: str) -> bytes:
        raise raised

    error = decode_refused({"uri": "s3://bucket/a.png"}, fetch=fetch)
    assert (error.kind, error.retryable) == (kind, True)
    assert "s3://bucket/a.png" in error.message


def test_fetched_bytes_obey_the_limits_too() -> None:
    assert (
        decode_refused({"uri": "x"}, fetch=lambda uri: make_png_of_declared_size(9_000, 9_000)).kind
        == "image_too_large"
    )
    assert decode_refused({"uri": "x"}, fetch=lambda uri: b"nonsense").kind == "corrupt_image"


def test_a_given_image_id_is_kept_and_integers_become_text() -> None:
    given = read_image_row({"image_id": "cat-7", "prompt_id": "p", "image": b"x"}, "gen")
    integers = read_image_row({"image_id": 0, "prompt_id": 12, "image": b"x"}, "gen")
    assert given._asdict() == {"image_id": "cat-7", "prompt_id": "p", "generator": "gen"}
    assert (integers.image_id, integers.prompt_id) == ("0", "12")


def test_an_absent_image_id_is_a_hash_of_generator_prompt_and_content() -> None:
    record = {"prompt_id": "p", "image": b"content"}
    image_id = read_image_row(record, "gen").image_id
    assert image_id == "52f58153f2cb575d", "a change of the ids would break every join with stored tables"
    as_struct = {"prompt_id": "p", "image": {"bytes": b"content", "path": "elsewhere.png"}, "image_id": None}
    assert read_image_row(as_struct, "gen").image_id == image_id
    others = [
        read_image_row(record, "other").image_id,
        read_image_row({**record, "prompt_id": "q"}, "gen").image_id,
        read_image_row({**record, "image": b"other"}, "gen").image_id,
        read_image_row({"prompt_id": "p", "uri": "s3://b/1.png"}, "gen").image_id,
        read_image_row({"prompt_id": "p", "uri": "s3://b/2.png"}, "gen").image_id,
    ]
    assert len({image_id, *others}) == 6


def compute_mean_colour(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image).mean(axis=(0, 1)))


def test_a_row_without_prompt_id_is_not_even_fetched() -> None:
    table = pa.table({"prompt_id": pa.array([None], pa.string()), "uri": ["s3://bucket/a.png"]})
    fetched: list[str] = []
    prepared = prepare_images(table, "gen", preprocess=compute_mean_colour, limits=LIMITS, fetch=fetched.append)  # type: ignore[arg-type,return-value]
    assert [error and error.kind for error in prepared.errors] == ["missing_prompt_id"] and not fetched
    assert prepared.rows[0].image_id is not None


@pytest.mark.parametrize("raised", [ValueError("no"), OSError("no"), MemoryError(), RuntimeError("no")])
def test_an_image_that_cannot_be_preprocessed_fails_alone(raised: Exception) -> None:
    def preprocess(image: Image.Image) -> torch.Tensor:
        if image.width == 5:
            raise raised
        return compute_mean_colour(image)

    contents = [encode_image(draw_image(0, width=width)) for width in (4, 5, 6)]
    prepared = prepare_images(
        make_image_table(contents, ["a"] * 3), "gen", preprocess=preprocess, limits=LIMITS, fetch=refuse_fetch
    )
    assert [error is None for error in prepared.errors] == [True, False, True]
    assert len(prepared.pixels) == 2


@contextmanager
def limit_memory(size: int) -> Iterator[None]:
    """Limit the growth of this process's address space to `size` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("backend", ["likelihood", "similarity"])
def test_a_sliver_that_preprocessing_would_blow_up_fails_alone(
    backend: str, likelihood: ClipFlanT5Likelihood, similarity: ClipSimilarity
) -> None:
    """A 2,000,000 x 1 image has 2 megapixels, but would have 4 terapixels after padding or resizing."""
    preprocess = likelihood.preprocess if backend == "likelihood" else similarity.preprocess
    contents = [encode_image(draw_image(0)), encode_image(Image.new("L", (2_000_000, 1))), encode_image(draw_image(1))]
    with limit_memory(1_000_000_000):
        prepared = prepare_images(
            make_image_table(contents, ["a"] * 3),
            "gen",
            preprocess=preprocess,
            limits=ImageLimits(),
            fetch=refuse_fetch,
        )
    assert [error and error.kind for error in prepared.errors] == [None, "image_too_large", None]


def test_preparing_an_empty_shard_returns_nothing() -> None:
    prepared = prepare_images(
        make_image_table([], []), "gen", preprocess=compute_mean_colour, limits=LIMITS, fetch=refuse_fetch
    )
    assert prepared == PreparedImages()


# Images decoded in parallel


def test_threads_change_neither_the_order_nor_the_errors_nor_the_pixels() -> None:
    sizes = [(40 - number, 8) for number in range(30)]
    contents: list[Any] = [encode_image(draw_image(number, width=w, height=h)) for number, (w, h) in enumerate(sizes)]
    contents[3], contents[17] = b"broken", None
    table = make_image_table(contents, [f"p{number}" for number in range(30)])

    def prepare(decoders: int) -> PreparedImages:
        return prepare_images(
            table, "gen", preprocess=compute_mean_colour, limits=LIMITS, fetch=refuse_fetch, decoders=decoders,
            is_known=lambda place, row, digest, sources: place in (5, 6),
        )  # fmt: skip

    one, four = prepare(1), prepare(4)
    assert torch.equal(torch.stack(one.pixels), torch.stack(four.pixels))
    assert (one.rows, one.digests, one.errors, one.row_numbers, one.counts) == (
        four.rows, four.digests, four.errors, four.row_numbers, four.counts,
    )  # fmt: skip
    assert one.row_numbers == [number for number in range(30) if number not in (5, 6)]
    assert [row.prompt_id for row, count in zip(one.rows, one.counts, strict=True) if count == 0] == ["p3", "p17"]


def test_as_many_images_are_decoded_in_parallel_as_there_are_decoders_and_more_are_fetched() -> None:
    decoding, fetching = threading.Barrier(3), threading.Barrier(6)
    most, running, lock = 0, 0, threading.Lock()

    def fetch(uri: str) -> bytes:
        fetching.wait(timeout=60)
        return encode_image(PLAIN_IMAGE)

    def preprocess(image: Image.Image) -> torch.Tensor:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        decoding.wait(timeout=60)
        with lock:
            running -= 1
        return compute_mean_colour(image)

    table = pa.table({"prompt_id": ["p"] * 12, "uri": [f"{number}.png" for number in range(12)]})
    prepared = prepare_images(table, "gen", preprocess=preprocess, limits=LIMITS, fetch=fetch, decoders=3)
    assert prepared.errors == [None] * 12 and most == 3


def test_the_processor_time_of_an_image_is_measured_in_its_own_thread() -> None:
    """Processor time that other threads use does not count, and each image has its own limit."""
    costly, sound = make_png_of_empty_chunks(), encode_image(draw_image(0, width=300, height=300))
    limits = ImageLimits(max_seconds=0.3)
    prepared = prepare_images(
        make_image_table([costly, *[sound] * 40, costly], ["p"] * 42), "gen",
        preprocess=compute_mean_colour, limits=limits, fetch=refuse_fetch, decoders=4,
    )  # fmt: skip
    kinds = [error and error.kind for error in prepared.errors]
    assert kinds == ["image_too_slow", *[None] * 40, "image_too_slow"]


# Rows of several images


def read_image_lists(images: Any, uris: Any = None, **options: Any) -> PreparedImages:
    table = pa.table({"prompt_id": ["p"] * len(images), "image": images, "uri": uris or [None] * len(images)})
    given = {"preprocess": compute_mean_colour, "limits": LIMITS, "fetch": refuse_fetch}
    return prepare_images(table, "gen", **(given | options))


GREY_IMAGES = [encode_image(Image.new("RGB", (4, 4), (grey, grey, grey))) for grey in (10, 20, 30, 40)]


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: {"bytes": one, "path": "a.png"}])
def test_a_row_of_several_images_has_the_pixels_of_all_in_order(wrap: Callable[[bytes], Any]) -> None:
    rows = [[wrap(grey) for grey in part] for part in (GREY_IMAGES[:1], GREY_IMAGES[1:4], GREY_IMAGES[3:])]
    prepared = read_image_lists(rows)
    assert [pixels[0].item() for pixels in prepared.pixels] == [10, 20, 30, 40, 40]
    assert prepared.counts == [1, 3, 1] and prepared.errors == [None] * 3


def test_several_images_may_mix_bytes_and_addresses() -> None:
    store = dict(zip("abcd", GREY_IMAGES, strict=True))
    prepared = read_image_lists([None, [GREY_IMAGES[3], None]], [["a", "b"], [None, "c"]], fetch=store.__getitem__)
    assert [pixels[0].item() for pixels in prepared.pixels] == [10, 20, 40, 30]


@pytest.mark.parametrize(
    ("images", "uris", "kind", "message"),
    [
        ([GREY_IMAGES[0], b"broken", GREY_IMAGES[1]], None, "corrupt_image", "image 2 of 3: expected an image"),
        ([GREY_IMAGES[0], None], None, "missing_image", "image 2 of 2: the row has neither"),
        (None, ["a", "b"], "missing_image", "image 2 of 2: nothing at 'b'"),
        ([GREY_IMAGES[0]] * 3 + [b"x" * 2_000_000], None, "image_too_large", "image 4 of 4: a file of"),
        ([], None, "missing_image", "the row has neither"),
        (None, [], "missing_image", "the row has neither"),
        ([b"broken"], None, "corrupt_image", "expected an image"),
        ([GREY_IMAGES[0]] * 65, None, "too_many_images", "65 images in the row, but limits.max_images=64"),
    ],
)
def test_a_row_with_one_bad_image_is_an_error_that_names_it(images: Any, uris: Any, kind: str, message: str) -> None:
    def fetch(uri: str) -> bytes:
        if uri != "a":
            raise FileNotFoundError(uri)
        return GREY_IMAGES[0]

    prepared = read_image_lists([images, GREY_IMAGES[:2]], [uris, None], fetch=fetch)
    error = prepared.errors[0]
    assert error is not None and error.kind == kind and error.message.startswith(message)
    assert prepared.counts == [0, 2] and len(prepared.pixels) == 2, "a row's images are complete"


def test_a_limit_of_one_image_refuses_a_row_of_several() -> None:
    prepared = read_image_lists([GREY_IMAGES[:1], GREY_IMAGES[:2]], limits=ImageLimits(max_images=1))
    assert [error and error.kind for error in prepared.errors] == [None, "too_many_images"]
    assert "2 images in the row, but limits.max_images=1" in str(prepared.errors[1])


def test_a_list_of_one_image_is_that_image() -> None:
    bare, listed = read_image_lists([GREY_IMAGES[0]]), read_image_lists([[GREY_IMAGES[0]]])
    assert bare.digests == listed.digests == [hashlib.sha256(GREY_IMAGES[0]).hexdigest()[:16]]
    assert bare.rows == listed.rows


def test_the_digest_and_the_id_of_a_row_cover_all_of_its_images_in_order() -> None:
    rows = [GREY_IMAGES[:2], GREY_IMAGES[1::-1], GREY_IMAGES[:3], GREY_IMAGES[:1], [GREY_IMAGES[0] + GREY_IMAGES[1]]]
    prepared = read_image_lists(rows)
    assert len(set(prepared.digests)) == len({row.image_id for row in prepared.rows}) == len(rows)


def test_limits_admit_images_decoded_under_tighter_limits_but_not_in_another_way() -> None:
    ours, tighter = ImageLimits(), ImageLimits(max_images=8)
    assert ours.accepts_all_of(tighter.list_key_properties()) and ours.accepts_all_of(ours.list_key_properties())
    assert not tighter.accepts_all_of(ours.list_key_properties())
    assert not ours.accepts_all_of({**ours.list_key_properties(), "decoding": 0})
    assert not ours.accepts_all_of({})


def test_the_thumbnail_of_a_row_of_several_images_shows_the_first() -> None:
    image = decode([GREY_IMAGES[1], GREY_IMAGES[0]])
    assert image.getpixel((0, 0)) == (20, 20, 20)

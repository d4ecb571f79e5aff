"""Animations are read as videos, and a file with several images is never reduced to its first image."""

import io
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.images.decoding import ImageLimits, decode_bytes, decode_each
from plumbline.operators.images.videos import FRAME_SECONDS_KEY, Clips

SAVE_OPTIONS_BY_FORMAT: dict[str, dict[str, Any]] = {
    "GIF": {},
    "WEBP": {"lossless": True},
    "PNG": {},
    "AVIF": {"quality": 100},
}
IMAGE_SIZE = (64, 48)


def draw_square(shade: int) -> Image.Image:
    image = Image.new("RGB", IMAGE_SIZE, (shade, shade, shade))
    image.putpixel((0, 0), (255 - shade, 0, 0))
    return image


def animate(kind: str, shades: Sequence[int], delays: Sequence[int] | int = 100, **options: Any) -> bytes:
    sink = io.BytesIO()
    first, *others = map(draw_square, shades)
    options = {"save_all": True, "append_images": others, "duration": delays, **SAVE_OPTIONS_BY_FORMAT[kind], **options}
    first.save(sink, kind, **options)
    return sink.getvalue()


def make_still(kind: str, shade: int = 40) -> bytes:
    sink = io.BytesIO()
    draw_square(shade).save(sink, kind, **({} if kind == "TIFF" else SAVE_OPTIONS_BY_FORMAT[kind]))
    return sink.getvalue()


def sample_frames(encoded: bytes, clips: Clips | None = None) -> list[int]:
    frames = list(decode_each(encoded, ImageLimits(), clips or Clips()))
    assert all(
        isinstance(frame, Image.Image) and (frame.mode, frame.size) == ("RGB", IMAGE_SIZE) for frame in frames
    ), frames
    return [int(np.asarray(frame)[24, 32, 0]) for frame in frames]


def decode_refused(encoded: bytes, limits: ImageLimits | None = None) -> RowError:
    *_, last = decode_each(encoded, limits or ImageLimits(), Clips())
    assert isinstance(last, RowError), last
    return last


@pytest.mark.parametrize("kind", SAVE_OPTIONS_BY_FORMAT)
@pytest.mark.parametrize("seed", range(4))
def test_frames_are_sampled_evenly_from_the_first_to_the_last(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    shades = rng.sample(range(10, 240, 3), rng.randint(2, 30))
    encoded = animate(kind, shades)
    for count in (1, 3, 4, 9):
        taken = min(count, len(shades))
        places = [place * (len(shades) - 1) // max(taken - 1, 1) for place in range(taken)]
        assert sample_frames(encoded, Clips(frames=count)) == pytest.approx([shades[place] for place in places], abs=2)


@pytest.mark.parametrize("kind", SAVE_OPTIONS_BY_FORMAT)
@pytest.mark.parametrize("seed", range(4))
def test_a_frame_counts_in_proportion_to_its_delay(kind: str, seed: int) -> None:
    """Although encoders merge identical frames, the frames that are sampled must equal those of the original video."""
    rng = random.Random(seed)
    shades = rng.sample(range(10, 240, 3), 6)
    repeats = [1, *(rng.randint(1, 7) for _ in shades[1:])]
    video = [shade for shade, times in zip(shades, repeats, strict=True) for _ in range(times)]
    encoded = animate(kind, shades, [40 * times for times in repeats])
    places = [place * (len(video) - 1) // 3 for place in range(4)]
    assert sample_frames(encoded) == pytest.approx([video[place] for place in places], abs=2)
    frames = [frame for frame in decode_each(encoded, ImageLimits(), Clips()) if isinstance(frame, Image.Image)]
    assert [frame.info[FRAME_SECONDS_KEY] for frame in frames] == pytest.approx([0.04 * len(video) / 4] * 4)
    assert len(sample_frames(encoded, Clips(rate=10))) == max(4, 2 * round(0.04 * len(video) * 10 / 2))


@pytest.mark.parametrize("kind", ["GIF", "PNG"])
def test_an_image_without_a_delay_is_shown_for_a_tenth_of_a_second(kind: str) -> None:
    frames = decode_each(animate(kind, range(20, 220, 20), 0), ImageLimits(), Clips())
    assert [frame.info[FRAME_SECONDS_KEY] for frame in frames if isinstance(frame, Image.Image)] == pytest.approx(
        [0.25] * 4
    )


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_image_is_drawn_over_the_images_before_it(kind: str) -> None:
    """Each frame adds one square to the frame before it, so the file may store only the differences."""
    drawn = []
    for number in range(8):
        image = drawn[-1].copy() if drawn else Image.new("RGB", IMAGE_SIZE, "white")
        image.paste((number * 30, 0, 0), (number * 8, 0, number * 8 + 8, 48))
        drawn.append(image)
    sink = io.BytesIO()
    drawn[0].save(sink, kind, save_all=True, append_images=drawn[1:], duration=50, **SAVE_OPTIONS_BY_FORMAT[kind])
    frames = list(decode_each(sink.getvalue(), ImageLimits(), Clips(frames=8)))
    for frame, image in zip(frames, drawn, strict=True):
        assert isinstance(frame, Image.Image)
        assert np.abs(np.asarray(frame).astype(int) - np.asarray(image)).max() <= 1


def test_the_fallback_image_for_readers_without_animations_is_ignored() -> None:
    encoded = animate("PNG", [200, 20, 40, 60, 80], default_image=True)
    assert sample_frames(encoded) == [20, 40, 60, 80]


@pytest.mark.parametrize("kind", SAVE_OPTIONS_BY_FORMAT)
def test_a_file_with_one_image_is_read_as_an_image(kind: str) -> None:
    assert sample_frames(make_still(kind)) == pytest.approx([40], abs=2)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
@pytest.mark.parametrize("share", [0.4, 0.7, 0.95, 0.999])
def test_an_animation_that_ends_early_is_refused(kind: str, share: float) -> None:
    encoded = animate(kind, range(20, 220, 10))
    error = decode_refused(encoded[: int(share * len(encoded))])
    assert error.kind in ("corrupt_video", "corrupt_image") and not error.retryable


@pytest.mark.parametrize("kind", SAVE_OPTIONS_BY_FORMAT)
def test_limits_hold_for_animations(kind: str) -> None:
    encoded = animate(kind, range(20, 220, 10))
    assert decode_refused(encoded, ImageLimits(max_pixels=64 * 48 - 1)).kind == "image_too_large"
    assert decode_refused(encoded, ImageLimits(max_bytes=len(encoded) - 1)).kind == "image_too_large"
    error = decode_refused(encoded, ImageLimits(max_seconds=1e-9))
    assert (error.kind, error.retryable) == ("image_too_slow", True)


def test_an_animation_with_too_many_images_or_one_outside_its_canvas_is_refused() -> None:
    control, picture = b"\x21\xf9\x04\0\x0a\0\0\0", b"\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0"
    header = b"GIF89a\x01\0\x01\0\x80\0\0" + bytes(6)
    far = picture[:1] + b"\xff\xff\xff\xff" + picture[5:]
    assert decode_refused(header + control + picture + control + far + b";").kind == "image_too_large"
    assert "over 10000 frames" in decode_refused(header + picture * 10_001 + b";").message
    assert len(list(decode_each(header + picture * 3 + b";", ImageLimits(), Clips()))) == 3


@pytest.mark.parametrize("kind", SAVE_OPTIONS_BY_FORMAT)
def test_an_animation_is_refused_as_a_mask_and_as_a_drawn_image(kind: str) -> None:
    error = decode_bytes(animate(kind, range(20, 220, 10)), ImageLimits())
    assert isinstance(error, RowError) and error.kind == "too_many_images" and "save the intended one" in error.message


def test_a_tiff_of_several_pages_is_refused_unless_they_are_smaller_copies() -> None:
    sink = io.BytesIO()
    draw_square(40).save(sink, "TIFF", save_all=True, append_images=[draw_square(80), draw_square(120)])
    error = decode_refused(sink.getvalue())
    assert error.kind == "too_many_images" and "a TIFF with 3 pages" in error.message
    sink, small = io.BytesIO(), draw_square(80).resize((32, 24))
    small.encoderinfo = {"tiffinfo": {254: 1}}  # type: ignore[attr-defined]
    draw_square(40).save(sink, "TIFF", save_all=True, append_images=[small])
    assert sample_frames(sink.getvalue()) == [40]
    assert sample_frames(make_still("TIFF")) == [40]


@pytest.mark.parametrize(
    ("encoded", "words"),
    [((b"\x47" + bytes(187)) * 4, "an MPEG transport stream; convert it to MP4"),
     (b"FLV\x01" + bytes(40), "a Flash video; convert it to MP4")],
)  # fmt: skip
def test_an_unknown_kind_of_video_is_refused_with_the_known_kinds(encoded: bytes, words: str) -> None:
    error = decode_refused(encoded)
    assert error.message.endswith(words) and "MP4, MOV, WebM, Matroska, AVI" in error.message

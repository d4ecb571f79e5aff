"""Frames are sampled from videos at the documented positions, and unusable video files are refused."""

from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.images.decoding import ImageLimits, decode_each
from plumbline.operators.images.preparing import prepare_images
from plumbline.operators.images.videos import Clips, make_grid
from tests.operators.tiny import encode_image, refuse_fetch

FRAME_SIZE = (64, 48)
GREY_LEVELS = np.linspace(16, 235, 20).astype(int)
VIDEO_FORMATS = {
    "mp4": ("mp4", "libx264", {}),
    "mp4, index first": ("mp4", "libx264", {"movflags": "faststart"}),
    "mp4 in fragments": ("mp4", "libx264", {"movflags": "frag_keyframe+empty_moov"}),
    "mov": ("mov", "mpeg4", {}),
    "webm": ("webm", "libvpx-vp9", {}),
    "webm, vp8": ("webm", "libvpx", {}),
    "matroska": ("matroska", "libx264", {}),
    "avi": ("avi", "mpeg4", {}),
}


def write_video(path: Path, kind: str, shades: np.ndarray = GREY_LEVELS, size: tuple[int, int] = FRAME_SIZE) -> bytes:
    """Write a video whose n-th frame has the n-th grey level, and return its bytes."""
    container, codec, options = VIDEO_FORMATS[kind]
    with av.open(path, "w", format=container, options=options) as file:
        stream = file.add_stream(codec, rate=8)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for shade in shades:
            pixels = np.full((size[1], size[0], 3), shade, dtype=np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode())
    return path.read_bytes()


def read_shades(clip: bytes, clips: Clips) -> list[float]:
    frames = list(decode_each(clip, ImageLimits(), clips))
    assert all(
        isinstance(frame, Image.Image) and (frame.mode, frame.size) == ("RGB", FRAME_SIZE) for frame in frames
    ), frames
    return [float(np.asarray(frame).mean()) for frame in frames]


def decode_refused(clip: bytes, limits: ImageLimits | None = None) -> RowError:
    *_, last = decode_each(clip, limits or ImageLimits(), Clips())
    assert isinstance(last, RowError), "the clip is refused"
    return last


@pytest.mark.parametrize("kind", VIDEO_FORMATS)
@pytest.mark.parametrize(("count", "places"), [(4, [0, 6, 12, 19]), (1, [0]), (2, [0, 19]), (50, list(range(20)))])
def test_frames_are_sampled_evenly_from_the_first_to_the_last(
    kind: str, count: int, places: list[int], tmp_path: Path
) -> None:
    """Sample k of `count` from n frames is frame floor(k (n - 1) / (count - 1)); shorter videos are used in full."""
    clip = write_video(tmp_path / "clip", kind)
    assert read_shades(clip, Clips(frames=count)) == pytest.approx(GREY_LEVELS[places], abs=4)


@pytest.mark.parametrize("kind", VIDEO_FORMATS)
@pytest.mark.parametrize(
    ("rate", "places"), [(0.1, [0, 6, 13, 19]), (2, [0, 6, 13, 19]), (3, [0, 3, 5, 8, 11, 14, 16, 19])]
)
def test_sampling_by_frame_rate_equals_qwen_vl_utils(kind: str, rate: float, places: list[int], tmp_path: Path) -> None:
    """The number of sampled frames is rounded to an even number, and is at least 4.

    The video has 20 frames at 8 fps (2.5 s): before rounding, 2 fps gives 5 frames and 3 fps gives 7.5.
    """
    clip = write_video(tmp_path / "clip", kind)
    assert read_shades(clip, Clips(rate=rate)) == pytest.approx(GREY_LEVELS[places], abs=4)
    assert read_shades(clip, Clips(rate=100)) == pytest.approx(GREY_LEVELS, abs=4)


@pytest.mark.parametrize("kind", VIDEO_FORMATS)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9, 0.97, 0.99])
def test_a_clip_that_ends_early_is_refused(kind: str, share: float, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip", kind)
    error = decode_refused(clip[: int(share * len(clip))])
    assert (error.kind, error.retryable) == ("corrupt_video", False)
    assert error.message.startswith("the video does not decode: ") and error.message.endswith("; generate it again")


@pytest.mark.parametrize("kind", VIDEO_FORMATS)
def test_a_video_with_flipped_bytes_is_decoded_or_refused(kind: str, tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip", kind)
    rng = np.random.default_rng(0)
    for _ in range(20):
        turned = bytearray(clip)
        first = int(rng.integers(16, len(clip) - 8))
        turned[first : first + 8] = bytes(byte ^ 0xFF for byte in turned[first : first + 8])
        for frame in decode_each(bytes(turned), ImageLimits(), Clips()):
            assert isinstance(frame, Image.Image) or frame.kind in ("corrupt_video", "image_too_large")


def test_limits_hold_for_videos(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "clip", "mp4")
    assert decode_refused(clip, ImageLimits(max_bytes=len(clip) - 1)).kind == "image_too_large"
    assert decode_refused(clip, ImageLimits(max_pixels=64 * 48 - 1)).kind == "image_too_large"
    error = decode_refused(clip, ImageLimits(max_seconds=1e-9))
    assert (error.kind, error.retryable) == ("image_too_slow", True)


def test_a_sound_file_without_images_is_not_a_video(tmp_path: Path) -> None:
    path = tmp_path / "sound.mp4"
    with av.open(path, "w") as file:
        stream = file.add_stream("aac", rate=8000)
        assert isinstance(stream, av.AudioStream)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    assert "the file has no video stream" in decode_refused(path.read_bytes()).message


def test_a_list_of_files_is_not_a_video(tmp_path: Path) -> None:
    """FFmpeg would read every file that the list names."""
    write_video(tmp_path / "clip.mp4", "mp4")
    listing = f"ffconcat version 1.0\nfile {tmp_path}/clip.mp4\n".encode()
    playlist = f"#EXTM3U\n#EXTINF:1,\n{tmp_path}/clip.mp4\n#EXT-X-ENDLIST\n".encode()
    assert decode_refused(listing).kind == decode_refused(playlist).kind == "corrupt_image"


def test_a_grid_is_read_row_by_row() -> None:
    frames = [Image.new("RGB", (6, 4), (shade, 0, 0)) for shade in (10, 20, 30, 40, 50)]
    whole = make_grid([*frames[:4], frames[4].resize((12, 8))])
    assert whole.size == (18, 8)
    reds = [[whole.getpixel((6 * column, 4 * line)) for column in range(3)] for line in range(2)]
    assert reds == [[(10, 0, 0), (20, 0, 0), (30, 0, 0)], [(40, 0, 0), (50, 0, 0), (0, 0, 0)]]
    assert make_grid(frames[:4]).size == (12, 8) and make_grid(frames[:1]).size == (6, 4)


@pytest.mark.parametrize(
    "count, frames, views",
    [
        (120, 4, [0, 30, 60, 90]),
        (120, 9, [0, 13, 26, 40, 53, 66, 80, 93, 106]),
        (7, 3, [0, 2, 4]),
        (3, 4, [0, 1, 2]),
        (4, 4, [0, 1, 2, 3]),
    ],
)
def test_images_of_a_list_are_sampled_uniformly(count: int, frames: int, views: list[int]) -> None:
    shades = np.random.default_rng(count).permutation(count).astype(np.uint8) * 2
    views_given = [encode_image(Image.new("RGB", (8, 8), (int(shade),) * 3)) for shade in shades]
    table = pa.table({"prompt_id": ["p"], "image_id": ["i"], "image": [views_given]})

    def select_shades(clips: Clips) -> list[float]:
        prepared = prepare_images(
            table, "g", preprocess=lambda image: float(np.asarray(image).mean()),
            limits=ImageLimits(max_images=120), fetch=refuse_fetch, clips=clips,
        )  # fmt: skip
        return list(prepared.pixels)

    assert select_shades(Clips(frames=frames, listed="sampled")) == [float(shades[view]) for view in views]
    assert select_shades(Clips(frames=frames)) == [float(shade) for shade in shades]


def test_sampling_zero_frames_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"clips.frames: expected at least 1, got 0"):
        Clips(frames=0)

"""A video is scored by the frames that a player would show: edit lists are applied and every frame is upright."""

import random
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition
from numpy.typing import NDArray
from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.images.decoding import ImageLimits, decode_each
from plumbline.operators.images.videos import Clips

WIDTH, HEIGHT = 128, 64
FRAME_RATE = 24
KEYFRAME_INTERVAL = 24
N_FRAMES = 96
CORNERS = ((-1, -1, 60), (1, -1, 110), (-1, 1, 160), (1, 1, 210))
"""The four corners, each with its horizontal and vertical direction from the centre and its grey level."""


def draw_numbered_frame(number: int) -> NDArray[np.uint8]:
    """Return a frame that encodes its own number in eight black or white bars, one per bit."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    for bit in range(8):
        pixels[:, bit * WIDTH // 8 : (bit + 1) * WIDTH // 8] = 255 * (number >> bit & 1)
    return pixels


def read_number(image: Image.Image | RowError) -> int:
    assert isinstance(image, Image.Image), image
    grey = np.asarray(image.convert("L").resize((WIDTH, HEIGHT)))
    return sum(int(grey[HEIGHT // 2, bit * WIDTH // 8 + WIDTH // 16] > 128) << bit for bit in range(8))


def record_video(
    path: Path,
    frames: Sequence[NDArray[np.uint8]] = tuple(map(draw_numbered_frame, range(N_FRAMES))),
    codec: str = "libx264",
    start: int = 0,
    matrix: Sequence[int] | None = None,
    aspect: Fraction | None = None,
    **options: str,
) -> Path:
    """Write a video whose first frame has the timestamp of frame number `start`; return its path."""
    with av.open(path, "w") as file:
        stream = file.add_stream(
            codec, rate=FRAME_RATE, options={"g": str(KEYFRAME_INTERVAL), "sc_threshold": "0", **options}
        )
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        stream.set_display_matrix(matrix)
        for place, pixels in enumerate(frames, start):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = place, Fraction(1, FRAME_RATE)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def trim_video(source: Path, target: Path, first: int, *, hidden: int = 0) -> Path:
    """Copy a video from keyframe number `first` on; return the copy's path.

    The edit list of the copy hides its first `hidden` frames.
    """
    with av.open(source) as before, av.open(target, "w") as after:
        video = before.streams.video[0]
        stream = after.add_stream_from_template(video)
        keyframes, shift = -1, 0
        for packet in before.demux(video):
            if not packet.size:
                continue
            assert packet.pts is not None and packet.dts is not None and packet.time_base is not None
            keyframes += packet.is_keyframe
            if keyframes < first:
                continue
            if not shift:
                shift = packet.pts + round(hidden / FRAME_RATE / packet.time_base)
            packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, stream
            after.mux(packet)
    return target


def iterate_boxes(mp4: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    while start < end:
        size, kind = struct.unpack_from(">I4s", mp4, start)
        yield kind, start, size
        start += size


def find_box(mp4: bytes, *kinds: bytes) -> tuple[int, int]:
    """Return the offset and the size of an MP4 box; `kinds` are the nested types that lead to it, outermost first."""
    start, end = 0, len(mp4)
    for kind in kinds:
        place, size = next((place, size) for found, place, size in iterate_boxes(mp4, start, end) if found == kind)
        start, end = place + 8, place + size
    return place, size


def write_edit_list(path: Path, target: Path, edits: Sequence[tuple[int, int]]) -> Path:
    """Write an MP4 with edit list entries (number of frames, first frame); a first frame of -1 is an empty edit."""
    with av.open(path) as file:
        video = file.streams.video[0]
        assert video.time_base is not None and video.start_time == 0
        ticks, unit = round(1 / FRAME_RATE / video.time_base), video.time_base.denominator
    mp4 = bytearray(path.read_bytes())
    old, size = find_box(mp4, b"moov", b"trak", b"edts")
    (delay,) = struct.unpack_from(
        ">i", mp4, old + 8 + 8 + 8 + 4
    )  # media time of the first frame, if frames are reordered
    entries = b"".join(
        struct.pack(">IiHH", ticks * count, -1 if first < 0 else delay + ticks * first, 1, 0) for count, first in edits
    )
    elst = struct.pack(">I4sII", 16 + len(entries), b"elst", 0, len(edits)) + entries
    for kinds in ((b"moov",), (b"moov", b"trak")):
        place, length = find_box(mp4, *kinds)
        struct.pack_into(">I", mp4, place, length + 8 + len(elst) - size)
    mp4[old : old + size] = struct.pack(">I4s", 8 + len(elst), b"edts") + elst
    total = ticks * sum(count for count, _ in edits)
    header, track = find_box(mp4, b"moov", b"mvhd")[0], find_box(mp4, b"moov", b"trak", b"tkhd")[0]
    struct.pack_into(">II", mp4, header + 8 + 12, unit, total)
    struct.pack_into(">I", mp4, track + 8 + 20, total)
    target.write_bytes(mp4)
    return target


def read_numbers(path: Path, clips: Clips | None = None) -> list[int]:
    return [read_number(frame) for frame in decode_each(path.read_bytes(), ImageLimits(), clips or Clips())]


def pick_evenly(shown: Sequence[int], count: int = 4) -> list[int]:
    count = min(count, len(shown))
    return [shown[place * (len(shown) - 1) // max(count - 1, 1)] for place in range(count)]


def test_frames_that_an_edit_list_hides_are_ignored(tmp_path: Path) -> None:
    """When an MP4 is trimmed without re-encoding, the file still starts at the keyframe before the cut."""
    source = record_video(tmp_path / "source.mp4")
    for hidden in (1, 9, 23):
        path = trim_video(source, tmp_path / f"{hidden}.mp4", first=2, hidden=hidden)
        shown = range(2 * KEYFRAME_INTERVAL + hidden, N_FRAMES)
        assert read_numbers(path) == pick_evenly(shown)
        assert len(read_numbers(path, Clips(rate=8))) == 2 * round(len(shown) / FRAME_RATE * 8 / 2)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_exactly_the_frames_of_an_edit_list_are_used(seed: int, codec: str, tmp_path: Path) -> None:
    """Edit lists can leave out frames anywhere, repeat frames, and delay the first frame."""
    rng = random.Random(seed)
    source = record_video(tmp_path / "source.mp4", codec=codec, bf=str(seed % 3))
    edits = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        first = rng.randrange(N_FRAMES - 1)
        edits.append((rng.randint(1, N_FRAMES - first), first))
    shown = [first + place for count, first in edits for place in range(count)]
    delay = [(rng.randint(1, 50), -1)] if rng.random() < 0.5 else []
    path = write_edit_list(source, tmp_path / "edited.mp4", [*delay, *edits])
    assert read_numbers(path) == pick_evenly(shown)
    assert read_numbers(path, Clips(frames=7)) == pick_evenly(shown, 7)


def test_a_file_that_lacks_frames_is_refused_even_with_an_edit_list(tmp_path: Path) -> None:
    edited = write_edit_list(record_video(tmp_path / "source.mp4"), tmp_path / "edited.mp4", [(30, 40)])
    mp4 = bytearray(edited.read_bytes())
    place, size = find_box(mp4, b"mdat")
    assert place + size < len(mp4), "the index comes after the frames"
    struct.pack_into(">I", mp4, place, 8 + size // 2)
    mp4[place + 8 + size // 2 : place + size] = b""
    (error,) = decode_each(bytes(mp4), ImageLimits(), Clips())
    assert isinstance(error, RowError) and error.kind == "corrupt_video"


@pytest.mark.parametrize("ending", ["mp4", "mov", "mkv"])
@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "mpeg2video"])
def test_frames_that_depend_on_cut_frames_are_ignored(codec: str, ending: str, tmp_path: Path) -> None:
    """A frame stored after a keyframe may be shown before the keyframe, and may depend on frames that were cut."""
    options = {"x264-params": "open-gop=1:bframes=3"} if codec == "libx264" else {"bf": "2"}
    source = record_video(tmp_path / "source.mp4", codec=codec, **options)
    path = trim_video(source, tmp_path / f"cut.{ending}", first=2)
    with av.open(path) as file:
        shown = [read_number(Image.fromarray(frame.to_ndarray(format="rgb24"))) for frame in file.decode(video=0)]
    assert shown == list(range(shown[0], N_FRAMES))
    assert read_numbers(path) == pick_evenly(shown)


@pytest.mark.parametrize("ending", ["mp4", "mov", "mkv", "webm"])
def test_a_video_that_does_not_start_at_zero_is_complete(ending: str, tmp_path: Path) -> None:
    options = {"codec": "libvpx", "deadline": "realtime"} if ending == "webm" else {"codec": "libx264"}
    for start in (1, 240):
        path = record_video(tmp_path / f"late.{ending}", start=start, **options)
        assert read_numbers(path) == pick_evenly(range(N_FRAMES))
        (error,) = decode_each(path.read_bytes()[:-900], ImageLimits(), Clips())
        assert isinstance(error, RowError) and error.kind == "corrupt_video"


def test_a_cover_image_is_not_the_video(tmp_path: Path) -> None:
    path = tmp_path / "covered.mp4"
    with av.open(path, "w") as file:
        cover, video = file.add_stream("png", rate=1), file.add_stream("libx264", rate=FRAME_RATE)
        assert isinstance(cover, av.VideoStream) and isinstance(video, av.VideoStream)
        cover.width, cover.height, cover.pix_fmt, cover.disposition = 200, 200, "rgb24", Disposition.attached_pic
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        file.mux(cover.encode(av.VideoFrame.from_ndarray(np.full((200, 200, 3), 99, np.uint8), format="rgb24")))
        for number in range(20):
            file.mux(video.encode(av.VideoFrame.from_ndarray(draw_numbered_frame(number), format="rgb24")))
        file.mux(video.encode())
    assert read_numbers(path) == pick_evenly(range(20))


def make_matrix(a: int, b: int, c: int, d: int) -> tuple[int, ...]:
    return (a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)


def draw_corners() -> NDArray[np.uint8]:
    pixels = np.full((HEIGHT, WIDTH, 3), 20, np.uint8)
    for right, below, shade in CORNERS:
        rows, columns = (slice(0, 24) if side < 0 else slice(-24, None) for side in (below, right))
        pixels[rows, columns] = shade
    return pixels


@pytest.mark.parametrize("ending", ["mp4", "mov", "mkv"])
@pytest.mark.parametrize(
    "abcd",
    [(1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0), (-1, 0, 0, 1), (1, 0, 0, -1), (0, 1, 1, 0),
     (0, -1, -1, 0)],
)  # fmt: skip
def test_a_frame_is_rotated_and_mirrored_by_its_display_matrix(
    abcd: tuple[int, int, int, int], ending: str, tmp_path: Path
) -> None:
    """A display matrix moves the point (x, y) to (a x + c y, b x + d y)."""
    a, b, c, d = abcd
    path = record_video(tmp_path / f"turned.{ending}", [draw_corners()] * 3, matrix=make_matrix(*abcd))
    frames = list(decode_each(path.read_bytes(), ImageLimits(), Clips()))
    for frame in frames:
        assert isinstance(frame, Image.Image)
        assert frame.size == ((WIDTH, HEIGHT) if a else (HEIGHT, WIDTH))
        for x, y, shade in CORNERS:
            right, below = a * x + c * y > 0, b * x + d * y > 0
            found = frame.getpixel((frame.width - 8 if right else 8, frame.height - 8 if below else 8))
            assert isinstance(found, tuple) and found[0] == pytest.approx(shade, abs=6)
    assert len(frames) == 3


def test_a_video_with_a_slanted_display_matrix_is_refused(tmp_path: Path) -> None:
    path = record_video(tmp_path / "leaning.mp4", matrix=(46341, 46341, 0, -46341, 46341, 0, 0, 0, 1 << 30))
    (error,) = decode_each(path.read_bytes(), ImageLimits(), Clips())
    assert isinstance(error, RowError) and "not a multiple of 90 degrees" in error.message


@pytest.mark.parametrize(
    ("aspect", "size"),
    [(Fraction(2), (256, 64)), (Fraction(2, 3), (128, 96)), (Fraction(1), (128, 64)), (Fraction(427, 428), (128, 64))],
)
def test_a_frame_is_shown_with_square_pixels(aspect: Fraction, size: tuple[int, int], tmp_path: Path) -> None:
    path = record_video(tmp_path / "squeezed.mp4", aspect=aspect)
    assert read_numbers(path) == pick_evenly(range(N_FRAMES))
    sizes = [getattr(frame, "size", frame) for frame in decode_each(path.read_bytes(), ImageLimits(), Clips())]
    assert sizes == [size] * 4


def test_limits_hold_for_the_shown_frames(tmp_path: Path) -> None:
    path = record_video(tmp_path / "squeezed.mp4", aspect=Fraction(20))
    (error,) = decode_each(path.read_bytes(), ImageLimits(), Clips())
    assert isinstance(error, RowError) and error.kind == "image_too_large"


@pytest.mark.parametrize("seed", range(4))
def test_the_frames_equal_those_of_the_ffmpeg_command(seed: int, tmp_path: Path) -> None:
    """The ffmpeg command itself rotates frames and applies edit lists."""
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        pytest.skip("the command ffmpeg is not installed")
    rng = random.Random(seed)
    source = record_video(tmp_path / "source.mp4", matrix=make_matrix(-1, 0, 0, -1))
    paths = [trim_video(source, tmp_path / "cut.mp4", first=rng.randint(0, 2), hidden=rng.randint(1, 20))]
    paths.append(trim_video(source, tmp_path / "cut.mkv", first=rng.randint(1, 2)))
    paths.append(write_edit_list(source, tmp_path / "edited.mp4", [(rng.randint(5, 40), rng.randrange(50))]))
    for path in paths:
        command = [
            ffmpeg,
            "-v",
            "error",
            "-i",
            str(path),
            "-vsync",
            "passthrough",
            "-f",
            "rawvideo",
            "-pix_fmt",
            "rgb24",
        ]
        raw = subprocess.run([*command, "-"], capture_output=True, check=True).stdout
        shown = np.frombuffer(raw, np.uint8).reshape(-1, HEIGHT, WIDTH, 3)
        frames = list(decode_each(path.read_bytes(), ImageLimits(), Clips()))
        for frame, place in zip(frames, pick_evenly(range(len(shown))), strict=True):
            difference = np.asarray(frame).astype(int) - shown[place]
            assert np.abs(difference).mean() < 2

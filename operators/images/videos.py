"""Rows of several images: samples the frames of a video, and chooses and arranges the images of a list."""

import io
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from PIL import Image

from plumbline.operators.base.bounds import AboveZero, BoundsChecked, Positive
from plumbline.operators.images.image_formats import BrokenImage, CostlyImage

if TYPE_CHECKING:
    import av
    from numpy.typing import NDArray

STILL_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
"""Brands of still images in files that are built like MP4."""
STRICT = {"err_detect": "explode"}
"""Makes a decoder fail if bits are wrong, instead of filling the gap with earlier pixels."""
FRAME_SECONDS = "frame_seconds"
"""Key in `info` of a sampled frame: the length of the part of the video that the frame represents."""
BOX_HEADER = 8
"""Bytes of the size and the kind of a box of an MP4 or MOV."""
RATED_FRAMES = 4, 768
"""Minimum and maximum frames of a video sampled by its seconds: FPS_MIN_FRAMES and FPS_MAX_FRAMES of qwen-vl-utils."""
SPARE_FRAMES = 1.5
"""Largest gap, in frames, between the end of a video's last frame and the video's declared duration."""
MAX_UNSQUARE = 0.01
"""Pixels that are nearly square are shown as they are: encoders round a video's sides to even numbers."""
DISPLAY_MATRIX = "DISPLAYMATRIX"
MAX_TILT = 0.01
NO_LAST_FRAME = "its data end before its last frame"
FrameTime = tuple[int, int]
"""When a frame is shown, in units of its stream, and how many frames before it have the same time: the last frame
before a cut within an edit list may have the time of the first frame after it."""


def demuxer_of(encoded: bytes) -> str | None:
    """Return FFmpeg's name of the demuxer for a video (MP4, MOV, WebM, Matroska, AVI) by its first bytes, or None.

    No other demuxers are tried: playlists and the like name other files.
    """
    if encoded[4:8] == b"ftyp" and encoded[8:12] not in STILL_BRANDS:
        return "mp4"
    if encoded.startswith(b"\x1aE\xdf\xa3"):
        return "matroska"
    if encoded.startswith(b"RIFF") and encoded[8:12] == b"AVI ":
        return "avi"
    return None


def sample_frames(
    encoded: bytes, demuxer: str, clips: "Clips", *, seconds: float, check: Callable[[int, int], Any]
) -> Iterator[Image.Image]:
    """Yield sampled frames of a video as RGB, evenly from the first to the last that a player shows.

    Frames are as a player shows them: turned and mirrored according to the file, and with square pixels. They are
    decoded one after the other, and none is kept. `check` is called with the width and height of each before it becomes
    an image, and may raise. Each has its FRAME_SECONDS.

    Raises BrokenImage if the video is damaged or ends early, CostlyImage after `seconds` of processor time.
    """
    import av

    av.logging.set_level(av.logging.PANIC)
    stop = time.thread_time() + seconds
    if _is_cut(encoded, demuxer, stop):
        raise BrokenImage("it ends before the size that it declares")
    try:
        times = _read_times(encoded, demuxer, stop)
        with _open(encoded, demuxer) as container:
            yield from _sample(container, times, clips, check, stop)
    except (av.FFmpegError, EOFError, IndexError, TypeError) as error:
        raise BrokenImage(str(getattr(error, "strerror", "") or error) or type(error).__name__) from error


def _sample(
    container: "av.container.InputContainer",
    times: Sequence["FrameTime"],
    clips: "Clips",
    check: Callable[[int, int], Any],
    stop: float,
) -> Iterator[Image.Image]:
    """Yield the sampled frames, out of those that are shown at `times`."""
    video = _find_video(container)
    check(video.width, video.height)
    frames = _decode(container, video, stop)
    first = next(frames, None)
    if first is None:
        raise BrokenImage(NO_LAST_FRAME)
    # A decoder leaves out the first frames of a cut video if they build on frames that were cut away.
    times = times[bisect_left(times, first[1]) :]
    length = _length(times) * float(video.time_base or 0)
    ratio = video.sample_aspect_ratio  # a Fraction by PyAV 18, its own type by 19
    aspect = Fraction(ratio.numerator, ratio.denominator) if ratio else None
    places = clips.places(len(times), float(len(times) / video.average_rate) if video.average_rate else length)
    wanted = iter([times[place] for place in places])
    target = next(wanted)
    for frame, shown in chain([first], frames):
        if shown < target:
            continue
        image = _show(frame, aspect, check)
        image.info[FRAME_SECONDS] = length / len(places)
        yield image
        if (following := next(wanted, None)) is None:
            return
        target = following
    raise BrokenImage(NO_LAST_FRAME)


def _find_video(container: "av.container.InputContainer") -> "av.VideoStream":
    """Return the stream that a player shows, not a cover picture. Raises BrokenImage without such a stream."""
    import av

    video = container.streams.best("video")
    if not isinstance(video, av.VideoStream):
        raise BrokenImage("it has no pictures")
    return video


def _decode(
    container: "av.container.InputContainer", video: "av.VideoStream", stop: float
) -> Iterator[tuple["av.VideoFrame", "FrameTime"]]:
    """Yield each frame that is shown, in order, with its time. Raises FFmpegError for damaged data."""
    import av

    video.codec_context.thread_count = 1  # so that this thread's time is all that is spent
    video.codec_context.options = STRICT
    start: int | None = None
    last: FrameTime | None = None
    leads_in = False
    for packet in container.demux(video):
        _require_time(stop)
        time_shown = packet.pts if packet.pts is not None else packet.dts
        start = time_shown if start is None else start
        early = time_shown is None or (start is not None and time_shown < start)
        hidden = packet.is_discard or (packet.size > 0 and early)
        leads_in = last is None and (leads_in or hidden)
        try:
            frames = packet.decode()
        except av.FFmpegError:
            if not hidden and not leads_in:
                raise
            continue  # the first frames of a cut video may name frames that were cut away
        for frame in frames:
            shown = frame.pts if frame.pts is not None else frame.dts
            if shown is None:
                raise BrokenImage("it does not say when a frame is shown")
            last = (shown, last[1] + 1 if last is not None and last[0] == shown else 0)
            yield frame, last


def _show(frame: "av.VideoFrame", aspect: Fraction | None, check: Callable[[int, int], Any]) -> Image.Image:
    """Return a frame as a player shows it: with square pixels, and turned and mirrored by its display matrix.

    FFmpeg's command turns frames too, but keeps pixels that are not square.
    """
    width, height = frame.width, frame.height
    if aspect and abs(aspect - 1) > MAX_UNSQUARE:
        # A player enlarges the shorter side of such a pixel, so that no detail is lost.
        width, height = (round(width * aspect), height) if aspect > 1 else (width, round(height / aspect))
    check(width, height)
    image = Image.fromarray(frame.to_ndarray(format="rgb24"))
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    matrix: Any = frame.side_data.get(DISPLAY_MATRIX)
    return image if matrix is None else _turn(image, np.frombuffer(bytes(matrix), np.int32, 9))


def _turn(image: Image.Image, matrix: "NDArray[np.int32]") -> Image.Image:
    """Return an image turned and mirrored by a display matrix (ISO/IEC 14496-12, sec. 6.2.2).

    A column x and a row y are shown at column a x + c y and row b x + d y. Raises BrokenImage for any other angle than
    multiples of 90 degrees.
    """
    a, b, c, d = (int(matrix[place]) for place in (0, 1, 3, 4))
    straight, crossed = abs(a) + abs(d), abs(b) + abs(c)
    if min(straight, crossed) > MAX_TILT * max(straight, crossed):
        raise BrokenImage("it is shown at an angle that is not a multiple of 90 degrees")
    right, down = a, d
    if crossed > straight:
        image, right, down = image.transpose(Image.Transpose.TRANSPOSE), c, b
    if right < 0:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if down < 0 else image


def _is_cut(encoded: bytes, demuxer: str, stop: float) -> bool:
    """Return True if a top-level part of the file declares more bytes than the file has; FFmpeg ignores the gap."""
    end: int | None = 0
    while end is not None and end < len(encoded):
        _require_time(stop)
        end = ENDS[demuxer](encoded, end)
    return end is not None and end > len(encoded)


def _box_end(mp4: bytes, start: int) -> int | None:
    """Return the end of a box, or None if the box does not declare it; the last box need not."""
    size = int.from_bytes(mp4[start : start + 4])
    size = int.from_bytes(mp4[start + 8 : start + 16]) if size == 1 else size
    return start + size if size >= BOX_HEADER and start + BOX_HEADER <= len(mp4) else None


def _riff_end(avi: bytes, start: int) -> int | None:
    size = int.from_bytes(avi[start + 4 : start + 8], "little")
    return start + 8 + size if size and avi.startswith(b"RIFF", start) else None


def _element_end(matroska: bytes, start: int) -> int | None:
    """Return the end of an EBML element; the first bits of its id and of its size give the length of each."""
    if not matroska[start]:
        return None
    size_start = start + 9 - matroska[start].bit_length()
    length = 9 - matroska[size_start].bit_length() if size_start < len(matroska) else 0
    unknown = (1 << 7 * length) - 1
    size = int.from_bytes(matroska[size_start : size_start + length]) & unknown
    return size_start + length + size if size != unknown else None


ENDS = {"mp4": _box_end, "avi": _riff_end, "matroska": _element_end}
"""Functions that return the end of the part of a file that begins at a place, by FFmpeg's name of the demuxer."""


def _length(times: Sequence[FrameTime]) -> float:
    """Return the time from the first frame to the end of the last, which is shown as long as an average frame."""
    return (times[-1][0] - times[0][0]) * len(times) / max(len(times) - 1, 1)


def _open(encoded: bytes, demuxer: str, **options: str) -> "av.container.InputContainer":
    import av

    return av.open(io.BytesIO(encoded), "r", format=demuxer, options=options, io_open=_refuse)


def _refuse(*_: object) -> None:
    """Refuse to open any file that the video names."""
    raise PermissionError


def _read_times(encoded: bytes, demuxer: str, stop: float) -> list[FrameTime]:
    """Return when each frame is shown, in order, without decoding any. Raises BrokenImage if some are missing."""
    with _open(encoded, demuxer) as container:
        video = _find_video(container)
        shown: list[int] = []
        end, count = 0.0, 0
        for packet in container.demux():
            _require_time(stop)
            if packet.is_corrupt:
                raise BrokenImage("its data end within a frame")
            start = packet.pts if packet.pts is not None else packet.dts
            if not packet.size or start is None or packet.time_base is None:
                continue
            count += packet.stream.index == video.index
            if packet.is_discard:  # an edit list hides it
                continue
            end = max(end, float((start + (packet.duration or 0)) * packet.time_base))
            if packet.stream.index == video.index:
                shown.append(start)
        if not shown:
            raise BrokenImage("it has no frame")
        shown.sort()
        if count < video.frames and _count_frames(encoded, demuxer, stop) < video.frames:
            raise BrokenImage(NO_LAST_FRAME)
        # In an edited video FFmpeg reports the time of a frame after a cut inexactly.
        if count == len(shown) and _ends_early(container, shown, float(video.time_base or 0), end):
            raise BrokenImage(NO_LAST_FRAME)
    return [(start, place - bisect_left(shown, start)) for place, start in enumerate(shown)]


def _count_frames(encoded: bytes, demuxer: str, stop: float) -> int:
    """Return the number of all frames, including those that an edit list leaves out."""
    with _open(encoded, demuxer, **({"ignore_editlist": "1"} if demuxer == "mp4" else {})) as container:
        count = 0
        for packet in container.demux(_find_video(container)):
            _require_time(stop)
            count += packet.size > 0
        return count


def _ends_early(container: "av.container.InputContainer", shown: Sequence[int], unit: float, end: float) -> bool:
    """Return True if every stream of the video ends before the declared duration."""
    if container.duration is None or len(shown) < 2:
        return False
    # Matroska, and MP4 with an edit list, count the duration from 0 even if the first frame is shown later.
    start = min(container.start_time or 0, 0)
    spare = SPARE_FRAMES * unit * (shown[-1] - shown[0]) / (len(shown) - 1)
    return (start + container.duration) / 1e6 > end + spare


def _require_time(stop: float) -> None:
    if time.thread_time() > stop:
        raise CostlyImage


@dataclass(frozen=True, kw_only=True, slots=True)
class Clips(BoundsChecked):
    """Options for rows of several images (vqascore_genai_bench.txt, sec. 6 and appendix F)."""

    section: ClassVar[str] = "clips."
    frames: Positive = 4
    """Number of frames of a video, sampled evenly from the first to the last; by the paper, 4 are nearly as good as
    all."""
    rate: AboveZero | None = None
    """Frames of a video per second, in place of `frames`: an even number, at least 4 and at most 768, as Qwen-VL's own
    code takes them."""
    listed: Literal["all", "sampled"] = "all"
    """The images of a list that are scored: all, or `frames` of them, sampled uniformly."""
    shown: Literal["each", "grid", "video"] = "each"
    """`each` shows every image by itself, and the row's score is their mean; `grid` shows all as one image, read line
    by line; `video` shows them as a video to models that take videos."""

    def places(self, frames: int, seconds: float) -> list[int]:
        """Return the numbers of the frames to sample from a video of `frames` and `seconds`; all if it has too few.

        The k-th of c is number floor(k (n - 1) / (c - 1)) of n, as chat models for videos sample theirs. If `rate` is
        set, c is computed as by smart_nframes of qwen-vl-utils, and numbers are rounded as by its _read_video_decord.
        """
        if self.rate is None:
            return [int(place) for place in np.linspace(0, frames - 1, min(self.frames, frames), dtype=int)]
        fewest, most = RATED_FRAMES
        wanted = min(max(seconds * self.rate, fewest), min(most, frames) // 2 * 2)
        count = min(max(2 * round(wanted / 2), 1), frames)
        return [int(place) for place in np.linspace(0, frames - 1, count).round()]

    def select_listed(self, count: int) -> list[int]:
        """Return the indices of the images to score in a list of `count`.

        The k-th of c is number floor(k n / c) of n: views around an object are at equal distances, also the last and
        the first (vqascore_genai_bench.txt, table 20). All images of a list of at most c are scored.
        """
        if self.listed == "all" or count <= self.frames:
            return list(range(count))
        return [k * count // self.frames for k in range(self.frames)]


STANDARD = Clips()


LISTED_SECONDS = 0.5
"""Seconds between two frames of a list without times: two frames a second, as qwen-vl-utils assumes for a list."""


def grid(images: Sequence[Image.Image]) -> Image.Image:
    """Return the images side by side, line by line, in a square or nearly so: 2x2 for four, 3x3 for nine.

    The others are resized to the size of the first; positions without an image are black.
    """
    columns = ceil(sqrt(len(images)))
    width, height = images[0].size
    whole = Image.new("RGB", (columns * width, ceil(len(images) / columns) * height))
    for place, image in enumerate(images):
        shown = image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BICUBIC)
        whole.paste(shown, (place % columns * width, place // columns * height))
    return whole

"""Reads rows with several images: samples frames from videos, and selects and arranges the images of a list."""

import io
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from PIL import Image

from plumbline.operators.base.bounds import BoundsChecked, Positive, PositiveFloat
from plumbline.operators.base.extensions import explain_missing_extra
from plumbline.operators.images.image_formats import BrokenImageError, CostlyImageError

if TYPE_CHECKING:
    import av

STILL_IMAGE_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
"""Brands of still images whose files have the container format of MP4."""
STRICT_DECODING_OPTIONS = {"err_detect": "explode"}
"""Decoder options that turn corrupt bits into errors. By default, gaps are filled with earlier pixels."""
FRAME_SECONDS_KEY = "frame_seconds"
"""Key in the `info` of a sampled frame for the number of seconds of the video that the frame represents."""
BOX_HEADER_BYTES = 8
"""Number of bytes for the size and type of an MP4 or MOV box."""
MIN_RATED_FRAMES, MAX_RATED_FRAMES = 4, 768
"""Minimum and maximum number of frames sampled at a `rate`: FPS_MIN_FRAMES and FPS_MAX_FRAMES of qwen-vl-utils."""
SECONDS_PER_LISTED_FRAME = 0.5
"""Seconds per frame in a list without times: two frames per second, as qwen-vl-utils assumes."""
MAX_GAP_FRAMES = 1.5
"""Maximum time, in frames, between the end of the last frame and the end of the declared duration. A larger gap means
that frames are missing.
"""
MAX_PIXEL_ASPECT_ERROR = 0.01
"""Maximum deviation of a pixel's aspect ratio from 1 that is ignored, because encoders round a video's sides to even
numbers.
"""
DISPLAY_MATRIX = "DISPLAYMATRIX"
MAX_TILT_RATIO = 0.01
"""Maximum ratio of the smaller to the larger entries of a display matrix; rounding keeps the smaller from being zero.
"""
NO_LAST_FRAME_MESSAGE = "the data end before the last frame"
FrameTime = tuple[int, int]
"""Presentation time of a frame in units of its stream, and the number of earlier frames with the same time. With an
edit list, the last frame before a cut may have the same time as the first frame after it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clips(BoundsChecked):
    """Options for rows with a video or several images (vqascore_genai_bench.txt, sec. 6 and appendix F)."""

    section: ClassVar[str] = "clips."
    frames: Positive = 4
    """Number of frames sampled from a video, evenly spaced from first to last. According to the paper, 4 frames are
    nearly as good as all.
    """
    rate: PositiveFloat | None = None
    """Frames sampled per second of a video, instead of `frames`. The number of frames is even and between 4 and 768, as
    in Qwen-VL's own code.
    """
    listed: Literal["all", "sampled"] = "all"
    """Images of a list that are scored: `all`, or a uniform sample of `frames` images (`sampled`)."""
    shown: Literal["each", "grid", "video"] = "each"
    """`each` shows every image separately, and the row's score is the mean; `grid` shows all as one image, in reading
    order; `video` shows them as a video to models that accept videos.
    """

    def sample(self, frames: int, seconds: float) -> list[int]:
        """Return the indices of the frames to sample from a video of `frames` frames that lasts `seconds`.

        Index k of c samples is floor(k (n - 1) / (c - 1)), for n frames, as in chat models for videos. If there are too
        few frames, all are sampled. If `rate` is set, c is computed as in smart_nframes of qwen-vl-utils, and indices
        are rounded as in _read_video_decord of the same package.
        """
        if self.rate is None:
            return [int(number) for number in np.linspace(0, frames - 1, min(self.frames, frames), dtype=int)]
        wanted = min(max(seconds * self.rate, MIN_RATED_FRAMES), min(MAX_RATED_FRAMES, frames) // 2 * 2)
        count = min(max(2 * round(wanted / 2), 1), frames)
        return [int(number) for number in np.linspace(0, frames - 1, count).round()]

    def select_listed_frames(self, count: int) -> list[int]:
        """Return the indices of the images to score in a list of `count` images.

        Index k of c samples is floor(k n / c), for n images, because views around an object are equally spaced and the
        last is next to the first (vqascore_genai_bench.txt, table 20). If the list has at most c images, all are
        scored.
        """
        if self.listed == "all" or count <= self.frames:
            return list(range(count))
        return [k * count // self.frames for k in range(self.frames)]


DEFAULT_CLIPS = Clips()


def find_demuxer(encoded: bytes) -> str | None:
    """Return the name of FFmpeg's demuxer for a video (MP4, MOV, WebM, Matroska, AVI) from its first bytes, or None.

    No other demuxers are tried, because playlists and similar formats refer to other files.
    """
    if encoded[4:8] == b"ftyp" and encoded[8:12] not in STILL_IMAGE_BRANDS:
        return "mp4"
    if encoded.startswith(b"\x1aE\xdf\xa3"):
        return "matroska"
    if encoded.startswith(b"RIFF") and encoded[8:12] == b"AVI ":
        return "avi"
    return None


def sample_video(
    encoded: bytes, demuxer: str, clips: Clips, *, seconds: float, check_size: Callable[[int, int], None]
) -> Iterator[Image.Image]:
    """Yield sampled frames of a video as RGB, evenly spaced from the first to the last frame that a player shows.

    Frames look as they would in a player: rotated and mirrored as the file specifies, and with square pixels. They are
    decoded one at a time, and not kept after they are yielded. `check_size` is called with the width and height of each
    frame before it becomes an image, and may raise. The `info` of each image contains FRAME_SECONDS_KEY.

    Raises BrokenImageError if the video is damaged or ends early, CostlyImageError after `seconds` of processor time,
    and MissingExtraError if PyAV is not installed.
    """
    with explain_missing_extra("video", "a video"):
        import av
    av.logging.set_level(av.logging.PANIC)
    stop = time.thread_time() + seconds
    _require_declared_size(encoded, demuxer, stop)
    try:
        times = _read_times(encoded, demuxer, stop)
        with _open_container(encoded, demuxer) as container:
            video = _find_video(container)
            check_size(video.width, video.height)
            frames = _decode_frames(container, video, stop)
            first = next(frames, None)
            if first is None:
                raise BrokenImageError(NO_LAST_FRAME_MESSAGE)
            # A decoder leaves out the first frames of a cut video if they build on frames that were cut away.
            times = times[bisect_left(times, first[1]) :]
            # The last frame is shown as long as an average frame.
            length = (times[-1][0] - times[0][0]) * len(times) / max(len(times) - 1, 1) * float(video.time_base or 0)
            ratio = video.sample_aspect_ratio  # a Fraction in PyAV 18, its own type in 19
            aspect = Fraction(ratio.numerator, ratio.denominator) if ratio else None
            shown_seconds = float(len(times) / video.average_rate) if video.average_rate else length
            wanted = deque(times[number] for number in clips.sample(len(times), shown_seconds))
            frame_seconds = length / len(wanted)
            for frame, shown in chain([first], frames):
                if shown < wanted[0]:
                    continue
                image = _render_frame(frame, aspect, check_size)
                image.info[FRAME_SECONDS_KEY] = frame_seconds
                yield image
                wanted.popleft()
                if not wanted:
                    return
            raise BrokenImageError(NO_LAST_FRAME_MESSAGE)
    except (av.FFmpegError, EOFError, IndexError, TypeError) as error:
        raise BrokenImageError(str(getattr(error, "strerror", "") or error) or type(error).__name__) from error


def _find_video(container: "av.container.InputContainer") -> "av.VideoStream":
    """Return the video stream that a player shows, not a cover image. Raise BrokenImageError if there is none."""
    import av

    video = container.streams.best("video")
    if not isinstance(video, av.VideoStream):
        raise BrokenImageError("the file has no video stream")
    return video


def _decode_frames(
    container: "av.container.InputContainer", video: "av.VideoStream", stop: float
) -> Iterator[tuple["av.VideoFrame", "FrameTime"]]:
    """Yield each visible frame with its time, in the order of presentation. Raise FFmpegError for damaged data."""
    import av

    video.codec_context.thread_count = 1  # so that this thread's time is all that decoding takes
    video.codec_context.options = STRICT_DECODING_OPTIONS
    start: int | None = None
    last: FrameTime | None = None
    leads_in = False
    for packet in container.demux(video):
        _check_deadline(stop)
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
            continue  # the first frames of a cut video may refer to frames that were cut away
        for frame in frames:
            shown = frame.pts if frame.pts is not None else frame.dts
            if shown is None:
                raise BrokenImageError("a frame has no timestamp")
            last = (shown, last[1] + 1 if last is not None and last[0] == shown else 0)
            yield frame, last


def _render_frame(
    frame: "av.VideoFrame", aspect: Fraction | None, check_size: Callable[[int, int], None]
) -> Image.Image:
    """Return a frame as a player shows it: with square pixels, and rotated and mirrored by its display matrix.

    FFmpeg's command-line tool also rotates frames, but does not make pixels square. Raises BrokenImageError for an
    angle that is not a multiple of 90 degrees.
    """
    width, height = frame.width, frame.height
    if aspect and abs(aspect - 1) > MAX_PIXEL_ASPECT_ERROR:
        # A player enlarges the shorter side of such a pixel, so that no detail is lost.
        width, height = (round(width * aspect), height) if aspect > 1 else (width, round(height / aspect))
    check_size(width, height)
    image = Image.fromarray(frame.to_ndarray(format="rgb24"))
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    matrix: Any = frame.side_data.get(DISPLAY_MATRIX)
    if matrix is None:
        return image
    # A column x and a row y are shown at column a x + c y and row b x + d y (ISO/IEC 14496-12, sec. 6.2.2).
    a, b, _, c, d = (int(number) for number in np.frombuffer(bytes(matrix), np.int32, 5))
    straight, crossed = abs(a) + abs(d), abs(b) + abs(c)
    if min(straight, crossed) > MAX_TILT_RATIO * max(straight, crossed):
        raise BrokenImageError("the video's rotation is not a multiple of 90 degrees")
    right, down = a, d
    if crossed > straight:
        image, right, down = image.transpose(Image.Transpose.TRANSPOSE), c, b
    if right < 0:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if down < 0 else image


def _require_declared_size(encoded: bytes, demuxer: str, stop: float) -> None:
    """Raise BrokenImageError if a top-level element declares more bytes than the file has.

    FFmpeg does not check this. The last element need not declare its size.
    """
    end = 0
    while end < len(encoded):
        _check_deadline(stop)
        start = end
        if demuxer == "mp4":
            size = int.from_bytes(encoded[start : start + 4])
            size = int.from_bytes(encoded[start + 8 : start + 16]) if size == 1 else size
            if size < BOX_HEADER_BYTES or start + BOX_HEADER_BYTES > len(encoded):
                return
            end = start + size
        elif demuxer == "avi":
            size = int.from_bytes(encoded[start + 4 : start + 8], "little")
            if not size or not encoded.startswith(b"RIFF", start):
                return
            end = start + 8 + size
        else:  # the first bits of the id and of the size of an EBML element give the length of each
            if not encoded[start]:
                return
            size_start = start + 9 - encoded[start].bit_length()
            length = 9 - encoded[size_start].bit_length() if size_start < len(encoded) else 0
            unknown = (1 << 7 * length) - 1
            size = int.from_bytes(encoded[size_start : size_start + length]) & unknown
            if size == unknown:
                return
            end = size_start + length + size
    if end > len(encoded):
        raise BrokenImageError("the file is shorter than the size that it declares")


def _open_container(encoded: bytes, demuxer: str, **options: str) -> "av.container.InputContainer":
    import av

    return av.open(io.BytesIO(encoded), "r", format=demuxer, options=options, io_open=_refuse_other_file)


def _refuse_other_file(*_: object) -> None:
    """Raise PermissionError when FFmpeg wants to open another file that a video refers to."""
    raise PermissionError


def _read_times(encoded: bytes, demuxer: str, stop: float) -> list[FrameTime]:
    """Return the times of all visible frames, in order, without decoding; raise BrokenImageError if any are missing."""
    with _open_container(encoded, demuxer) as container:
        video = _find_video(container)
        shown: list[int] = []
        end, count = 0.0, 0
        for packet in container.demux():
            _check_deadline(stop)
            if packet.is_corrupt:
                raise BrokenImageError("the data end within a frame")
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
            raise BrokenImageError("it has no frame")
        shown.sort()
        if count < video.frames:  # an edit list may leave out some of them
            with _open_container(
                encoded, demuxer, **({"ignore_editlist": "1"} if demuxer == "mp4" else {})
            ) as unedited:
                count_all = 0
                for video_packet in unedited.demux(_find_video(unedited)):
                    _check_deadline(stop)
                    count_all += video_packet.size > 0
            if count_all < video.frames:
                raise BrokenImageError(NO_LAST_FRAME_MESSAGE)
        # In a video with an edit list, FFmpeg's time of a frame after a cut is inexact.
        if count == len(shown) > 1 and container.duration is not None:
            # Matroska, and MP4 with an edit list, count the duration from 0 even if the first frame is shown later.
            declared_end = (min(container.start_time or 0, 0) + container.duration) / 1e6
            frame_seconds = float(video.time_base or 0) * (shown[-1] - shown[0]) / (len(shown) - 1)
            if declared_end > end + MAX_GAP_FRAMES * frame_seconds:  # every stream ends earlier
                raise BrokenImageError(NO_LAST_FRAME_MESSAGE)
    return [(start, number - bisect_left(shown, start)) for number, start in enumerate(shown)]


def _check_deadline(stop: float) -> None:
    if time.thread_time() > stop:
        raise CostlyImageError


def make_grid(images: Sequence[Image.Image]) -> Image.Image:
    """Return a grid of the images that is square or nearly square, such as 2x2 for four images and 3x3 for nine.

    All images are resized to the size of the first; cells without an image are black.
    """
    columns = ceil(sqrt(len(images)))
    width, height = images[0].size
    grid = Image.new("RGB", (columns * width, ceil(len(images) / columns) * height))
    for number, image in enumerate(images):
        resized = image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BICUBIC)
        grid.paste(resized, (number % columns * width, number // columns * height))
    return grid

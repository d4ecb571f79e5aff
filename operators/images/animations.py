"""Animations: GIF, WebP, PNG and AVIF files with several frames, which are sampled like videos."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from plumbline.operators.images.image_formats import (
    PNG_SIGNATURE,
    BrokenImageError,
    CostlyImageError,
    iterate_png_chunks,
    open_image,
)
from plumbline.operators.images.videos import FRAME_SECONDS_KEY, Clips

MAX_FRAMES = 10_000
"""Maximum number of frames of one animation."""
MIN_DELAY, DEFAULT_DELAY = 10, 100
"""Milliseconds. Browsers show a frame for DEFAULT_DELAY if the file asks for MIN_DELAY or less."""
GIF_TRAILER, GIF_EXTENSION, GIF_FRAME, GIF_CONTROL = 0x3B, 0x21, 0x2C, 0xF9
AVIF_SEQUENCE_SIGNATURE = b"ftypavis"


@dataclass(frozen=True, slots=True)
class Animation:
    """Delays and size of an animation's frames, read from the file's header before any frame is decoded."""

    delays: list[float]
    """Milliseconds for which each frame is shown; empty for AVIF, whose decoder returns them only with the frames."""
    width: int = 0
    height: int = 0
    """Height of the smallest canvas that contains all frames (`width` is its width); both are 0 if Pillow reads them
    from the header.
    """
    first: int = 0
    """Index that Pillow gives the first frame. In a PNG, the image at index 0 may only be meant for viewers that do not
    support animation.
    """


def find_animation(encoded: bytes) -> Animation | None:
    """Return the header data of an animation with several frames, or None for any other file.

    Raises BrokenImageError if the file ends early or has more than MAX_FRAMES frames.
    """
    animation: Animation | None = None
    if encoded.startswith((b"GIF87a", b"GIF89a")):
        animation = _read_gif(encoded)
    elif encoded.startswith(PNG_SIGNATURE):
        animation = _read_png(encoded)
    elif encoded.startswith(b"RIFF") and encoded[8:12] == b"WEBP":
        animation = _read_webp(encoded)
    elif encoded[4:12] == AVIF_SEQUENCE_SIGNATURE:
        return Animation([])
    return animation if animation is not None and len(animation.delays) > 1 else None


def sample_animation(
    encoded: bytes, animation: Animation, clips: Clips, *, seconds: float, check_size: Callable[[int, int], None]
) -> Iterator[Image.Image]:
    """Yield sampled frames of an animation as RGB, evenly spaced in time from the first to the last.

    The animation is sampled like a video that repeats each frame as often as its delay requires. Pillow draws each
    frame over the previous frames. Frames are not kept after they are yielded. `check_size` is called with the width
    and height before any frame is decoded, and may raise.

    Raises BrokenImageError if a frame is damaged, CostlyImageError after `seconds` of processor time.
    """
    stop = time.thread_time() + seconds
    with open_image(encoded, seconds, max(len(animation.delays), 1)) as image:
        check_size(max(image.width, animation.width), max(image.height, animation.height))
        delays = [*animation.delays]
        if not delays:  # only the decoded frames of an AVIF have delays
            for number in range(_check_frame_count(getattr(image, "n_frames", 1))):
                _load_frame(image, number, stop)
                delays.append(float(image.info.get("duration", DEFAULT_DELAY)))
        durations = np.array([delay if delay > MIN_DELAY else DEFAULT_DELAY for delay in delays])
        length = float(durations.sum())
        ticks = max(round(length / durations.min()), 1)
        sampled = clips.sample(ticks, length / 1000)
        middles = (np.array(sampled) + 0.5) * length / ticks
        wanted = np.searchsorted(np.cumsum(durations), middles, side="right").tolist()
        for number in range(len(delays)):
            _load_frame(image, animation.first + number, stop)
            for _ in range(wanted.count(number)):
                frame = image.convert("RGB")
                frame.info = {FRAME_SECONDS_KEY: length / 1000 / len(sampled)}
                yield frame


def _load_frame(image: Image.Image, number: int, stop: float) -> None:
    if time.thread_time() > stop:
        raise CostlyImageError
    image.seek(number)
    image.load()


def _check_frame_count(count: int) -> int:
    if count > MAX_FRAMES:
        raise BrokenImageError(f"the file has over {MAX_FRAMES} frames")
    return count


def _read_gif(gif: bytes) -> Animation:
    """Return the delays (in milliseconds) and size of a GIF's frames.

    Raise BrokenImageError if the GIF has several frames and no trailer, or more than MAX_FRAMES frames.
    """
    delays: list[float] = []
    width, height, delay, position = 0, 0, 0, 13 + _compute_colour_table_size(gif[10])
    while position < len(gif) and gif[position] != GIF_TRAILER:
        if gif[position] == GIF_EXTENSION:
            if gif[position + 1 : position + 2] == bytes([GIF_CONTROL]):
                delay = 10 * int.from_bytes(gif[position + 4 : position + 6], "little")
            position += 2
        elif gif[position] == GIF_FRAME and position + 10 <= len(gif):
            left, top, right, below = (
                int.from_bytes(gif[at : at + 2], "little") for at in range(position + 1, position + 9, 2)
            )
            width, height = max(width, left + right), max(height, top + below)
            delays.append(delay)
            _check_frame_count(len(delays))
            position, delay = position + 11 + _compute_colour_table_size(gif[position + 9]), 0
        else:
            break
        while position < len(gif) and gif[position]:
            position += 1 + gif[position]
        position += 1
    if len(delays) > 1 and gif[position : position + 1] != bytes([GIF_TRAILER]):
        raise BrokenImageError("the file ends before its last frame")
    return Animation(delays, width, height)


def _compute_colour_table_size(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _read_webp(webp: bytes) -> Animation:
    delays: list[float] = []
    position, end = 12, min(8 + int.from_bytes(webp[4:8], "little"), len(webp))
    while position + 8 <= end:
        if webp.startswith(b"ANMF", position):
            delays.append(int.from_bytes(webp[position + 20 : position + 23], "little"))
            _check_frame_count(len(delays))
        size = int.from_bytes(webp[position + 4 : position + 8], "little")
        position += 8 + size + size % 2
    return Animation(delays)


def _read_png(png: bytes) -> Animation | None:
    """Return the delays of an animated PNG's frames, or None for a still PNG.

    Raises BrokenImageError if the file does not have the number of frames that it declares, or more than MAX_FRAMES.
    """
    declared, first = 0, 0
    delays: list[float] = []
    try:
        for kind, data, _ in iterate_png_chunks(png):
            if kind == b"acTL":
                declared = int.from_bytes(data[:4])
            elif kind == b"IDAT":
                if not declared:
                    return None
                first = first or int(not delays)
            elif kind == b"fcTL":
                numerator, denominator = int.from_bytes(data[20:22]), int.from_bytes(data[22:24])
                delays.append(1000 * numerator / (denominator or 100))
                _check_frame_count(len(delays))
    except BrokenImageError:
        if declared < 2:  # decoding it as an image reports what is wrong
            return None
        raise
    if declared != len(delays):
        raise BrokenImageError(f"the file has {len(delays)} of {declared} frames")
    return Animation(delays, first=first)

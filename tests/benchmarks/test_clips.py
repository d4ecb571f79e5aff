"""Memory of scoring videos, as a ratio within one run: what a clip takes does not grow with its length."""

from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.benchmarks.size import said_by, sized, wanted

WIDTH, HEIGHT = sized((640, 480), (64, 48))
SHORT, LONG = 8, sized(1600, 16)
"""Frames; decoded, a long clip's are 1.4 GB, more than all else that its process takes."""


def film(path: Path, frames: int) -> Path:
    """A clip whose shade of grey grows from its first frame to its last."""
    with av.open(path, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=24, options={"preset": "ultrafast"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for shade in np.linspace(16, 235, frames).astype(np.uint8):
            pixels = np.full((HEIGHT, WIDTH, 3), shade, dtype=np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode())
    return path


def scored(clip: Path) -> dict[str, Any]:
    return dict(said_by("one_clip", str(clip)))


def test_a_video_of_two_hundred_times_the_frames_takes_no_more_memory(tmp_path: Path) -> None:
    short, long = (scored(film(tmp_path / f"{frames}.mp4", frames)) for frames in (SHORT, LONG))
    decoded = LONG * WIDTH * HEIGHT * 3 / 2**20
    print(
        f"\n{SHORT} frames: {short['peak']:.0f} MB at most, {LONG} frames ({decoded:.0f} MB decoded): "
        f"{long['peak']:.0f} MB, {long['peak'] / short['peak']:.3f} times as much (1.1 at most wanted)"
    )
    wanted(decoded > short["peak"])  # or holding all frames would not show
    wanted(long["peak"] < 1.1 * short["peak"])

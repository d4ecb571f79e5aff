"""The memory for scoring videos does not grow with a video's length, measured as a ratio within one run."""

from pathlib import Path
from typing import Any

import av
import numpy as np

from tests.benchmarks.size import choose_size, expect, read_output

WIDTH, HEIGHT = choose_size((640, 480), (64, 48))
N_FEW_FRAMES, N_MANY_FRAMES = 8, choose_size(1600, 16)
"""Numbers of frames; decoding the long video at once would take 1.4 GB, more than everything else in the process."""


def write_video(path: Path, frames: int) -> Path:
    """Write a video whose grey level increases from its first frame to its last; return its path."""
    with av.open(path, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=24, options={"preset": "ultrafast"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for shade in np.linspace(16, 235, frames).astype(np.uint8):
            pixels = np.full((HEIGHT, WIDTH, 3), shade, dtype=np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode())
    return path


def score_clip(clip: Path) -> dict[str, Any]:
    return dict(read_output("one_clip", str(clip)))


def test_a_video_with_two_hundred_times_the_frames_takes_no_more_memory(tmp_path: Path) -> None:
    short, long = (
        score_clip(write_video(tmp_path / f"{frames}.mp4", frames)) for frames in (N_FEW_FRAMES, N_MANY_FRAMES)
    )
    decoded = N_MANY_FRAMES * WIDTH * HEIGHT * 3 / 2**20
    print(
        f"\n{N_FEW_FRAMES} frames: {short['peak']:.0f} MB at most, {N_MANY_FRAMES} frames ({decoded:.0f} MB decoded): "
        f"{long['peak']:.0f} MB, {long['peak'] / short['peak']:.3f} times as much (target: at most 1.1)"
    )
    expect(decoded > short["peak"])  # otherwise keeping all frames would not show
    expect(long["peak"] < 1.1 * short["peak"])

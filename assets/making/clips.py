"""The shapes_video benchmark: short clips of the shapes' scenes, as files and as lists of frames."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import av
import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.assets.making.drawing import Pixels, draw_scene, to_png
from plumbline.assets.making.generators import GENERATORS, Generator, imagine
from plumbline.assets.making.prompts import Prompt, content_id, make_prompts
from plumbline.assets.making.scenes import Scene
from plumbline.assets.making.tables import PROMPTS_PER_SKILL, prompts_table
from plumbline.operators.rows import table

CLIPS_SUITE = "shapes_video"
EVERY = 8
"""Of the pack's prompts one in so many has clips."""
FRAMES = 8
FRAMES_A_SECOND = 4
_COLUMNS = [("image_id", pa.string()), ("prompt_id", pa.string()), ("generator", pa.string())]
TRUTH = pa.schema([*_COLUMNS, ("correct", pa.float64())])
"""`correct` is the share of a clip's frames that break no requirement."""

Row = dict[str, Any]


class Filming(NamedTuple):
    """How a simulated generator of videos makes a clip."""

    name: str
    first: str
    """The generator of images whose scene its first half shows."""
    second: str
    column: pa.DataType
    """Of its images: a file, or a list of frames."""
    encode: Callable[[Sequence[Pixels]], Any]


def to_video(frames: Sequence[Pixels], container: str, codec: str) -> bytes:
    """The frames as a file; its bytes may differ from one release of FFmpeg to another."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=FRAMES_A_SECOND, options={"crf": "16", "b:v": "0"})
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(stream.encode())
    return buffer.getvalue()


FILMINGS = (
    Filming("reel", "atlas", "atlas", pa.binary(), lambda frames: to_video(frames, "mp4", "libx264")),
    Filming("strip", "atlas", "garnet", pa.list_(pa.binary()), lambda frames: [to_png(frame) for frame in frames]),
    Filming("orbit", "garnet", "garnet", pa.binary(), lambda frames: to_video(frames, "webm", "libvpx-vp9")),
)


def clip_scenes(filming: Filming, prompt: Prompt, seed: int) -> list[Scene]:
    """The scene of each frame; those of the pack's images of the same names."""
    of_name: Mapping[str, Generator] = {generator.name: generator for generator in GENERATORS}

    def scene(name: str) -> Scene:
        return imagine(of_name[name], prompt, Random(f"scene/{seed}/{name}/{prompt.prompt_id}"))

    first, second = scene(filming.first), scene(filming.second)
    return [first] * (FRAMES // 2) + [second] * (FRAMES - FRAMES // 2)


def draw_frames(filming: Filming, prompt: Prompt, scenes: Sequence[Scene], seed: int) -> list[Pixels]:
    """The frames' pixels; things tremble from one to the next."""
    name = f"clip/{seed}/{filming.name}/{prompt.prompt_id}"
    return [draw_scene(scene, f"{name}/{number}") for number, scene in enumerate(scenes)]


def clip_tables(seed: int) -> dict[str, pa.Table]:
    """Every table of the benchmark by its path in the benchmark's folder."""
    prompts = make_prompts(seed, PROMPTS_PER_SKILL)[::EVERY]
    tables = {"prompts.parquet": prompts_table(prompts)}
    truth: list[Row] = []
    for filming in FILMINGS:
        images: list[Row] = []
        for prompt in prompts:
            scenes = clip_scenes(filming, prompt, seed)
            clip = filming.encode(draw_frames(filming, prompt, scenes, seed))
            ids = {
                "image_id": content_id(filming.name.encode(), prompt.prompt_id.encode(), b"clip"),
                "prompt_id": prompt.prompt_id,
                "generator": filming.name,
            }
            images.append(ids | {"image": clip})
            truth.append(ids | {"correct": sum(not prompt.broken(scene) for scene in scenes) / len(scenes)})
        schema = pa.schema([*_COLUMNS, ("image", filming.column)])
        tables[f"images/{filming.name}/00000.parquet"] = table(images, schema)
    return tables | {"truth.parquet": table(truth, TRUTH)}


def write_clips(seed: int, folder: Path) -> None:
    """Writes every table of the benchmark under the folder."""
    for name, written in clip_tables(seed).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(written, folder / name, compression="zstd")

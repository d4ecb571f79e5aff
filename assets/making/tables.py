"""The shapes and shapes_video benchmarks as tables: the generators' images and clips, and the raters' ratings."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import av
import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.assets.making.claims import SKILLS, UniversalityClaim
from plumbline.assets.making.lessons import find_mentions
from plumbline.assets.making.prompts import Prompt, make_content_id, make_prompts
from plumbline.assets.making.scenes import (
    COLOURS,
    SHAPES,
    Palette,
    Pixels,
    Scene,
    draw_scene,
    edit_scene,
    sample_scene,
    to_png,
)
from plumbline.operators.base.rows import table
from plumbline.operators.base.schemas import PROMPTS

MAX_SEARCH_STEPS = 4000
STEPS_PER_RESTART = 400
MAX_OBJECTS_IN_IMAGE = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Generator:
    """A simulated generator, with the probability that an image violates each kind of requirement."""

    name: str
    faults: Mapping[str, float]


def _make_faults(usual: float, **special: float) -> dict[str, float]:
    return {skill: special.get(skill, usual) for skill in SKILLS}


TIED_FAULTS = _make_faults(0.10, object=0.03, attribute=0.08)
GENERATORS = (
    Generator(name="atlas", faults=_make_faults(0.04, object=0.01, attribute=0.02)),
    Generator(name="borealis", faults=TIED_FAULTS),
    Generator(name="cobalt", faults=TIED_FAULTS),
    Generator(name="drift", faults=_make_faults(0.12, object=0.04, attribute=0.06, counting=0.70, spatial=0.75)),
    Generator(name="ember", faults=_make_faults(0.16, object=0.06, attribute=0.55)),
    Generator(
        name="flint",
        faults=_make_faults(0.30, object=0.08, attribute=0.15, negation=0.85, universality=0.80, comparison=0.70),
    ),
    Generator(name="garnet", faults=_make_faults(0.60, object=0.28, attribute=0.40)),
)


def imagine_scene(generator: Generator, prompt: Prompt, rng: Random) -> Scene:
    """Return the scene that the generator makes for the prompt."""
    start = sample_scene(rng, make_prompt_palette(prompt), max_entities=MAX_OBJECTS_IN_IMAGE)
    faultless = find_violating_scene(prompt, frozenset(), start, rng)
    broken = {node.requirement_id for node in prompt.requirements if rng.random() < generator.faults[node.claim.kind]}
    return find_violating_scene(prompt, add_dependents(prompt, broken), faultless, rng)


def add_dependents(prompt: Prompt, broken: Iterable[str]) -> frozenset[str]:
    """Return the requirements in `broken`, and all requirements that presuppose one of them."""
    every = set(broken)
    for node in prompt.requirements:  # parents come before children
        if every & set(node.parents):
            every.add(node.requirement_id)
    return frozenset(every)


def make_prompt_palette(prompt: Prompt) -> Palette:
    """Return the shapes and colours named in the prompt, plus a few more for distracting entities."""
    claims = [node.claim for node in prompt.requirements]
    things = [thing for claim in claims for thing in claim.things]
    shapes = sorted({thing.shape for thing in things if thing.shape})
    colours = {thing.colour for thing in things if thing.colour}
    colours |= {claim.value for claim in claims if isinstance(claim, UniversalityClaim) and claim.field == "colour"}
    extra = Random(prompt.prompt_id)
    return Palette(
        shapes=(*shapes, *shapes, *extra.sample(SHAPES, 2)),
        colours=(*sorted(colours), *sorted(colours), *extra.sample(COLOURS, 2)),
    )


def find_violating_scene(
    prompt: Prompt, wanted: frozenset[str], start: Scene, rng: Random, *, steps: int = MAX_SEARCH_STEPS
) -> Scene:
    """Search near `start` for a scene that violates exactly the given requirements, or nearly so.

    The search applies random edits that do not make the scene worse. Some combinations are impossible (violating "there
    is a circle" rules out violating "there are no circles"), so the search returns its best scene after a fixed number
    of steps. The ground truth of an image is computed from its scene, never from the given requirements.
    """
    palette = make_prompt_palette(prompt)
    scene = best = start
    error = least = _count_differing_requirements(prompt, scene, wanted)
    for step in range(steps):
        if least == 0:
            break
        if step and step % STEPS_PER_RESTART == 0:
            scene, error = start, _count_differing_requirements(prompt, start, wanted)
        changed = edit_scene(rng, scene, palette)
        misses = _count_differing_requirements(prompt, changed, wanted)
        if misses <= error and len(changed.entities) <= MAX_OBJECTS_IN_IMAGE + 1:
            scene, error = changed, misses
        if error < least:
            best, least = scene, error
    return best


def _count_differing_requirements(prompt: Prompt, scene: Scene, wanted: frozenset[str]) -> int:
    return len(wanted.symmetric_difference(prompt.list_broken_requirements(scene)))


SHAPES_SUITE = "shapes"
PROMPTS_PER_SKILL = 32
IMAGES_PER_FILE = 128
_IMAGE_FIELDS = [("image_id", pa.string()), ("prompt_id", pa.string()), ("generator", pa.string())]
IMAGES_SCHEMA = pa.schema([*_IMAGE_FIELDS, ("image", pa.binary())])
REQUIREMENTS_SCHEMA = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("requirement_id", pa.string()),
        ("kind", pa.string()),
        ("text", pa.string()),
        ("parents", pa.list_(pa.string())),
        ("start", pa.int32()),
        ("end", pa.int32()),
    ]
)
"""Requirements of prompts.

`start` and `end` delimit the characters of the prompt that express the requirement; both are null if no words express
only this requirement.
"""
TRUTH_SCHEMA = pa.schema([*_IMAGE_FIELDS, ("correct", pa.bool_()), ("broken", pa.list_(pa.string()))])
RATINGS_SCHEMA = pa.schema([("image_id", pa.string()), ("rater", pa.string()), ("rating", pa.int32())])

Row = dict[str, Any]


class Rater(NamedTuple):
    """A simulated rater. Ratings (1 to 5) rise with the fraction of requirements that an image meets."""

    name: str
    bias: float
    """Offset that is added to every rating."""
    noise: float
    """Standard deviation of the ratings around their expected value."""

    def rate(self, met_share: float, rng: Random) -> int:
        """Return a rating from 1 to 5 for an image that meets this fraction (0 to 1) of its prompt's requirements.

        The rater's bias and random noise are added before rounding.
        """
        return min(5, max(1, round(1 + 4 * met_share + self.bias + rng.gauss(0, self.noise))))


RATERS = (Rater("rater-1", 0.0, 0.45), Rater("rater-2", -0.4, 0.6), Rater("rater-3", 0.3, 0.8))


@dataclass(frozen=True, kw_only=True, slots=True)
class Depiction:
    """A generator's image for one prompt, with the scene that it shows."""

    prompt: Prompt
    generator: str
    scene: Scene
    png: bytes

    @property
    def broken_requirements(self) -> list[str]:
        """Ids of the requirements that the scene violates."""
        return self.prompt.list_broken_requirements(self.scene)

    @property
    def ids(self) -> Row:
        image_id = make_content_id(self.generator.encode(), self.prompt.prompt_id.encode(), self.png)
        return {"image_id": image_id, "prompt_id": self.prompt.prompt_id, "generator": self.generator}


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """A complete benchmark in memory: the images of each generator, in the order of the prompts."""

    seed: int
    prompts: Sequence[Prompt]
    depictions: Mapping[str, Sequence[Depiction]]

    @property
    def true_means(self) -> dict[str, float]:
        """Fraction of each generator's images that violate no requirement."""
        return {
            name: sum(not depiction.broken_requirements for depiction in made) / len(made)
            for name, made in self.depictions.items()
        }


def make_benchmark(seed: int) -> Benchmark:
    """Make all generators' images for all prompts from the given seed."""
    prompts = make_prompts(seed, PROMPTS_PER_SKILL)
    depictions = {
        generator.name: [_make_depiction(generator, prompt, seed) for prompt in prompts] for generator in GENERATORS
    }
    return Benchmark(seed=seed, prompts=prompts, depictions=depictions)


def _make_depiction(generator: Generator, prompt: Prompt, seed: int) -> Depiction:
    name = f"{seed}/{generator.name}/{prompt.prompt_id}"
    scene = imagine_scene(generator, prompt, Random(f"scene/{name}"))
    png = to_png(draw_scene(scene, f"pixels/{name}"))
    return Depiction(prompt=prompt, generator=generator.name, scene=scene, png=png)


def make_benchmark_tables(benchmark: Benchmark) -> dict[str, pa.Table]:
    """Return all tables of the benchmark, by path in the benchmark's folder."""
    everything = [depiction for made in benchmark.depictions.values() for depiction in made]
    tables = {
        "prompts.parquet": make_prompts_table(benchmark.prompts),
        "requirements.parquet": table(
            [row for prompt in benchmark.prompts for row in _make_requirement_rows(prompt)], REQUIREMENTS_SCHEMA
        ),
        "truth.parquet": table([_make_truth_row(depiction) for depiction in everything], TRUTH_SCHEMA),
        "ratings.parquet": table(
            [row for depiction in everything for row in _make_rating_rows(depiction, benchmark.seed)], RATINGS_SCHEMA
        ),
    }
    for generator, made in benchmark.depictions.items():
        images = table([depiction.ids | {"image": depiction.png} for depiction in made], IMAGES_SCHEMA)
        for index, first in enumerate(range(0, len(made), IMAGES_PER_FILE)):
            tables[f"images/{generator}/{index:05}.parquet"] = images[first : first + IMAGES_PER_FILE]
    return tables


def write_tables(tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Write all tables of a benchmark to the folder."""
    for name, written in tables.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(written, folder / name, compression="zstd")


def make_prompts_table(prompts: Sequence[Prompt]) -> pa.Table:
    """Return the prompts as a benchmark's prompt table."""
    rows = [
        {"prompt_id": prompt.prompt_id, "text": prompt.text, "skills": prompt.skills, "suite": SHAPES_SUITE}
        for prompt in prompts
    ]
    return table(rows, PROMPTS)


def _make_requirement_rows(prompt: Prompt) -> list[Row]:
    places = {mention.claim: mention for mention in find_mentions(prompt)}
    return [
        {
            "prompt_id": prompt.prompt_id,
            "requirement_id": node.requirement_id,
            "kind": node.claim.kind,
            "text": node.claim.text,
            "parents": list(node.parents),
            "start": mention.start if mention else None,
            "end": mention.end if mention else None,
        }
        for node in prompt.requirements
        for mention in [places.get(node.claim)]
    ]


def _make_truth_row(depiction: Depiction) -> Row:
    broken = depiction.broken_requirements
    return depiction.ids | {"correct": not broken, "broken": broken}


def _make_rating_rows(depiction: Depiction, seed: int) -> list[Row]:
    met = 1 - len(depiction.broken_requirements) / len(depiction.prompt.requirements)
    name = f"ratings/{seed}/{depiction.generator}/{depiction.prompt.prompt_id}"
    return [
        {
            "image_id": depiction.ids["image_id"],
            "rater": rater.name,
            "rating": rater.rate(met, Random(f"{name}/{rater.name}")),
        }
        for rater in RATERS
    ]


CLIPS_SUITE = "shapes_video"
PROMPTS_PER_CLIP = 8
"""Every PROMPTS_PER_CLIP-th prompt of the embedded benchmark gets a clip by each video generator."""
FRAMES_PER_CLIP = 8
FRAMES_PER_SECOND = 4
_CLIP_FIELDS = [("image_id", pa.string()), ("prompt_id", pa.string()), ("generator", pa.string())]
CLIP_TRUTH_SCHEMA = pa.schema([*_CLIP_FIELDS, ("correct", pa.float64())])
"""Ground truth: `correct` is the fraction of a clip's frames that violate no requirement."""


class VideoGenerator(NamedTuple):
    """A simulated generator of videos."""

    name: str
    first: str
    """Name of the image generator whose scene is shown in the first half; `second` is for the second half."""
    second: str
    column: pa.DataType
    """Type of the image column: a video file, or a list of frames."""
    encode: Callable[[Sequence[Pixels]], Any]


def encode_video(frames: Sequence[Pixels], container: str, codec: str) -> bytes:
    """Encode the frames as a video file, whose bytes may differ between releases of FFmpeg."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=FRAMES_PER_SECOND, options={"crf": "16", "b:v": "0"})
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(stream.encode())
    return buffer.getvalue()


VIDEO_GENERATORS = (
    VideoGenerator("reel", "atlas", "atlas", pa.binary(), lambda frames: encode_video(frames, "mp4", "libx264")),
    VideoGenerator(
        "strip", "atlas", "garnet", pa.list_(pa.binary()), lambda frames: [to_png(frame) for frame in frames]
    ),
    VideoGenerator("orbit", "garnet", "garnet", pa.binary(), lambda frames: encode_video(frames, "webm", "libvpx-vp9")),
)


def list_clip_scenes(video_generator: VideoGenerator, prompt: Prompt, seed: int) -> list[Scene]:
    """Return the scene in each frame: one of two scenes made for the prompt by generators of the embedded benchmark."""
    generators_by_name: Mapping[str, Generator] = {generator.name: generator for generator in GENERATORS}

    def imagine_scene_of(name: str) -> Scene:
        return imagine_scene(generators_by_name[name], prompt, Random(f"scene/{seed}/{name}/{prompt.prompt_id}"))

    first, second = imagine_scene_of(video_generator.first), imagine_scene_of(video_generator.second)
    return [first] * (FRAMES_PER_CLIP // 2) + [second] * (FRAMES_PER_CLIP - FRAMES_PER_CLIP // 2)


def draw_frames(video_generator: VideoGenerator, prompt: Prompt, scenes: Sequence[Scene], seed: int) -> list[Pixels]:
    """Draw the frames; things move slightly from one frame to the next."""
    name = f"clip/{seed}/{video_generator.name}/{prompt.prompt_id}"
    return [draw_scene(scene, f"{name}/{number}") for number, scene in enumerate(scenes)]


def make_clip_tables(seed: int) -> dict[str, pa.Table]:
    """Return all tables of the benchmark, by path in the benchmark's folder."""
    prompts = make_prompts(seed, PROMPTS_PER_SKILL)[::PROMPTS_PER_CLIP]
    tables = {"prompts.parquet": make_prompts_table(prompts)}
    truth: list[Row] = []
    for video_generator in VIDEO_GENERATORS:
        images: list[Row] = []
        for prompt in prompts:
            scenes = list_clip_scenes(video_generator, prompt, seed)
            clip = video_generator.encode(draw_frames(video_generator, prompt, scenes, seed))
            ids = {
                "image_id": make_content_id(video_generator.name.encode(), prompt.prompt_id.encode(), b"clip"),
                "prompt_id": prompt.prompt_id,
                "generator": video_generator.name,
            }
            images.append(ids | {"image": clip})
            truth.append(
                ids | {"correct": sum(not prompt.list_broken_requirements(scene) for scene in scenes) / len(scenes)}
            )
        schema = pa.schema([*_CLIP_FIELDS, ("image", video_generator.column)])
        tables[f"images/{video_generator.name}/00000.parquet"] = table(images, schema)
    return tables | {"truth.parquet": table(truth, CLIP_TRUTH_SCHEMA)}

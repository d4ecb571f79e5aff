"""The shapes benchmark as Parquet tables: prompts, images, requirements, truth and ratings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from operators.pack.drawing import draw_scene, to_png
from operators.pack.generators import GENERATORS, Generator, imagine
from operators.pack.prompts import Prompt, content_id, make_prompts
from operators.pack.raters import RATERS
from operators.pack.scenes import Scene
from operators.rows import PROMPTS

SUITE = "shapes"
PROMPTS_PER_SKILL = 32
IMAGES_PER_FILE = 128
IMAGES = pa.schema(
    [("image_id", pa.string()), ("prompt_id", pa.string()), ("generator", pa.string()), ("image", pa.binary())]
)
REQUIREMENTS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("requirement_id", pa.string()),
        ("kind", pa.string()),
        ("text", pa.string()),
        ("parents", pa.list_(pa.string())),
    ]
)
TRUTH = pa.schema(
    [
        ("image_id", pa.string()),
        ("prompt_id", pa.string()),
        ("generator", pa.string()),
        ("correct", pa.bool_()),
        ("broken", pa.list_(pa.string())),
    ]
)
RATINGS = pa.schema([("image_id", pa.string()), ("rater", pa.string()), ("rating", pa.int32())])

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Depiction:
    """One generator's image of one prompt, with the scene it was drawn from."""

    prompt: Prompt
    generator: str
    scene: Scene
    png: bytes

    @property
    def image_id(self) -> str:
        return content_id(self.generator.encode(), self.prompt.prompt_id.encode(), self.png)


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """The whole benchmark in memory, depictions by generator in the prompts' order."""

    prompts: Sequence[Prompt]
    depictions: Mapping[str, Sequence[Depiction]]

    @property
    def true_means(self) -> dict[str, float]:
        """By generator, the share of its images that break no requirement."""
        return {
            name: sum(not depiction.prompt.broken(depiction.scene) for depiction in made) / len(made)
            for name, made in self.depictions.items()
        }


def make_benchmark(seed: int) -> Benchmark:
    """The benchmark of this seed: every generator's image of every prompt."""
    prompts = make_prompts(seed, PROMPTS_PER_SKILL)
    depictions = {generator.name: [_depict(generator, prompt, seed) for prompt in prompts] for generator in GENERATORS}
    return Benchmark(prompts=prompts, depictions=depictions)


def _depict(generator: Generator, prompt: Prompt, seed: int) -> Depiction:
    name = f"{seed}/{generator.name}/{prompt.prompt_id}"
    scene = imagine(generator, prompt, Random(f"scene/{name}"))
    png = to_png(draw_scene(scene, f"pixels/{name}"))
    return Depiction(prompt=prompt, generator=generator.name, scene=scene, png=png)


def write_benchmark(benchmark: Benchmark, folder: Path, seed: int) -> None:
    """Writes every table of the benchmark under the folder."""
    everything = [depiction for made in benchmark.depictions.values() for depiction in made]
    _write([prompt_row(prompt) for prompt in benchmark.prompts], PROMPTS, folder / "prompts.parquet")
    requirements = [row for prompt in benchmark.prompts for row in requirement_rows(prompt)]
    _write(requirements, REQUIREMENTS, folder / "requirements.parquet")
    _write([truth_row(depiction) for depiction in everything], TRUTH, folder / "truth.parquet")
    ratings = [row for depiction in everything for row in rating_rows(depiction, seed)]
    _write(ratings, RATINGS, folder / "ratings.parquet")
    for generator, made in benchmark.depictions.items():
        for index, first in enumerate(range(0, len(made), IMAGES_PER_FILE)):
            rows = [image_row(depiction) for depiction in made[first : first + IMAGES_PER_FILE]]
            _write(rows, IMAGES, folder / "images" / generator / f"{index:05}.parquet")


def prompt_row(prompt: Prompt) -> Row:
    return {"prompt_id": prompt.prompt_id, "text": prompt.text, "skills": prompt.skills, "suite": SUITE}


def requirement_rows(prompt: Prompt) -> list[Row]:
    return [
        {
            "prompt_id": prompt.prompt_id,
            "requirement_id": node.requirement_id,
            "kind": node.claim.kind,
            "text": node.claim.text,
            "parents": list(node.parents),
        }
        for node in prompt.requirements
    ]


def image_row(depiction: Depiction) -> Row:
    return {
        "image_id": depiction.image_id,
        "prompt_id": depiction.prompt.prompt_id,
        "generator": depiction.generator,
        "image": depiction.png,
    }


def truth_row(depiction: Depiction) -> Row:
    broken = depiction.prompt.broken(depiction.scene)
    return {
        "image_id": depiction.image_id,
        "prompt_id": depiction.prompt.prompt_id,
        "generator": depiction.generator,
        "correct": not broken,
        "broken": broken,
    }


def rating_rows(depiction: Depiction, seed: int) -> list[Row]:
    met = 1 - len(depiction.prompt.broken(depiction.scene)) / len(depiction.prompt.requirements)
    name = f"ratings/{seed}/{depiction.generator}/{depiction.prompt.prompt_id}"
    return [
        {
            "image_id": depiction.image_id,
            "rater": rater.name,
            "rating": rater.rate(met, Random(f"{name}/{rater.name}")),
        }
        for rater in RATERS
    ]


def _write(rows: Sequence[Row], schema: pa.Schema, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    pq.write_table(table, path, compression="zstd")

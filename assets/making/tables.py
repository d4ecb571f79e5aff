"""The shapes benchmark as Parquet tables: prompts, images, requirements, truth, and what simulated raters say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.assets.making.drawing import draw_scene, to_png
from plumbline.assets.making.generators import GENERATORS, Generator, imagine
from plumbline.assets.making.prompts import Prompt, content_id, make_prompts
from plumbline.assets.making.scenes import Scene
from plumbline.assets.making.writer_gold import mentions
from plumbline.operators.rows import PROMPTS, table

SUITE = "shapes"
PROMPTS_PER_SKILL = 32
IMAGES_PER_FILE = 128
_IMAGE_COLUMNS = [("image_id", pa.string()), ("prompt_id", pa.string()), ("generator", pa.string())]
IMAGES = pa.schema([*_IMAGE_COLUMNS, ("image", pa.binary())])
REQUIREMENTS = pa.schema(
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
"""`start` to `end` are the characters of the prompt that make the requirement, null where no words of its own do."""
TRUTH = pa.schema([*_IMAGE_COLUMNS, ("correct", pa.bool_()), ("broken", pa.list_(pa.string()))])
RATINGS = pa.schema([("image_id", pa.string()), ("rater", pa.string()), ("rating", pa.int32())])

Row = dict[str, Any]


class Rater(NamedTuple):
    """One simulated rater's habits: the ratings, from 1 to 5, rise with the share of requirements an image meets."""

    name: str
    bias: float
    """Added to every rating."""
    noise: float
    """Standard deviation of the rating about its expectation."""

    def rate(self, met: float, rng: Random) -> int:
        """A rating of an image that meets this share of its prompt's requirements."""
        return min(5, max(1, round(1 + 4 * met + self.bias + rng.gauss(0, self.noise))))


RATERS = (Rater("rater-1", 0.0, 0.45), Rater("rater-2", -0.4, 0.6), Rater("rater-3", 0.3, 0.8))


@dataclass(frozen=True, kw_only=True, slots=True)
class Depiction:
    """One generator's image of one prompt, with the scene it was drawn from."""

    prompt: Prompt
    generator: str
    scene: Scene
    png: bytes

    @property
    def broken(self) -> list[str]:
        """The requirements that it breaks."""
        return self.prompt.broken(self.scene)

    @property
    def ids(self) -> Row:
        image_id = content_id(self.generator.encode(), self.prompt.prompt_id.encode(), self.png)
        return {"image_id": image_id, "prompt_id": self.prompt.prompt_id, "generator": self.generator}


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """The whole benchmark in memory, depictions by generator in the prompts' order."""

    seed: int
    prompts: Sequence[Prompt]
    depictions: Mapping[str, Sequence[Depiction]]

    @property
    def true_means(self) -> dict[str, float]:
        """By generator, the share of its images that break no requirement."""
        return {
            name: sum(not depiction.broken for depiction in made) / len(made) for name, made in self.depictions.items()
        }


def make_benchmark(seed: int) -> Benchmark:
    """The benchmark of this seed: every generator's image of every prompt."""
    prompts = make_prompts(seed, PROMPTS_PER_SKILL)
    depictions = {generator.name: [_depict(generator, prompt, seed) for prompt in prompts] for generator in GENERATORS}
    return Benchmark(seed=seed, prompts=prompts, depictions=depictions)


def _depict(generator: Generator, prompt: Prompt, seed: int) -> Depiction:
    name = f"{seed}/{generator.name}/{prompt.prompt_id}"
    scene = imagine(generator, prompt, Random(f"scene/{name}"))
    png = to_png(draw_scene(scene, f"pixels/{name}"))
    return Depiction(prompt=prompt, generator=generator.name, scene=scene, png=png)


def benchmark_tables(benchmark: Benchmark) -> dict[str, pa.Table]:
    """Every table of the benchmark by its path in the benchmark's folder."""
    everything = [depiction for made in benchmark.depictions.values() for depiction in made]
    tables = {
        "prompts.parquet": prompts_table(benchmark.prompts),
        "requirements.parquet": table(
            [row for prompt in benchmark.prompts for row in _requirement_rows(prompt)], REQUIREMENTS
        ),
        "truth.parquet": table([_truth_row(depiction) for depiction in everything], TRUTH),
        "ratings.parquet": table(
            [row for depiction in everything for row in _rating_rows(depiction, benchmark.seed)], RATINGS
        ),
    }
    for generator, made in benchmark.depictions.items():
        images = table([depiction.ids | {"image": depiction.png} for depiction in made], IMAGES)
        for index, first in enumerate(range(0, len(made), IMAGES_PER_FILE)):
            tables[f"images/{generator}/{index:05}.parquet"] = images[first : first + IMAGES_PER_FILE]
    return tables


def write_benchmark(benchmark: Benchmark, folder: Path) -> None:
    """Writes every table of the benchmark under the folder."""
    for name, written in benchmark_tables(benchmark).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(written, folder / name, compression="zstd")


def prompts_table(prompts: Sequence[Prompt]) -> pa.Table:
    """The prompts as a benchmark's table of prompts."""
    rows = [
        {"prompt_id": prompt.prompt_id, "text": prompt.text, "skills": prompt.skills, "suite": SUITE}
        for prompt in prompts
    ]
    return table(rows, PROMPTS)


def _requirement_rows(prompt: Prompt) -> list[Row]:
    places = {mention.claim: mention for mention in mentions(prompt)}
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


def _truth_row(depiction: Depiction) -> Row:
    broken = depiction.broken
    return depiction.ids | {"correct": not broken, "broken": broken}


def _rating_rows(depiction: Depiction, seed: int) -> list[Row]:
    met = 1 - len(depiction.broken) / len(depiction.prompt.requirements)
    name = f"ratings/{seed}/{depiction.generator}/{depiction.prompt.prompt_id}"
    return [
        {
            "image_id": depiction.ids["image_id"],
            "rater": rater.name,
            "rating": rater.rate(met, Random(f"{name}/{rater.name}")),
        }
        for rater in RATERS
    ]

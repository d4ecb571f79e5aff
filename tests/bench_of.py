"""Small benchmarks cut from the embedded world, and sweeps over them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.jobs.command import command_of, load_values
from plumbline.pipelines.cells.cells import Outcome
from plumbline.pipelines.plans.sweep_config import SweepConfig, read_config
from plumbline.pipelines.sweeps.computing import compute_missing
from plumbline.pipelines.sweeps.planning import PlannedSweep

PACK = Path(__file__).parent.parent / "assets" / "shapes"
SMALL = (
    "cluster=here",
    "shard_rows=4",
    "cluster.pools.answers.threads=1",
    "cluster.pools.answers.min_size=1",
    "cluster.pools.answers.max_size=1",
)
"""Shards of four rows, computed in the test's own process; with `cluster=local` behind it, on Ray in small pools."""


def prompts(count: int) -> list[dict[str, Any]]:
    """The embedded world's first prompts."""
    return [dict(row) for row in pq.read_table(PACK / "prompts.parquet").slice(0, count).to_pylist()]


def images(generator: str, count: int) -> list[dict[str, Any]]:
    """A generator's images of the embedded world's first prompts."""
    table = pq.read_table(PACK / "images" / generator / "00000.parquet", columns=["image_id", "prompt_id", "image"])
    return [dict(row) for row in table.slice(0, count).to_pylist()]


def captioned(generator: str, count: int) -> list[dict[str, Any]]:
    """A generator's images of the embedded first prompts, with the texts in their rows and names of someone else's."""
    texts = {prompt["prompt_id"]: prompt["text"] for prompt in prompts(count)}
    return [
        {"picture": row["image"], "caption": texts[row["prompt_id"]], "seed": number}
        for number, row in enumerate(images(generator, count))
    ]


CAPTIONED = ("benchmark.columns.image=picture", "benchmark.columns.prompt=caption")
"""How such rows are read."""


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], *, row_group: int = 4) -> None:
    """Rows as a Parquet file with row groups of this size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path, row_group_size=row_group)


def write_benchmark(folder: Path, generators: Sequence[str] = ("atlas", "flint"), count: int = 8) -> Path:
    """The first `count` prompts and their images, in shards of four."""
    write_rows(folder / "prompts.parquet", prompts(count))
    for generator in generators:
        write_rows(folder / "images" / generator / "00000.parquet", images(generator, count))
    return folder


def sweep_config(folder: str | Path, store: str | Path, *overrides: str) -> SweepConfig:
    """A sweep over such a benchmark, with the embedded world's checkpoints, shards of four rows, in this process.

    By VQAScore and CLIPScore, unless other metrics are named.
    """
    metrics = () if any(override.startswith("metric=") for override in overrides) else ("metric=[vqascore,clipscore]",)
    values = load_values(
        command_of("sweep"),
        [
            "sweep=shapes",
            *metrics,
            "benchmark.name=small",
            f"benchmark.prompts={folder}/prompts.parquet",
            f"benchmark.images={folder}/images",
            f"store={store}",
            *SMALL,
            *overrides,
        ],
    )
    return read_config(values, SweepConfig)


def score_config(images: str | Path, store: str | Path, *overrides: str) -> SweepConfig:
    """A sweep over images whose rows hold their own prompts, as jobs.score runs it, with the embedded checkpoints."""
    values = load_values(
        command_of("score"), ["models=shapes", f"benchmark.images={images}", f"store={store}", *SMALL, *overrides]
    )
    return read_config(values, SweepConfig)


def compute(planned: PlannedSweep) -> dict[str, Outcome]:
    """Computes the missing cells of a plan, and makes no run of them."""
    return compute_missing(planned, lambda event: None)

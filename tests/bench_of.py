"""Small benchmarks cut from the embedded benchmark, sweeps over them, and made-up scores for tests without a model."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base import rows, schemas
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.shards import ShardSize, read_shard
from plumbline.pipelines.sources.sources import Sources, open_sources
from plumbline.pipelines.store.cells import Outcome
from plumbline.pipelines.sweeps.computing import compute_missing_cells
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.pipelines.sweeps.results import FinishedSweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.commands import FinishedJob, load_job_config, open_store_at, run

SMALL_SHARDS = ShardSize(4)
Score = Callable[[str, Mapping[str, Any]], float]
"""Function that returns the score of an image, given the name of its generator and the ids of the image."""

SHAPES_FOLDER = Path(__file__).parent.parent / "assets" / "shapes"
SMALL_OPTIONS = (
    "cluster=here",
    "shard_rows=4",
    "cluster.pools.answers.threads=1",
    "cluster.pools.answers.min_size=1",
    "cluster.pools.answers.max_size=1",
)
"""Options for shards of four rows that are computed in the test's own process.

If `cluster=local` follows them, they configure small pools on Ray.
"""


def read_prompt_rows(count: int) -> list[dict[str, Any]]:
    """Return the rows of the first `count` prompts of the embedded benchmark."""
    return [dict(row) for row in pq.read_table(SHAPES_FOLDER / "prompts.parquet").slice(0, count).to_pylist()]


def read_image_rows(generator: str, count: int) -> list[dict[str, Any]]:
    """Return the rows of a generator's first `count` images in the embedded benchmark, with image and prompt ids."""
    table = pq.read_table(
        SHAPES_FOLDER / "images" / generator / "00000.parquet", columns=["image_id", "prompt_id", "image"]
    )
    return [dict(row) for row in table.slice(0, count).to_pylist()]


def list_captioned_images(generator: str, count: int) -> list[dict[str, Any]]:
    """Return the rows of a generator's first `count` images, with the prompts' texts and unusual column names."""
    texts = {prompt["prompt_id"]: prompt["text"] for prompt in read_prompt_rows(count)}
    return [
        {"picture": row["image"], "caption": texts[row["prompt_id"]], "seed": number}
        for number, row in enumerate(read_image_rows(generator, count))
    ]


CAPTIONED_OPTIONS = ("benchmark.columns.image=picture", "benchmark.columns.prompt=caption")
"""Options for reading the rows that `list_captioned_images` returns."""


UNJUDGED_OPTIONS = ("sweep=own_images", "models=shapes")
"""Options for a sweep that does not compare its scores with people's ratings.

The comparison would take most of a small sweep's time.
"""


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]], *, row_group: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path, row_group_size=row_group)


def corrupt(file: Path) -> None:
    """Make a file unreadable without changing its size or modification time."""
    state = file.stat()
    file.write_bytes(bytes(state.st_size))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def write_benchmark(folder: Path, generators: Sequence[str] = ("atlas", "flint"), count: int = 8) -> Path:
    """Write the first `count` prompts and their images, with four rows per row group; return the folder."""
    write_rows(folder / "prompts.parquet", read_prompt_rows(count))
    for generator in generators:
        write_rows(folder / "images" / generator / "00000.parquet", read_image_rows(generator, count))
    return folder


def list_arguments(folder: str | Path, store: str | Path, *more: str) -> list[str]:
    """Return the arguments of a sweep over a small benchmark: embedded checkpoints, four rows per shard, no Ray.

    The metrics are VQAScore and CLIPScore unless `more` sets others.
    """
    chosen = {word.partition("=")[0] for word in more}
    sweep = () if "sweep" in chosen else ("sweep=shapes",)
    metrics = () if "metric" in chosen else ("metric=[vqascore,clipscore]",)
    where = (f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images", f"store={store}")
    return [*sweep, *metrics, "benchmark.name=small", *where, *SMALL_OPTIONS, *more]


def make_sweep_config(folder: str | Path, store: str | Path, *overrides: str) -> SweepConfig:
    return cast(SweepConfig, load_job_config("sweep", *list_arguments(folder, store, *overrides)))


def make_score_config(images: str | Path, store: str | Path, *overrides: str) -> SweepConfig:
    """Return the configuration of jobs.score with tiny checkpoints, for images whose rows contain their own prompts."""
    words = ("models=shapes", f"benchmark.images={images}", f"store={store}", *SMALL_OPTIONS, *overrides)
    return cast(SweepConfig, load_job_config("score", *words))


def list_sources(benchmark: BenchmarkConfig, shard_size: ShardSize = SMALL_SHARDS) -> Sources:
    """List the sources of a benchmark's rows in the same way as a job without a store."""
    return open_sources(benchmark, StorageConfig(), shard_size=shard_size, cache=ImageFileCache(None, benchmark))


def plan_bench(folder: str | Path, store: str | Path, *overrides: str) -> PlannedSweep:
    return plan_sweep(make_sweep_config(folder, store, *overrides))


def run_bench(folder: str | Path, store: str | Path, *overrides: str) -> FinishedSweep:
    return run_config(make_sweep_config(folder, store, *overrides))


def run_config(config: SweepConfig) -> FinishedSweep:
    return run_plan(plan_sweep(config))


def run_plan(planned: PlannedSweep) -> FinishedSweep:
    return run_sweep(planned, lambda event: None)


def read_run_tables(done: FinishedSweep) -> dict[str, pd.DataFrame]:
    return {name: pd.read_parquet(f"{done.folder}/{name}.parquet") for name in ("scores", "summary", "errors")}


def compute_cells(planned: PlannedSweep) -> dict[str, Outcome]:
    """Compute the missing cells of a plan without writing a run; return the outcomes, keyed by the cells' paths."""
    return compute_missing_cells(planned, lambda event: None)


def save_scores(planned: PlannedSweep, score: Score = lambda generator, image: 0.5) -> None:
    """Commit every missing scores cell with the values of `score`, so that no model needs to run."""
    for metric, cells in planned.plan.scores.items():
        for cell in cells:
            images = read_shard(cell.shard, ("image_id", "prompt_id")).to_pylist()
            of_metric = {"generator": cell.shard.group, "metric": metric}
            scores = [{**image, **of_metric, "score": score(cell.shard.group, image)} for image in images]
            planned.store.save(planned.plan.make_cell(cell), rows.table(scores, schemas.ELEMENT_SCORES))


class Bench:
    """A small benchmark and a store, with methods that run jobs on both."""

    def __init__(self, folder: Path, *words: str, store: str | Path | None = None, **made: Any) -> None:
        self.folder = write_benchmark(folder / "bench", **made)
        self.store = open_store_at(store or folder / "store")
        self.words = words if any(word.startswith("sweep=") for word in words) else (*UNJUDGED_OPTIONS, *words)

    @property
    def runs(self) -> Path:
        """Folder of the store's runs."""
        return Path(self.store.place.url) / "runs"

    def list_arguments(self, *more: str) -> list[str]:
        """Return the arguments of a sweep over this benchmark with this store, followed by `more`."""
        return list_arguments(self.folder, self.store.place.url, *self.words, *more)

    def run(self, *more: str, job: str = "sweep") -> FinishedJob:
        """Run a job on this benchmark and store, as if its command line had been typed."""
        return run(job, *self.list_arguments(*more))

    def plan(self, *more: str) -> PlannedSweep:
        return plan_sweep(load_job_config("sweep", *self.list_arguments(*more)))

    def write(self, generator: str, images: Sequence[Mapping[str, Any]], file: str = "00000") -> Path:
        """Write the Parquet file `file` with rows of a generator's images, and return its path."""
        path = self.folder / f"images/{generator}/{file}.parquet"
        write_rows(path, images)
        return path

    def flip(self, *paths: str) -> None:
        """Flip one bit in each of these files of the store, or in all files in these folders."""
        for path in (file for given in paths for file in (self.store.files(given) or [given])):
            file = Path((self.store.place / path).path)
            content = bytearray(file.read_bytes())
            content[len(content) // 3] ^= 1
            file.write_bytes(content)

    def copy_to(self, folder: Path) -> "Bench":
        """Return the same benchmark with a copy of the store in another folder."""
        other = copy(self)
        other.store = open_store_at(shutil.copytree(self.store.place.url, folder / "store"))
        return other

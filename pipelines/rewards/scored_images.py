"""A run's scores as arrays over its images, which are indexed in the order of the sources."""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.metrics.table import AnyMetric
from plumbline.operators.rewards.values import Codes, Floats
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.shards import get_run_shard_size
from plumbline.pipelines.sources.sources import Sources, open_sources
from plumbline.pipelines.sources.uris import UriReader, open_benchmark_uris
from plumbline.pipelines.store.cells import Shard
from plumbline.pipelines.store.runs import find_run, read_manifest
from plumbline.pipelines.store.store import Store, get_draft_path

SOURCES_CHANGED_MESSAGE = (
    "the sources have changed since the run; run the sweep again, which asks no model about unchanged images"
)
ID_COLUMNS = ("image_id", "prompt_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMetrics:
    """The `metrics` section of a run's configuration."""

    metrics: Mapping[str, AnyMetric]


class ScoredShard(NamedTuple):
    """A shard of images, with the cells that contain the scores of these images."""

    shard: Shard
    first: int
    """Index of the shard's first image in the run."""
    cells: dict[str, str]
    """Path of the cell that contains the scores, by metric."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredRun:
    """A run with its sources. Images are indexed shard by shard and row by row."""

    run_id: str
    manifest: Mapping[str, Any]
    metrics: Mapping[str, AnyMetric]
    sources: Sources
    limits: ImageLimits
    uris: UriReader
    shards: Sequence[ScoredShard]
    image_ids: pa.ChunkedArray
    prompts: Codes
    """Row of each image's prompt in `sources.prompts`; an image without a prompt has the number of prompts instead."""
    scores: Mapping[str, Floats]
    """Scores by metric, not negated; nan if missing."""
    edited: bool
    """True if the benchmark specifies the source images that the images were edited from."""
    parts: Sequence[str]
    """Names of the run's score files, which identify their content."""

    def find_shard(self, image: int) -> ScoredShard:
        return self.shards[bisect_right(self.shards, image, key=lambda scored: scored.first) - 1]

    def get_generator(self, image: int) -> str:
        return self.find_shard(image).shard.group

    def get_image_id(self, image: int) -> str:
        return str(self.image_ids[image].as_py())

    def list_recipes(self, metrics: Collection[str]) -> dict[str, str]:
        """Return the first eight characters of each metric's recipe digest, by metric; omit metrics without cells."""
        paths = {name: path for scored in self.shards for name, path in scored.cells.items()}
        return {name: paths[name].split("/")[1] for name in metrics if name in paths}

    def get_oriented_scores(self, metric: str) -> Floats:
        """Return the scores of a metric, negated if lower scores are better."""
        scores = self.scores[metric]
        return -scores if self.metrics[metric].prefers_lower else scores


def gather_scores(store: Store, run: str, names: Sequence[str] | None) -> ScoredRun:
    """Read the scores of the given metrics (all if None), and list the run's sources.

    Raises ConfigError if the run lacks a metric, or if its sources have changed.
    """
    run_id = find_run(store, run)
    manifest = read_manifest(store, run_id)
    if manifest.get("seen"):
        raise ConfigError(
            f"run {run_id}: expected scores for all prompts, found a subsample; run the sweep without adaptive, and "
            "use that run"
        )
    config = manifest.get("config", {})
    metrics = _read_metrics(config, names)
    benchmark = read_config(config.get("benchmark", {}), BenchmarkConfig)
    limits = read_config(config.get("limits", {}), ImageLimits)
    sources = open_sources(
        benchmark, store.place.storage, shard_size=get_run_shard_size(config), cache=ImageFileCache(store, benchmark)
    )
    shards: dict[tuple[str, str], ScoredShard] = {}
    total = 0
    for shard in sources.image_shards:
        shards[shard.group, shard.name] = ScoredShard(shard, total, {})
        total += shard.rows
    scores = {name: np.full(total, np.nan) for name in metrics}
    prompt_rows = {name: row for row, name in enumerate(sources.prompts.column("prompt_id").to_pylist())}
    prompts = np.full(total, len(sources.prompts), np.int32)
    image_ids: dict[tuple[str, str], pa.Array] = {}
    for key, path, table in _read_cells(store, f"runs/{run_id}", shards):
        metric = str(table.column("metric")[0].as_py()) if len(table) else ""
        if metric not in metrics:
            continue
        scored = shards[key]
        scored.cells[metric] = path
        images = slice(scored.first, scored.first + len(table))
        scores[metric][images] = table.column("score").to_numpy()
        if (key not in image_ids or image_ids[key].null_count) and len(table) == scored.shard.rows:
            image_ids[key] = table.column("image_id").combine_chunks()
            prompt_ids = table.column("prompt_id").to_pylist()
            prompts[images] = [prompt_rows.get(prompt_id, len(sources.prompts)) for prompt_id in prompt_ids]
    no_ids = (pa.nulls(scored.shard.rows, pa.string()) for scored in shards.values())
    return ScoredRun(
        run_id=run_id,
        manifest=manifest,
        metrics=metrics,
        sources=sources,
        limits=limits,
        uris=open_benchmark_uris(benchmark, store.place.storage, limits),
        shards=list(shards.values()),
        image_ids=pa.chunked_array(
            [image_ids.get(key, none) for key, none in zip(shards, no_ids, strict=True)], pa.string()
        ),
        prompts=prompts,
        scores=scores,
        edited=bool(benchmark.columns.sources),
        parts=[path.rpartition("/")[2] for path in store.files(f"runs/{run_id}/scores.parquet")],
    )


def _read_metrics(config: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, AnyMetric]:
    """Return the run's metrics that rank images and are in `names` (all if None)."""
    options = config.get("metrics", {})
    absent = [name for name in names or () if name not in options]
    if absent:
        raise ConfigError(f"reward: expected metrics of the run ({', '.join(options) or 'none'}), got {absent[0]!r}")
    metrics = dict(read_config({"metrics": {name: options[name] for name in names or options}}, RunMetrics).metrics)
    unranked = [name for name, metric in metrics.items() if not metric.ranks]
    if names and unranked:
        raise ConfigError(f"reward: {unranked[0]} does not rank images; leave it out of the reward")
    return {name: metric for name, metric in metrics.items() if metric.ranks}


def _read_cells(
    store: Store, run: str, shards: Mapping[tuple[str, str], ScoredShard]
) -> Iterator[tuple[tuple[str, str], str, pa.Table]]:
    """Yield the shard, path and rows of each cell of a run's scores; rows are in the order of the shard."""
    table = store.read_table(f"{run}/cells.parquet", ["path", "state", "first_row"])
    rows = sorted(
        (row for row in table.to_pylist() if row["first_row"] is not None), key=lambda row: int(row["first_row"])
    )
    ends = [row["first_row"] for row in rows[1:]] + [None]
    cells = deque[tuple[tuple[str, str], str, int, int]]()
    for row, end in zip(rows, ends, strict=True):
        *_, generator, file = row["path"].split("/")
        key = (generator, file.removesuffix(".parquet")[:-9])
        if key not in shards:
            raise ConfigError(f"{generator}: {SOURCES_CHANGED_MESSAGE}")
        length = shards[key].shard.rows
        length = length if end is None else min(length, end - row["first_row"])
        path = get_draft_path(row["path"]) if row["state"] == "draft" else row["path"]
        cells.append((key, path, row["first_row"], length))
    first = 0  # row of the run's scores at which the file begins
    for file in store.files(f"{run}/scores.parquet"):
        scores = store.read_table(file, [*ID_COLUMNS, "metric", "score"])
        while cells and cells[0][2] < first + len(scores):
            key, path, begin, length = cells.popleft()
            yield key, path, scores.slice(begin - first, length)
        first += len(scores)


def read_digests(store: Store, scored: ScoredShard) -> NDArray[np.str_] | None:
    """Read the digests that a shard's images had when they were scored; None if no cell with digests exists."""
    for path in scored.cells.values():
        try:
            upstream = store.read_cell(path, ["image_id"]).provenance["inputs"]
            for name in upstream:
                table = store.read_cell(name).table
                if "image_digest" in table.column_names and len(table) == scored.shard.rows:
                    return np.array(table.column("image_digest").fill_null("").to_pylist(), dtype=str)
        except PlumblineError:
            continue
    return None


def read_elements(store: Store, scored: ScoredShard) -> dict[str, list[Any]]:
    """Return the elements (scores of individual questions or words) of a shard's images, in row order, by metric.

    Metrics without elements are left out.
    """
    elements: dict[str, list[Any]] = {}
    for metric, path in scored.cells.items():
        column = store.read_cell(path, ["elements"]).table.column("elements")
        if column.null_count < len(column):
            elements[metric] = column.to_pylist()
    return elements

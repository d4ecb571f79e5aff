"""A run's scores as arrays over its images, which are numbered in the order of the sources."""

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
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.shards import run_shard_size
from plumbline.pipelines.sources.sources import Sources, open_sources
from plumbline.pipelines.sources.uris import Uris, benchmark_uris
from plumbline.pipelines.store.cells import Shard
from plumbline.pipelines.store.runs import find_run, read_manifest
from plumbline.pipelines.store.store import Store, draft_path

CHANGED = "the sources have changed since the run; run the sweep again, which asks no model about unchanged images"
IDS = ("image_id", "prompt_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMetrics:
    """The part of a run's configuration with its metrics."""

    metrics: Mapping[str, AnyMetric]


class ScoredShard(NamedTuple):
    """A shard of images."""

    shard: Shard
    first: int
    """Number of its first image in the run."""
    cells: dict[str, str]
    """Path of the cell with the scores, by metric."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredRun:
    """A run with its sources. Images are numbered shard by shard, row by row."""

    run_id: str
    manifest: Mapping[str, Any]
    metrics: Mapping[str, AnyMetric]
    sources: Sources
    limits: ImageLimits
    uris: Uris
    shards: Sequence[ScoredShard]
    image_ids: pa.ChunkedArray
    prompts: Codes
    """Row of each image's prompt in `sources.prompts`; -1 if there is none."""
    scores: Mapping[str, Floats]
    """Scores by metric, in the metric's own direction; nan if missing."""
    edited: bool
    """True if the benchmark names the sources that the images were edited from."""
    parts: Sequence[str]
    """Files of the run's scores, whose names identify their content."""

    def shard_of(self, image: int) -> ScoredShard:
        return self.shards[bisect_right(self.shards, image, key=lambda scored: scored.first) - 1]

    def generator(self, image: int) -> str:
        return self.shard_of(image).shard.group

    def image_id(self, image: int) -> str:
        return str(self.image_ids[image].as_py())

    def recipes(self, metrics: Collection[str]) -> dict[str, str]:
        """Return the first eight characters of the digests of these metrics' recipes."""
        paths = {name: path for scored in self.shards for name, path in scored.cells.items()}
        return {name: paths[name].split("/")[1] for name in metrics if name in paths}

    def higher_is_better(self, metric: str) -> Floats:
        """Return the scores of a metric, negated if it prefers lower scores."""
        scores = self.scores[metric]
        return -scores if self.metrics[metric].prefers_lower else scores


def gather_scores(store: Store, run: str, names: Sequence[str] | None) -> ScoredRun:
    """Read the scores of these metrics, or of all if None, and list the run's sources.

    Raises ConfigError if the run lacks a metric, or if its sources have changed.
    """
    run_id = find_run(store, run)
    manifest = read_manifest(store, run_id)
    if manifest.get("seen"):
        raise ConfigError(f"run {run_id}: has scores of a subsample; run the sweep without adaptive, and use that run")
    config = manifest.get("config", {})
    metrics = _read_metrics(config, names)
    benchmark = read_config(config.get("benchmark", {}), BenchmarkConfig)
    limits = read_config(config.get("limits", {}), ImageLimits)
    sources = open_sources(
        benchmark, store.place.storage, shard_size=run_shard_size(config), memory=FileMemory(store, benchmark)
    )
    shards: dict[tuple[str, str], ScoredShard] = {}
    total = 0
    for shard in sources.image_shards:
        shards[shard.group, shard.name] = ScoredShard(shard, total, {})
        total += shard.rows
    reader = _Reader(store, f"runs/{run_id}", shards, total, metrics, sources)
    reader.read()
    return ScoredRun(
        run_id=run_id,
        manifest=manifest,
        metrics=metrics,
        sources=sources,
        limits=limits,
        uris=benchmark_uris(benchmark, store.place.storage, limits),
        shards=list(shards.values()),
        image_ids=reader.image_ids(),
        prompts=reader.prompts,
        scores=reader.scores,
        edited=bool(benchmark.columns.sources),
        parts=[path.rpartition("/")[2] for path in store.files(f"runs/{run_id}/scores.parquet")],
    )


def _read_metrics(config: Mapping[str, Any], names: Sequence[str] | None) -> dict[str, AnyMetric]:
    """Return the run's metrics with these names (all if None) that rank images."""
    options = config.get("metrics", {})
    absent = [name for name in names or () if name not in options]
    if absent:
        raise ConfigError(f"reward: the run has no {absent[0]!r}; it has {', '.join(options) or 'none'}")
    metrics = dict(read_config({"metrics": {name: options[name] for name in names or options}}, RunMetrics).metrics)
    unranked = [name for name, metric in metrics.items() if not metric.ranks]
    if names and unranked:
        raise ConfigError(f"reward: by {unranked[0]} no image is better than another; leave it out of the reward")
    return {name: metric for name, metric in metrics.items() if metric.ranks}


class _Reader:
    """Reads the files of a run's scores, and splits them into cells, which have the order of their shard."""

    def __init__(
        self,
        store: Store,
        folder: str,
        shards: Mapping[tuple[str, str], ScoredShard],
        total: int,
        metrics: Mapping[str, AnyMetric],
        sources: Sources,
    ) -> None:
        self.store, self.folder, self.shards, self.metrics = store, folder, shards, metrics
        self.scores = {name: np.full(total, np.nan) for name in metrics}
        self.prompts = np.full(total, -1, np.int32)
        ids = sources.prompts.column("prompt_id").to_pylist()
        self._prompt_rows = {prompt_id: row for row, prompt_id in enumerate(ids)}
        self._ids: dict[tuple[str, str], pa.Array] = {}

    def read(self) -> None:
        cells = deque(self._cells())
        first = 0
        for path in self.store.files(f"{self.folder}/scores.parquet"):
            table = self.store.read_table(path, [*IDS, "metric", "score"])
            while cells and cells[0]["first_row"] < first + len(table):
                cell = cells.popleft()
                self._add(cell, table.slice(cell["first_row"] - first, cell["rows"]))
            first += len(table)

    def _cells(self) -> Iterator[dict[str, Any]]:
        """Yield the cells of the run's scores in order, each with its shard and number of rows."""
        table = self.store.read_table(f"{self.folder}/cells.parquet", ["path", "state", "first_row"])
        score_cells = [row for row in table.to_pylist() if row["first_row"] is not None]
        score_cells.sort(key=lambda row: row["first_row"])
        ends = [row["first_row"] for row in score_cells[1:]] + [None]
        for row, end in zip(score_cells, ends, strict=True):
            *_, generator, file = row["path"].split("/")
            key = (generator, file.removesuffix(".parquet")[:-9])
            if key not in self.shards:
                raise ConfigError(f"{generator}: {CHANGED}")
            rows = self.shards[key].shard.rows
            path = draft_path(row["path"]) if row["state"] == "draft" else row["path"]
            rows = rows if end is None else min(rows, end - row["first_row"])
            yield {"path": path, "key": key, "first_row": row["first_row"], "rows": rows}

    def _add(self, cell: Mapping[str, Any], rows: pa.Table) -> None:
        metric = str(rows.column("metric")[0].as_py()) if len(rows) else ""
        if metric not in self.metrics:
            return
        scored = self.shards[cell["key"]]
        scored.cells[metric] = cell["path"]
        images = slice(scored.first, scored.first + len(rows))
        self.scores[metric][images] = rows.column("score").to_numpy()
        known = cell["key"] in self._ids and not self._ids[cell["key"]].null_count
        if not known and len(rows) == scored.shard.rows:
            self._ids[cell["key"]] = rows.column("image_id").combine_chunks()
            prompt_ids = rows.column("prompt_id").to_pylist()
            self.prompts[images] = [self._prompt_rows.get(prompt_id, -1) for prompt_id in prompt_ids]

    def image_ids(self) -> pa.ChunkedArray:
        """Return the ids of all images, null if no cell has them."""
        chunks = [self._ids.get(key, pa.nulls(scored.shard.rows, pa.string())) for key, scored in self.shards.items()]
        return pa.chunked_array(chunks, pa.string())


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
    """Read each image's elements, by metric with questions."""
    elements: dict[str, list[Any]] = {}
    for metric, path in scored.cells.items():
        column = store.read_cell(path, ["elements"]).table.column("elements")
        if column.null_count < len(column):
            elements[metric] = column.to_pylist()
    return elements

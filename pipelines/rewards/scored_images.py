"""A run's scores as arrays over its images, each known by its place in the sources."""

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
from plumbline.pipelines.cells.cells import Shard
from plumbline.pipelines.cells.runs import find_run, read_manifest
from plumbline.pipelines.cells.store import Store, draft_path
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.shards import run_shard_size
from plumbline.pipelines.sources.sources import Sources, open_sources
from plumbline.pipelines.sources.uris import Uris, benchmark_uris

CHANGED = "the sources have changed since the run; run the sweep again, which asks no model about what it knows"
IDS = ("image_id", "prompt_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMetrics:
    """Of a run's configuration, its metrics."""

    metrics: Mapping[str, AnyMetric]


class ScoredShard(NamedTuple):
    """An images shard of the run, and by metric the cell with its scores."""

    shard: Shard
    first: int
    """The number of its first image among all of the run."""
    cells: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredRun:
    """A run with its sources, and its images numbered through: shard by shard, row by row."""

    run_id: str
    manifest: Mapping[str, Any]
    metrics: Mapping[str, AnyMetric]
    sources: Sources
    limits: ImageLimits
    uris: Uris
    shards: Sequence[ScoredShard]
    image_ids: pa.ChunkedArray
    prompts: Codes
    """Of every image the row of `sources.prompts`; -1 where it names none that is there."""
    scores: Mapping[str, Floats]
    """By metric, as it gives them; nan where there is none."""
    edited: bool
    """Whether its images were edited from others, which the benchmark names."""
    parts: Sequence[str]
    """The files of the run's scores, whose names tell what they follow from."""

    def shard_of(self, image: int) -> ScoredShard:
        """The shard in which an image stands."""
        return self.shards[bisect_right(self.shards, image, key=lambda scored: scored.first) - 1]

    def generator(self, image: int) -> str:
        return self.shard_of(image).shard.group

    def image_id(self, image: int) -> str:
        return str(self.image_ids[image].as_py())

    def recipes(self, metrics: Collection[str]) -> dict[str, str]:
        """The first eight characters of the digests of these metrics' recipes, as the run's cells have them."""
        paths = {name: path for scored in self.shards for name, path in scored.cells.items()}
        return {name: paths[name].split("/")[1] for name in metrics if name in paths}

    def oriented(self, metric: str) -> Floats:
        """The scores of a metric, higher being better."""
        scores = self.scores[metric]
        return -scores if self.metrics[metric].prefers_lower else scores


def gather_scores(store: Store, run: str, wanted: Sequence[str] | None) -> ScoredRun:
    """Reads a run's scores part by part, and lists its sources; raises ConfigError where either has gone.

    Raises it too where a metric of `wanted`, None being all, is not one of the run's.
    """
    run_id = find_run(store, run)
    manifest = read_manifest(store, run_id)
    if manifest.get("seen"):
        raise ConfigError(f"run {run_id}: has scores of a subsample; run the sweep without adaptive, and take that run")
    config = manifest.get("config", {})
    metrics = _metrics(config, wanted)
    benchmark = read_config(config.get("benchmark", {}), BenchmarkConfig)
    limits = read_config(config.get("limits", {}), ImageLimits)
    sources = open_sources(
        benchmark, store.place.storage, shard_size=run_shard_size(config), memory=FileMemory(store, benchmark)
    )
    shards, total = _number(sources)
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


def _metrics(config: Mapping[str, Any], wanted: Sequence[str] | None) -> dict[str, AnyMetric]:
    """The options of the metrics that are wanted, as the run had them; image statistics are no reward."""
    of_run = config.get("metrics", {})
    absent = [name for name in wanted or () if name not in of_run]
    if absent:
        raise ConfigError(f"reward: the run has no {absent[0]!r}; it has {', '.join(of_run) or 'none'}")
    chosen = {name: of_run[name] for name in wanted or of_run}
    metrics = dict(read_config({"metrics": chosen}, RunMetrics).metrics)
    unranked = [name for name, metric in metrics.items() if not metric.ranks]
    if wanted and unranked:
        raise ConfigError(f"reward: by {unranked[0]} no image is better than another; leave it out of the reward")
    return {name: metric for name, metric in metrics.items() if metric.ranks}


def _number(sources: Sources) -> tuple[dict[tuple[str, str], ScoredShard], int]:
    shards: dict[tuple[str, str], ScoredShard] = {}
    total = 0
    for shard in sources.image_shards:
        shards[shard.group, shard.name] = ScoredShard(shard, total, {})
        total += shard.rows
    return shards, total


class _Reader:
    """Takes the parts of a run's scores apart into their cells, each of which is a shard in its order."""

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
                self._take(cell, table.slice(cell["first_row"] - first, cell["rows"]))
            first += len(table)

    def _cells(self) -> Iterator[dict[str, Any]]:
        """The cells of the run's scores in their order, each with its shard and number of rows."""
        table = self.store.read_table(f"{self.folder}/cells.parquet", ["path", "state", "first_row"])
        placed = [row for row in table.to_pylist() if row["first_row"] is not None]
        placed.sort(key=lambda row: row["first_row"])
        ends = [row["first_row"] for row in placed[1:]] + [None]
        for row, end in zip(placed, ends, strict=True):
            *_, generator, file = row["path"].split("/")
            key = (generator, file.removesuffix(".parquet")[:-9])
            if key not in self.shards:
                raise ConfigError(f"{generator}: {CHANGED}")
            rows = self.shards[key].shard.rows
            path = draft_path(row["path"]) if row["state"] == "draft" else row["path"]
            rows = rows if end is None else min(rows, end - row["first_row"])
            yield {"path": path, "key": key, "first_row": row["first_row"], "rows": rows}

    def _take(self, cell: Mapping[str, Any], rows: pa.Table) -> None:
        metric = str(rows.column("metric")[0].as_py()) if len(rows) else ""
        if metric not in self.metrics:
            return
        scored = self.shards[cell["key"]]
        scored.cells[metric] = cell["path"]
        place = slice(scored.first, scored.first + len(rows))
        self.scores[metric][place] = rows.column("score").to_numpy()
        known = cell["key"] in self._ids and not self._ids[cell["key"]].null_count
        if not known and len(rows) == scored.shard.rows:
            self._ids[cell["key"]] = rows.column("image_id").combine_chunks()
            prompt_ids = rows.column("prompt_id").to_pylist()
            self.prompts[place] = [self._prompt_rows.get(prompt_id, -1) for prompt_id in prompt_ids]

    def image_ids(self) -> pa.ChunkedArray:
        """Of all images; null where no cell tells."""
        chunks = [self._ids.get(key, pa.nulls(scored.shard.rows, pa.string())) for key, scored in self.shards.items()]
        return pa.chunked_array(chunks, pa.string())


def digests_of(store: Store, scored: ScoredShard) -> NDArray[np.str_] | None:
    """The digests of a shard's images as they were scored, as far as a cell that looked at them still stands."""
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


def elements_of(store: Store, scored: ScoredShard) -> dict[str, list[Any]]:
    """By metric that asks questions, each image's elements."""
    elements: dict[str, list[Any]] = {}
    for metric, path in scored.cells.items():
        column = store.read_cell(path, ["elements"]).table.column("elements")
        if column.null_count < len(column):
            elements[metric] = column.to_pylist()
    return elements

"""Reads a finished run's data for a report: prompts, images, agreement with human ratings, and score distributions."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import schemas
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.metaeval.contradicted_images import ContradictedImage
from plumbline.operators.metaeval.corrected_means import CorrectedMean
from plumbline.operators.metaeval.graphs import make_correlation_matrices
from plumbline.operators.metaeval.judgement import Comparison, Judgement, Order
from plumbline.operators.metrics.table import read_lower_is_better
from plumbline.operators.report.agreement import Agreement
from plumbline.operators.report.changes import list_comparable_metrics
from plumbline.operators.results.metric_recipes import list_unranked_metrics
from plumbline.operators.results.percentile_ranks import UsualScores, select_largest_sketches
from plumbline.operators.statistics.bootstrap import Interval
from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.pipelines.base.storage import get_first_line, is_storage_error
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.sources.adaptive_rounds import split_rounds
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.image_files import open_images
from plumbline.pipelines.sources.prompts import open_prompts
from plumbline.pipelines.sources.shards import get_run_shard_size
from plumbline.pipelines.sources.sources import Sources, open_sources
from plumbline.pipelines.sources.uris import UriReader, open_benchmark_uris
from plumbline.pipelines.store.cells import Shard
from plumbline.pipelines.store.runs import N_READERS, read_runs_newest_first
from plumbline.pipelines.store.store import Store

AGREEMENT_FILES = {"graphs": "graphs", "graph_images": "graph_images", "ratings": "mean_ratings"}
"""File names of the optional tables of a judged run, by the field of Agreement that contains them."""
MAX_RUNS = 120
"""Maximum number of runs, newest first, whose score distributions are read for a report."""


class OriginalSources(NamedTuple):
    """Prompts and images that a run scored."""

    prompts: pa.Table
    shards: Mapping[tuple[str, str], Shard]
    """Shards of images by generator and name."""
    prompt_shards: Sequence[Shard]
    limits: ImageLimits
    uris: UriReader


def find_originals(
    manifest: Mapping[str, Any], store: Store, sources: Sources | None = None
) -> tuple[OriginalSources | None, str]:
    """Return a run's prompts and images, or None and the reason if they can no longer be read.

    `sources` are the run's sources if they have just been read.
    """
    try:
        return _open_originals(manifest, store, sources), ""
    except Exception as error:
        if not isinstance(error, PlumblineError) and not is_storage_error(error):
            raise
        return None, get_first_line(error)


def _open_originals(manifest: Mapping[str, Any], store: Store, sources: Sources | None) -> OriginalSources:
    """Return a run's prompts and images; raise PlumblineError or a storage error if they can no longer be read.

    If `sources` is None, the files are listed, and files that are not in the store's cache are opened. If the prompts
    are in a separate file, only the footers of image files are read.
    """
    config = manifest.get("config", {})
    limits = read_config(config.get("limits", {}), ImageLimits)
    benchmark = read_config(config.get("benchmark", {}), BenchmarkConfig)
    size, storage, cache = get_run_shard_size(config), store.place.storage, ImageFileCache(store, benchmark)
    uris = open_benchmark_uris(benchmark, storage, limits)
    whole = benchmark.limit is None and benchmark.require_every_image and not manifest.get("seen")
    if sources is None and (benchmark.prompts is None or not whole):
        sources = open_sources(benchmark, storage, shard_size=size, cache=cache)
        if seen := manifest.get("seen"):  # an adaptive run only scored the first rounds
            rounds = split_rounds(sources, benchmark, uris, read_config(config["adaptive"], AdaptiveConfig), cache)
            sources = rounds.select_rounds_up_to(rounds.find_round(seen["prompts"]))
    if sources is not None:
        prompts, shards, prompt_shards = sources.prompts, sources.image_shards, sources.prompt_shards
    else:
        tables = open_prompts(benchmark, storage, size)
        prompts, prompt_shards = tables.table, tables.shards
        shards = open_images(benchmark, storage, size, tables, cache).shards
    by_name = {(shard.group, shard.name): shard for shard in shards}
    return OriginalSources(prompts, by_name, prompt_shards, limits, uris)


def read_judge_noise(store: Store, run_id: str) -> pa.Table:
    """Read the noise of judges that were asked repeatedly (schema JUDGE_NOISE); empty if every judge was asked once."""
    path = f"runs/{run_id}/judge_noise.parquet"
    return store.read_table(path) if store.exists(path) else schemas.JUDGE_NOISE.empty_table()


def read_agreement(store: Store, run_id: str) -> Agreement | None:
    """Read how well a run's metrics agree with human judgements; None if they have not been compared."""
    folder = f"runs/{run_id}/metaeval"
    page = store.read_text(f"{folder}/judgements.md")
    if page is None:
        return None

    def read_rows(name: str, *, optional: bool = True) -> list[dict[str, Any]]:
        """Read a table's rows; missing strings become empty, and other missing values nan."""
        path = f"{folder}/{name}.parquet"
        if optional and not store.exists(path):
            return []
        table = store.read_table(path)
        texts = {name for name in table.column_names if str(table.schema.field(name).type) == "string"}
        return [
            {name: ("" if name in texts else math.nan) if value is None else value for name, value in row.items()}
            for row in table.to_pylist()
        ]

    judgements = read_rows("judgements", optional=False)
    return Agreement(
        judgements=[Judgement(**{"interval": Interval(row.pop("low"), row.pop("high")), **row}) for row in judgements],
        comparisons=[Comparison(**row) for row in read_rows("comparisons", optional=False)],
        notes=[line.removeprefix("- ") for line in page.splitlines() if line.startswith("- ")],
        corrected=[CorrectedMean(**row) for row in read_rows("corrected")],
        contradicted=[ContradictedImage(**row) for row in read_rows("contradicted")],
        graph_correlations=make_correlation_matrices(pd.DataFrame(read_rows("graph_correlations"))),
        orders=[Order(**row) for row in read_rows("orders")],
        **{
            name: store.read_table(f"{folder}/{file}.parquet").to_pandas()
            for name, file in AGREEMENT_FILES.items()
            if store.exists(f"{folder}/{file}.parquet")
        },
    )


def read_usual_scores(store: Store, run_id: str, manifest: Mapping[str, Any]) -> UsualScores:
    """Read the score distributions of a run, and those of other runs of its benchmark for metrics with the same recipe.

    Other runs are considered only if they are among the store's MAX_RUNS newest runs. For each generator and metric,
    only the largest distribution is returned. Metrics that do not rank images are omitted.

    Runs whose stored distributions are missing or damaged are left out and counted in the result.
    """
    benchmark = manifest.get("benchmark")
    others = [
        (run.run_id, list_comparable_metrics(run.manifest, manifest))
        for run in islice(read_runs_newest_first(store), MAX_RUNS)
        if run.manifest is not None and run.manifest.get("benchmark") == benchmark and run.run_id != run_id
    ]
    wanted = [(run_id, list(manifest.get("metrics", ()))), *((other, names) for other, names in others if names)]

    def read_sketches(run_and_metrics: tuple[str, list[str]]) -> pa.Table | None:
        run, metrics = run_and_metrics
        try:
            kept = store.read_table(f"runs/{run}/usual_scores.parquet")
        except PlumblineError:
            return None
        return kept.filter(pc.is_in(kept.column("metric"), pa.array(metrics, pa.string())))

    with ThreadPoolExecutor(N_READERS) as pool:
        read = list(pool.map(read_sketches, wanted))
    tables = [table for table in read if table is not None]
    unranked = list_unranked_metrics(manifest)
    ranked = {key: sketch for key, sketch in select_largest_sketches(tables).items() if key.metric not in unranked}
    return UsualScores(str(benchmark), ranked, read_lower_is_better(manifest), len(read) - len(tables))

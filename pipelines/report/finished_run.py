"""What a report reads beside a finished run's tables: prompts and images, its diagnosis, its agreement with people."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from plumbline.operators.base import schemas
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.diagnosis.diagnosis import KEPT, Diagnosis, diagnosis_of, shown_tables
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.judging.contradicted_images import ContradictedImage
from plumbline.operators.judging.corrected_means import CorrectedMean
from plumbline.operators.judging.graph_correlations import correlation_matrices
from plumbline.operators.judging.judgement import Comparison, Judgement, Order
from plumbline.operators.report.agreement import Agreement
from plumbline.operators.report.rendering import diagnosis_markdown
from plumbline.operators.statistics.bootstrap import Interval
from plumbline.operators.statistics.options import Adaptive
from plumbline.pipelines.base.storage import first_line, is_storage_error
from plumbline.pipelines.cells.cells import Shard
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.sources.adaptive_rounds import split_rounds
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.prompts import open_prompts
from plumbline.pipelines.sources.shards import run_shard_size
from plumbline.pipelines.sources.sources import Sources, open_images, open_sources
from plumbline.pipelines.sources.uris import Uris, benchmark_uris

FRAMES = {"graphs": "graphs", "graph_images": "graph_images", "ratings": "mean_ratings"}
"""Tables of a judging that some runs lack, by the field of Agreement that has them."""


class Originals(NamedTuple):
    """What a run's scores are of."""

    prompts: pa.Table
    """Schema PROMPTS."""
    shards: Mapping[tuple[str, str], Shard]
    """The shards of images, by generator and name."""
    prompt_shards: Sequence[Shard]
    limits: ImageLimits
    uris: Uris


def find_originals(
    manifest: Mapping[str, Any], store: Store, sources: Sources | None = None
) -> tuple[Originals | None, str]:
    """As `_open_originals`; where they cannot be read any more None, with the reason."""
    try:
        return _open_originals(manifest, store, sources), ""
    except Exception as error:
        if not isinstance(error, PlumblineError) and not is_storage_error(error):
            raise
        return None, first_line(error)


def _open_originals(manifest: Mapping[str, Any], store: Store, sources: Sources | None = None) -> Originals:
    """The prompts and images of the run, of `sources` where they have just been read.

    Else their files are listed, and those opened that the store does not remember; of the images no more is read than
    footers, where prompts have a file of their own.
    Raises PlumblineError, or what a storage client does, where they cannot be read any more.
    """
    config = manifest.get("config", {})
    limits = read_config(config.get("limits", {}), ImageLimits)
    benchmark = read_config(config.get("benchmark", {}), BenchmarkConfig)
    size, storage, memory = run_shard_size(config), store.place.storage, FileMemory(store, benchmark)
    uris = benchmark_uris(benchmark, storage, limits)
    whole = benchmark.limit is None and benchmark.require_every_image and not manifest.get("seen")
    if sources is None and (benchmark.prompts is None or not whole):
        opened = open_sources(benchmark, storage, shard_size=size, memory=memory)
        sources = _as_seen(opened, manifest, benchmark, uris, memory)
    if sources is not None:
        prompts, shards, prompt_shards = sources.prompts, sources.image_shards, sources.prompt_shards
    else:
        tables = open_prompts(benchmark, storage, size)
        prompts, prompt_shards = tables.table, tables.shards
        shards = open_images(benchmark, storage, size, tables, memory).shards
    by_name = {(shard.group, shard.name): shard for shard in shards}
    return Originals(prompts, by_name, prompt_shards, limits, uris)


def _as_seen(
    sources: Sources, manifest: Mapping[str, Any], benchmark: BenchmarkConfig, uris: Uris, memory: FileMemory
) -> Sources:
    """Of an adaptive run, what it looked at."""
    if not (seen := manifest.get("seen")):
        return sources
    rounds = split_rounds(sources, benchmark, uris, read_config(manifest["config"]["adaptive"], Adaptive), memory)
    return rounds.up_to(rounds.round_with(seen["prompts"]))


def write_diagnosis(store: Store, run_id: str, diagnosis: Diagnosis) -> None:
    """Writes its tables as Parquet, and what a person reads as Markdown."""
    folder = _folder(run_id)
    for name, table in diagnosis.tables().items():
        store.write_table(f"{folder}/{name}.parquet", table)
    store.write_text(f"{folder}/diagnosis.md", diagnosis_markdown(shown_tables(diagnosis)))


def read_diagnosis(store: Store, run_id: str) -> Diagnosis | None:
    """What was written of a run, None where it was not diagnosed; diagnosis.md is written last."""
    folder = _folder(run_id)
    if not store.exists(f"{folder}/diagnosis.md"):
        return None
    return diagnosis_of({name: store.read_table(f"{folder}/{name}.parquet") for name in KEPT})


def _folder(run_id: str) -> str:
    return f"runs/{run_id}/diagnosis"


def read_judge_noise(store: Store, run_id: str) -> pa.Table:
    """What judges who were asked several times said each time (schema JUDGE_NOISE); of no rows where none was."""
    path = f"runs/{run_id}/judge_noise.parquet"
    return store.read_table(path) if store.exists(path) else schemas.JUDGE_NOISE.empty_table()


def read_agreement(store: Store, run_id: str) -> Agreement | None:
    """What was found of a run, None where nobody judged it."""
    folder = f"runs/{run_id}/metaeval"
    page = store.read_text(f"{folder}/judgements.md")
    if page is None:
        return None
    judgements, comparisons = (_rows(store, f"{folder}/{name}.parquet") for name in ("judgements", "comparisons"))
    return Agreement(
        judgements=[Judgement(**{"interval": Interval(row.pop("low"), row.pop("high")), **row}) for row in judgements],
        comparisons=[Comparison(**row) for row in comparisons],
        notes=[line.removeprefix("- ") for line in page.splitlines() if line.startswith("- ")],
        corrected=[CorrectedMean(**row) for row in _later_rows(store, f"{folder}/corrected.parquet")],
        contradicted=[ContradictedImage(**row) for row in _later_rows(store, f"{folder}/contradicted.parquet")],
        graph_correlations=correlation_matrices(
            pd.DataFrame(_later_rows(store, f"{folder}/graph_correlations.parquet"))
        ),
        orders=[Order(**row) for row in _later_rows(store, f"{folder}/orders.parquet")],
        **{
            name: store.read_table(f"{folder}/{file}.parquet").to_pandas()
            for name, file in FRAMES.items()
            if store.exists(f"{folder}/{file}.parquet")
        },
    )


def _later_rows(store: Store, path: str) -> list[dict[str, Any]]:
    """Likewise of a table that earlier versions did not write."""
    return _rows(store, path) if store.exists(path) else []


def _rows(store: Store, path: str) -> list[dict[str, Any]]:
    """A table's rows, with nan for what is undefined and empty text for what is not named."""
    table = store.read_table(path)
    texts = {name for name in table.column_names if str(table.schema.field(name).type) == "string"}
    return [
        {name: ("" if name in texts else math.nan) if value is None else value for name, value in row.items()}
        for row in table.to_pylist()
    ]

"""Where the prompts and images of a finished run are, as its manifest names them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.images import ImageLimits
from plumbline.operators.statistics.options import Adaptive
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.cells.cells import Shard
from plumbline.pipelines.plans.config import read_config
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.prompts import open_prompts
from plumbline.pipelines.sources.rounds import cut_rounds
from plumbline.pipelines.sources.sources import Sources, open_images, open_sources
from plumbline.pipelines.sources.uris import Uris, benchmark_uris


class Originals(NamedTuple):
    """What a run's scores are of."""

    prompts: pa.Table
    """Schema PROMPTS."""
    shards: Mapping[tuple[str, str], Shard]
    """The shards of images, by generator and name."""
    limits: ImageLimits
    uris: Uris


def open_originals(manifest: Mapping[str, Any], storage: StorageConfig, sources: Sources | None = None) -> Originals:
    """The prompts and images of the run, of `sources` where they have just been read.

    Else their files are listed, and of the images no more is read than footers, where prompts have a file of their own.
    Raises PlumblineError, or what a storage client does, where they cannot be read any more.
    """
    config = manifest.get("config", {})
    limits = read_config(config.get("limits", {}), ImageLimits)
    benchmark = read_config(config.get("benchmark", {}), BenchmarkConfig)
    shard_rows = config.get("shard_rows", 256)
    uris = benchmark_uris(benchmark, storage, limits)
    whole = benchmark.limit is None and benchmark.require_every_image and not manifest.get("seen")
    if sources is None and (benchmark.prompts is None or not whole):
        sources = _as_seen(open_sources(benchmark, storage, shard_rows=shard_rows), manifest, benchmark, uris)
    if sources is not None:
        prompts, shards = sources.prompts, sources.image_shards
    else:
        prompts = open_prompts(benchmark, storage, shard_rows).table
        shards = open_images(benchmark, storage, shard_rows).shards
    by_name = {(shard.group, shard.name): shard for shard in shards}
    return Originals(prompts, by_name, limits, uris)


def _as_seen(sources: Sources, manifest: Mapping[str, Any], benchmark: BenchmarkConfig, uris: Uris) -> Sources:
    """Of an adaptive run, what it looked at."""
    if not (seen := manifest.get("seen")):
        return sources
    rounds = cut_rounds(sources, benchmark, uris, read_config(manifest["config"]["adaptive"], Adaptive))
    return rounds.up_to(rounds.round_with(seen["prompts"]))

"""Images as they come, folders of files or tars, taken in below a sweep's store so that it can score them."""

from dataclasses import replace
from typing import NamedTuple

from pipelines.config import SweepConfig
from pipelines.ingest.archives import ENDINGS
from pipelines.ingest.config import IngestConfig, IngestLimits, WorkersConfig
from pipelines.ingest.ingest import Ingested, ingest
from pipelines.ingest.layouts.layout import Folder, list_images
from pipelines.ingest.rows import InputColumnsConfig, digest
from pipelines.ingest.shards import Report
from pipelines.sources.benchmark import ColumnsConfig
from pipelines.sources.shards import is_table
from pipelines.sources.sources import PARQUET
from pipelines.storage import Location, locate

FOLDER = "ingested"
"""Of a store."""


class Own(NamedTuple):
    """A sweep over images that rows of their own tell the prompts of."""

    config: SweepConfig
    ingested: Ingested | None
    """What was taken in for it, if that was needed."""


def take_in(config: SweepConfig, report: Report) -> Own:
    """The sweep as it is, where its images are tables; or over what is made of its image files or its tars.

    Image files stay where they are, and the tables have their addresses; what is in a tar is copied.
    Raises ConfigError where nothing tells the prompts of the files.
    """
    benchmark = config.benchmark
    if benchmark.images is None or benchmark.prompts is not None:
        return Own(config, None)
    location = locate(benchmark.images, config.storage)
    folder = list_images(location, "benchmark.images")
    if not _files(folder) or any(is_table(name, PARQUET) for name in folder.names):
        return Own(config, None)
    asked = _ingest_config(config, location, folder)
    ingested = ingest(asked, report)
    taken = replace(
        benchmark,
        prompts=f"{asked.output}/prompts.parquet",
        images=asked.output,
        columns=ColumnsConfig(extra=benchmark.columns.extra),
        uri_roots=(location.url, *benchmark.uri_roots),
    )
    return Own(replace(config, benchmark=taken), ingested)


def _files(folder: Folder) -> bool:
    return bool(folder.images) or any(name.endswith(ENDINGS) for name in folder.names)


def _ingest_config(config: SweepConfig, location: Location, folder: Folder) -> IngestConfig:
    tars = not folder.images
    return IngestConfig(
        output=f"{config.store}/{FOLDER}/{_name(location)}",
        tars=location.url if tars else None,
        images=None if tars else location.url,
        copy=tars,
        generator=_stem(location) if tars else None,
        columns=_columns(config.benchmark.columns),
        link_roots=tuple(root for root in config.benchmark.uri_roots if "://" not in root),
        limits=IngestLimits(max_bytes=config.limits.max_bytes),
        on_change="replace",
        max_failed=config.max_failed,
        cluster=WorkersConfig(address=config.cluster.address, num_cpus=config.cluster.num_cpus),
        storage=config.storage,
    )


def _columns(columns: ColumnsConfig) -> InputColumnsConfig:
    """Those that are not called as usual: the usual names are looked for."""
    usual = ColumnsConfig()
    return InputColumnsConfig(
        prompt=columns.prompt if columns.prompt != usual.prompt else None,
        prompt_id=columns.prompt_id if columns.prompt_id != usual.prompt_id else None,
        image_id=columns.image_id if columns.image_id != usual.image_id else None,
    )


def _name(location: Location) -> str:
    return f"{_stem(location)}-{digest(location.url)[:8]}"


def _stem(location: Location) -> str:
    name = location.path.rpartition("/")[2]
    return next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), name)

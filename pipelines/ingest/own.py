"""Images as they come, folders of files or tars, taken in below a sweep's store so that it can score them."""

from dataclasses import replace
from typing import Any, NamedTuple

from pipelines.config import SweepConfig
from pipelines.ingest.archives import ENDINGS as TARS
from pipelines.ingest.config import IngestConfig, IngestLimits, WorkersConfig
from pipelines.ingest.held import stem
from pipelines.ingest.image_tables import ENDINGS as TABLES
from pipelines.ingest.image_tables import Told, look_at
from pipelines.ingest.ingest import Ingested, ingest
from pipelines.ingest.layouts.layout import Folder, list_images
from pipelines.ingest.rows import InputColumnsConfig, digest, find_names
from pipelines.ingest.shards import Report
from pipelines.ingest.tables import open_table
from pipelines.sources.benchmark import ColumnsConfig
from pipelines.sources.shards import is_table
from pipelines.storage import Location, locate
from pipelines.tables import JSON_LINES, SEPARATORS

TEXT_TABLES = (*SEPARATORS, *JSON_LINES)
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
    told = _look(location, folder)
    given = _named_files(location, benchmark.columns) or _input(location, folder, told)
    if given is None:
        return Own(replace(config, benchmark=replace(benchmark, columns=_told(benchmark.columns, told))), None)
    asked = _ingest_config(config, location, given)
    ingested = ingest(asked, report)
    taken = replace(
        benchmark,
        prompts=f"{asked.output}/prompts.parquet",
        images=asked.output,
        columns=ColumnsConfig(extra=benchmark.columns.extra),
        uri_roots=(asked.folder.url, *benchmark.uri_roots),
    )
    return Own(replace(config, benchmark=taken), ingested)


def _named_files(location: Location, columns: ColumnsConfig) -> dict[str, Any] | None:
    """As what a CSV or JSON Lines table of image files is taken in; None for anything else.

    Where no column names the generator, it is called as the table is.
    """
    if not location.path.lower().endswith(TEXT_TABLES):
        return None
    names = find_names(list(open_table(location).kinds), _columns(columns))
    return {"table": location.url, "copy": False, "generator": None if names.generator else _stem(location)}


def _look(location: Location, folder: Folder) -> Told | None:
    """What the first of some tables says; None where there is no table."""
    tables = [name for name in folder.names if is_table(name, TABLES)]
    if not tables:
        return None
    return look_at(location if location.path.endswith(TABLES) else location.below(tables[0]))


def _input(location: Location, folder: Folder, told: Told | None) -> dict[str, Any] | None:
    """As what images are taken in; None for what sweeps read themselves, Parquet of one generator or a folder each."""
    one = _stem(location)
    tables = [name for name in folder.names if is_table(name, TABLES)]
    if told is not None:
        others = (told.several or told.generators or told.paths) and "/" not in tables[0]
        foreign = any(name.endswith(".arrow") for name in (tables[0], location.path)) or others
        return {"table": location.url, "generator": None if told.generators else one} if foreign else None
    if folder.images:
        return {"images": location.url, "copy": False}
    return {"tars": location.url, "generator": one} if any(name.endswith(TARS) for name in folder.names) else None


def _told(columns: ColumnsConfig, told: Told | None) -> ColumnsConfig:
    """The columns as named, and those that are called as usual elsewhere."""
    usual = ColumnsConfig()
    if told is None:
        return columns
    image = told.image if columns.image == usual.image else None
    prompt = told.prompt if columns.prompt == usual.prompt else None
    return replace(columns, image=image or columns.image, prompt=prompt or columns.prompt)


def _ingest_config(config: SweepConfig, location: Location, given: dict[str, Any]) -> IngestConfig:
    return IngestConfig(
        output=f"{config.store}/{FOLDER}/{_stem(location)}-{digest(location.url)[:8]}",
        **given,
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
        image=columns.image if columns.image != usual.image else None,
        prompt=columns.prompt if columns.prompt != usual.prompt else None,
        prompt_id=columns.prompt_id if columns.prompt_id != usual.prompt_id else None,
        image_id=columns.image_id if columns.image_id != usual.image_id else None,
    )


def _stem(location: Location) -> str:
    return stem(location.path, (*TARS, *TABLES, *TEXT_TABLES))

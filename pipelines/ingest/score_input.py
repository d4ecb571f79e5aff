"""Ingestion of a sweep's image files or tars into its store, so that the sweep can score them."""

import shlex
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.base.tables import Row
from plumbline.pipelines.ingest.image_folders import ExternalPrompts, Folder, list_image_folder
from plumbline.pipelines.ingest.image_tables import TABLE_SUFFIXES as TABLES
from plumbline.pipelines.ingest.image_tables import TableInspection, inspect_table
from plumbline.pipelines.ingest.ingest import IngestResult, ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig, IngestLimits, WorkersConfig
from plumbline.pipelines.ingest.ingest_output import OutputError
from plumbline.pipelines.ingest.input_rows import hash_json
from plumbline.pipelines.ingest.sample_files import remove_ending
from plumbline.pipelines.ingest.tars import TAR_SUFFIXES as TARS
from plumbline.pipelines.ingest.tars import has_generators
from plumbline.pipelines.ingest.text_tables import TEXT_TABLE_SUFFIXES, open_table
from plumbline.pipelines.sources.benchmark import BenchmarkConfig, ColumnsConfig
from plumbline.pipelines.sources.input_columns import InputColumnsConfig, find_column_names
from plumbline.pipelines.sources.origins import format_first_names, format_suffix_counts
from plumbline.pipelines.sources.prompts import list_ids_and_texts, open_prompts, read_texts_without_ids
from plumbline.pipelines.sources.shards import ShardSize, hash_text, is_table
from plumbline.pipelines.store.store import open_store

INGEST_FOLDER = "ingested"
"""Folder of a store that contains ingested images."""


class ImagesConfig(Protocol):
    """The fields that a configuration needs for its images to be ingested."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def store(self) -> str: ...
    @property
    def benchmark(self) -> BenchmarkConfig: ...
    @property
    def cluster(self) -> ClusterConfig: ...
    @property
    def storage(self) -> StorageConfig: ...
    @property
    def limits(self) -> ImageLimits: ...
    @property
    def max_failed(self) -> float: ...


Config = TypeVar("Config", bound=ImagesConfig)


def ingest_images(config: Config) -> tuple[Config, IngestResult | None]:
    """Ingest the images of a configuration if they are image files, tars or tables that a sweep cannot read.

    Image files are not copied: the ingested tables contain their addresses. Images in tars are copied.

    Returns:
        A configuration whose images are Parquet tables, and the result of the ingest. If the images are Parquet tables
        already, the given configuration and None.

    Raises ConfigError if the images have no prompts.
    """
    benchmark = config.benchmark
    if benchmark.images is None:
        return config, None
    place = config.storage.locate(benchmark.images)
    columns = _select_configured_columns(benchmark.columns)
    folder = list_image_folder(place, "benchmark.images", columns)
    if benchmark.prompts is not None:
        return _ingest_by_ids(config, place, folder)
    inspection = _inspect_first_table(place, folder, columns)
    options = _choose_table_options(place, columns) or _choose_image_options(config, place, folder, inspection)
    if options is None:
        if inspection is None:
            return config, None
        image, prompt = inspection.image or benchmark.columns.image, inspection.prompt or benchmark.columns.prompt
        found = replace(benchmark.columns, image=image, prompt=prompt)
        return replace(config, benchmark=replace(benchmark, columns=found)), None
    ingest_config = _make_ingest_config(config, place, options)
    open_store(config).check()  # before the output is checked, because this error names the key that the user typed
    ingested = _ingest_input(ingest_config)
    sources: dict[str, Any] = {name: name for name in ingested.source_columns}
    benchmark = replace(
        benchmark,
        prompts=f"{ingest_config.output}/prompts.parquet",
        images=ingest_config.output,
        columns=ColumnsConfig(extra=benchmark.columns.extra, settings=benchmark.columns.settings, **sources),
        uri_roots=(place.url if ingest_config.copy else ingest_config.folder.url, *benchmark.uri_roots),
        prompts_from=None,
    )
    return replace(config, benchmark=benchmark), ingested


def _ingest_by_ids(config: Config, place: Place, folder: Folder) -> tuple[Config, IngestResult | None]:
    """Ingest image files whose names contain prompt ids of the benchmark; do nothing if images are in tables."""
    if not folder.images or any(is_table(name, TABLES) for name in folder.names):
        return config, None
    ingest_config = _make_ingest_config(config, place, {"images": place.url, "copy": False, "prompts_from": "ids"})
    pairs = list_ids_and_texts(open_prompts(config.benchmark, config.storage, ShardSize()).table)
    texts = read_texts_without_ids(config.benchmark, config.storage)
    if texts is not None:  # image names contain row numbers, so rows with repeated texts count too
        pairs = [(hash_text(text), text) for text in texts]
    rows = [Row(line, {"prompt_id": prompt_id, "prompt": text}) for line, (prompt_id, text) in enumerate(pairs, 1)]
    prompts = ExternalPrompts(str(config.benchmark.prompts), rows, has_ids=texts is None)
    open_store(config).check()
    ingested = _ingest_input(replace(ingest_config, columns=InputColumnsConfig()), prompts)
    columns = replace(config.benchmark.columns, image_id="image_id", prompt_id="prompt_id", image="image", uri="uri")
    roots = (place.url, *config.benchmark.uri_roots)
    benchmark = replace(config.benchmark, images=ingest_config.output, columns=columns, uri_roots=roots)
    return replace(config, benchmark=benchmark), ingested


def _choose_table_options(place: Place, columns: InputColumnsConfig) -> dict[str, Any] | None:
    """Return the options for ingesting a CSV or JSON Lines table of image files; None for any other input.

    If no column contains the generator, the table's name is used as the generator.
    """
    if not place.path.lower().endswith(TEXT_TABLE_SUFFIXES):
        return None
    types = open_table(place).types
    names = find_column_names(types, columns)
    if names.image is None and names.prompt is not None and columns.image is None:
        raise ConfigError(
            f"images {place.url}: expected a column of image files, found {format_first_names(list(types))}; "
            "set columns.image=NAME, or give the image folder, with this file as its prompts: "
            f"plumbline score {shlex.join([f'images={place.parent.url}', f'prompts={place.url}'])}"
        )
    return {
        "table": place.url,
        "copy": False,
        "generator": None if names.generator else _get_name_without_ending(place),
    }


def _inspect_first_table(place: Place, folder: Folder, columns: InputColumnsConfig) -> TableInspection | None:
    tables = [name for name in folder.names if is_table(name, TABLES)]
    if not tables:
        return None
    inspection = inspect_table(place if place.path.endswith(TABLES) else place / tables[0], columns)
    return None if inspection.image is None and not inspection.has_several_images and folder.images else inspection


def _choose_image_options(
    config: ImagesConfig, place: Place, folder: Folder, inspection: TableInspection | None
) -> dict[str, Any] | None:
    """Return the options for ingesting the images; None if they are tables that sweeps can read directly.

    Sweeps can read the Parquet files of one generator, or one folder of them per generator.
    """
    if inspection is not None:
        one_folder = len({name.rpartition("/")[0] for name in folder.names if is_table(name, TABLES)}) == 1
        arrow = any(name.endswith(".arrow") for name in (*folder.names, place.path))
        named = inspection.generator is not None and (
            one_folder or arrow or config.benchmark.columns.generator is not None
        )
        unreadable = arrow or named or (one_folder and (inspection.has_several_images or inspection.has_image_paths))
        return (
            {"table": place.url, "generator": None if named else _get_name_without_ending(place)}
            if unreadable
            else None
        )
    if folder.images and folder.place.is_file():
        raise ConfigError(f"benchmark.images {place.url}: this is a single image; give the folder that contains it")
    if folder.images:
        return {"images": place.url, "copy": False, "prompts_from": config.benchmark.prompts_from}
    if any(name.endswith(TARS) for name in folder.names):
        named = has_generators(_make_ingest_config(config, place, {"tars": place.url}))
        return {"tars": place.url, "generator": None if named else _get_name_without_ending(place)}
    badly_named = f"; rename files whose names are not UTF-8: {format_first_names(folder.badly_named)}"
    raise ConfigError(
        f"benchmark.images {place.url}: expected image files, tars, or Parquet or Arrow tables with images, found "
        f"{format_suffix_counts(folder.names) or 'none'}{badly_named if folder.badly_named else ''}"
    )


def _make_ingest_config(config: ImagesConfig, place: Place, options: dict[str, Any]) -> IngestConfig:
    """Return the configuration of an ingest, with a separate output for each input and each way of reading it."""
    benchmark, cluster = config.benchmark, config.cluster
    without_output = IngestConfig(
        output=config.store,
        **options,
        images_inside=benchmark.images_inside,
        columns=_select_configured_columns(benchmark.columns),
        link_roots=tuple(root for root in benchmark.uri_roots if "://" not in root),
        limits=IngestLimits(max_bytes=config.limits.max_bytes),
        on_change="replace",
        max_failed=config.max_failed,
        cluster=WorkersConfig(address=cluster.address, num_cpus=1 if cluster.executor == "here" else cluster.num_cpus),
        storage=config.storage,
    )
    ways = [without_output.prompts_from, without_output.columns.generator, without_output.images_inside]
    key = hash_json([without_output.addresses, *ways])
    return replace(without_output, output=f"{config.store}/{INGEST_FOLDER}/{_get_name_without_ending(place)}-{key[:8]}")


def _ingest_input(config: IngestConfig, prompts: ExternalPrompts | None = None) -> IngestResult:
    """Ingest the input; if the output of an earlier ingest is damaged, remove it and ingest everything again."""
    try:
        return ingest(config, prompts=prompts)
    except OutputError:
        config.storage.locate(config.output).remove_folder()
        return ingest(config, prompts=prompts)


def _select_configured_columns(columns: ColumnsConfig) -> InputColumnsConfig:
    usual, roles = ColumnsConfig(), ("image", "prompt", "prompt_id", "image_id", "generator")
    own = {role: getattr(columns, role) for role in roles if getattr(columns, role) != getattr(usual, role)}
    return InputColumnsConfig(**own, source=next(iter(columns.sources), None))


def _get_name_without_ending(place: Place) -> str:
    return remove_ending(place.path, (*TARS, *TABLES, *TEXT_TABLE_SUFFIXES))

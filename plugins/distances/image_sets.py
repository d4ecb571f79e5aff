"""Opens sets of images, with or without prompts: those of the generators, and the reference images."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import format_names
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Row
from plumbline.pipelines.ingest.image_folders import ExternalPrompts, Folder, list_image_folder
from plumbline.pipelines.ingest.image_tables import TABLE_SUFFIXES, inspect_table
from plumbline.pipelines.ingest.ingest import ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig, IngestLimits, WorkersConfig
from plumbline.pipelines.ingest.input_rows import hash_json
from plumbline.pipelines.ingest.score_input import INGEST_FOLDER, ingest_images
from plumbline.pipelines.ingest.tars import TAR_SUFFIXES
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig, ColumnsConfig
from plumbline.pipelines.sources.input_columns import InputColumnsConfig
from plumbline.pipelines.sources.shards import is_table

REFERENCE_NAME = "reference"
"""Name of the benchmark that contains the reference images."""


def open_generated_images(config: SweepConfig) -> BenchmarkConfig:
    """Return the benchmark with the generators' images as tables.

    Image files are listed in a table in the store. If neither the benchmark nor the folder has prompts, each image
    counts as the only image of its own prompt.
    """
    benchmark = config.benchmark
    if benchmark.images is None or benchmark.prompts is not None:
        return ingest_images(config)[0].benchmark
    return _open_without_prompts(config, benchmark, "images")


def open_reference_images(config: SweepConfig, reference: str) -> BenchmarkConfig:
    """Return the reference images as a benchmark without prompts; raise ConfigError if there are none."""
    place = config.storage.locate(reference)
    benchmark = BenchmarkConfig(
        name=REFERENCE_NAME,
        prompts=None,
        images=place.url,
        require_every_prompt=False,
        uri_roots=config.benchmark.uri_roots,
    )
    return _open_without_prompts(config, benchmark, "reference")


def _open_without_prompts(config: SweepConfig, benchmark: BenchmarkConfig, key: str) -> BenchmarkConfig:
    place = config.storage.locate(str(benchmark.images))
    folder = list_image_folder(place, key)
    tables = [name for name in folder.names if is_table(name, TABLE_SUFFIXES)]
    if tables:
        found = inspect_table(place if place.path.endswith(TABLE_SUFFIXES) else place / tables[0], InputColumnsConfig())
        if found.prompt is not None:
            return ingest_images(replace(config, benchmark=benchmark))[0].benchmark
        # the id takes the place of the prompt, which a distance does not need
        columns = replace(benchmark.columns, image=found.image or benchmark.columns.image, prompt="prompt_id")
        return replace(benchmark, columns=columns)
    if any(name.endswith(TAR_SUFFIXES) for name in folder.names) or _contains_prompts(folder):
        return ingest_images(replace(config, benchmark=benchmark))[0].benchmark
    if not folder.images:
        raise ConfigError(
            f"{key}={place.url}: expected image files or Parquet tables of images, found "
            f"{format_names(folder.names) if folder.names else 'no files'}; correct the path"
        )
    return _ingest_files(config, benchmark, folder)


def _contains_prompts(folder: Folder) -> bool:
    return bool(folder.text_tables) or any(name.lower().endswith(".txt") for name in folder.names)


def _ingest_files(config: SweepConfig, benchmark: BenchmarkConfig, folder: Folder) -> BenchmarkConfig:
    """Write a table of a folder's image files, with file names as prompt ids; return the benchmark with this table."""
    place = folder.place
    output = f"{config.store}/{INGEST_FOLDER}/{place.name}-{hash_json(['names', place.url])[:8]}"
    cluster = config.cluster
    ingested = ingest(
        IngestConfig(
            output=output,
            images=place.url,
            copy=False,
            prompts_from="ids",
            limits=IngestLimits(max_bytes=config.limits.max_bytes),
            on_change="replace",
            cluster=WorkersConfig(
                address=cluster.address, num_cpus=1 if cluster.executor == "here" else cluster.num_cpus
            ),
            storage=config.storage,
        ),
        prompts=ExternalPrompts(place.url, list(_name_images(place, folder)), has_ids=True),
    )
    columns = ColumnsConfig(extra=benchmark.columns.extra, settings=benchmark.columns.settings, prompt="prompt_id")
    return replace(benchmark, images=ingested.url, columns=columns, uri_roots=(place.url, *benchmark.uri_roots))


def _name_images(place: Place, folder: Folder) -> Iterator[Row]:
    stems = dict.fromkeys(PurePosixPath(image).stem for image in folder.images)
    for line, stem in enumerate(stems, 1):
        yield Row(line, {"prompt_id": stem, "prompt": stem})

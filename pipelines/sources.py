"""The source tables of a sweep on disk or S3: its prompts, and the images of every generator, as shards."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

from operators import rows
from operators.errors import ConfigError, SourceError
from pipelines.benchmark import IMAGE_COLUMNS, BenchmarkConfig, ColumnsConfig, check_extra
from pipelines.cells import Shard
from pipelines.prompts import gather_prompts, open_prompts
from pipelines.shards import (
    FILE_READERS,
    BrokenFile,
    ListedFile,
    cut_shards,
    is_table,
    list_files,
    read_footer,
    require_columns,
)
from pipelines.storage import Location, StorageConfig, locate, readable_errors


class Sources(NamedTuple):
    """What a sweep reads."""

    prompts: pa.Table
    """Schema PROMPTS, all prompts."""
    prompt_shards: list[Shard]
    image_shards: list[Shard]
    broken: list[BrokenFile]
    generators: list[str]
    own_prompts: Mapping[Shard, Shard]
    """The prompts shard of each images shard, where the images' rows hold their own prompts; else empty."""
    extra: pa.Schema
    """The further columns that go to the scores."""

    @property
    def skills(self) -> Mapping[str, Sequence[str]]:
        """The skills of each prompt."""
        return dict(zip(*(self.prompts.column(name).to_pylist() for name in ("prompt_id", "skills")), strict=True))


class _ImagesFile(NamedTuple):
    """One file of images: its schema and shards."""

    schema: pa.Schema
    shards: list[Shard]


class _Images(NamedTuple):
    """What the generators have."""

    shards: list[Shard]
    broken: list[BrokenFile]
    generators: list[str]
    extra: pa.Schema


def open_sources(benchmark: BenchmarkConfig, storage: StorageConfig, *, shard_rows: int) -> Sources:
    """Lists the sources and reads their footers and the prompts; no image is read.

    A Parquet file without rows is read like any other and counts no rows. Raises ConfigError where prompts or images
    are missing or cannot be reached, and where no file has the columns that the configuration names.
    """
    prompts = open_prompts(benchmark, storage, shard_rows) if benchmark.prompts is not None else None
    images = _open_images(benchmark, storage, shard_rows)
    prompts = prompts or gather_prompts(images.shards, benchmark.name, storage)
    readable = prompts.own if benchmark.prompts is None else images.shards
    return Sources(
        prompts=prompts.table,
        prompt_shards=prompts.shards,
        image_shards=list(readable),
        broken=images.broken + prompts.broken,
        generators=images.generators,
        own_prompts=prompts.own,
        extra=images.extra,
    )


def _open_images(benchmark: BenchmarkConfig, storage: StorageConfig, shard_rows: int) -> _Images:
    """Every generator's files with their footers; a file that cannot be read costs nothing else."""
    places = _generators(benchmark, storage)
    listed = {name: _listing(name, place) for name, place in places.items()}
    with ThreadPoolExecutor(FILE_READERS) as pool:
        files = [file for files in listed.values() for file in files]
        results = list(pool.map(lambda file: _images_file(file, benchmark, storage, shard_rows), files))
    broken = [result for result in results if isinstance(result, BrokenFile)]
    broken += [_no_files(name, places[name]) for name, files in listed.items() if not files]
    tables = [result for result in results if isinstance(result, _ImagesFile)]
    if broken and not tables and (benchmark.prompts is None or benchmark.columns != ColumnsConfig()):
        raise ConfigError(f"benchmark.images: {broken[0].message}")
    shards = [shard for table in tables for shard in table.shards]
    extra = _extra_schema(benchmark.columns, [table.schema for table in tables])
    return _Images(shards, broken, list(places), extra)


def _listing(generator: str, place: Location) -> list[ListedFile]:
    with readable_errors(place, f"benchmark.generators.{generator}"):
        return list(list_files(place, generator, (".parquet",)))


def _no_files(generator: str, place: Location) -> BrokenFile:
    return BrokenFile(generator, f"{place.url}: expected Parquet files, found none; add the images")


def _generators(benchmark: BenchmarkConfig, storage: StorageConfig) -> dict[str, Location]:
    """Where each generator's images are, in the order of the names or as given."""
    if isinstance(benchmark.generators, Mapping):
        return {name: locate(url, storage) for name, url in benchmark.generators.items()}
    images = locate(str(benchmark.images), storage)
    with readable_errors(images, "benchmark.images"):
        entries = images.fs.ls(images.path, detail=True)
    found = _folders(images, entries) or _single(images, entries)
    wanted = benchmark.generators
    missing = sorted(set(wanted or ()) - set(found))
    if missing:
        raise ConfigError(
            f"benchmark.generators: no folder {missing[0]!r} in {images.url}; found {', '.join(found) or 'none'}"
        )
    if not found:
        raise ConfigError(
            f"benchmark.images {images.url}: expected one folder per generator, or Parquet files, found none"
        )
    return {name: found[name] for name in wanted} if wanted is not None else found


def _folders(images: Location, entries: Sequence[Mapping[str, Any]]) -> dict[str, Location]:
    names = [PurePosixPath(entry["name"]).name for entry in entries if entry["type"] == "directory"]
    return {name: _below(images, name) for name in sorted(names) if not name.startswith(".")}


def _single(images: Location, entries: Sequence[Mapping[str, Any]]) -> dict[str, Location]:
    """The one generator of a Parquet file, or of a folder with such files and no folders."""
    files = [PurePosixPath(entry["name"]).name for entry in entries if entry["type"] == "file"]
    tables = any(is_table(name, (".parquet",)) for name in files)
    return {PurePosixPath(images.path).name.removesuffix(".parquet"): images} if tables else {}


def _below(location: Location, name: str) -> Location:
    return Location(fs=location.fs, path=location.at(name), url=f"{location.url}/{name}")


def _images_file(
    file: ListedFile, benchmark: BenchmarkConfig, storage: StorageConfig, shard_rows: int
) -> _ImagesFile | BrokenFile:
    names = benchmark.columns.renamed(prompts=benchmark.prompts is None)
    required = [name for name, its in names if its] + ([] if benchmark.prompts is None else ["prompt_id"])
    try:
        footer = read_footer(file, storage)
        schema = footer.schema.to_arrow_schema()
        require_columns(schema.names, required, names, "benchmark.columns", file.url)
        if not {benchmark.columns.image, benchmark.columns.uri} & set(schema.names):
            rows.require_columns(schema.names, ["image or uri"], file.url, key="benchmark.columns.image or .uri")
    except SourceError as error:
        return BrokenFile(file.group, str(error))
    return _ImagesFile(schema, cut_shards(file, footer, names, shard_rows))


def _extra_schema(columns: ColumnsConfig, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The further columns that some file has; raises ConfigError for one that none has, or that differs in type."""
    taken = {getattr(columns, name) for name in IMAGE_COLUMNS}
    everything = dict.fromkeys(name for schema in schemas for name in schema.names if name not in taken)
    wanted = list(everything) if columns.extra == "*" else list(dict.fromkeys(columns.extra))
    check_extra(wanted)
    return pa.schema([_extra_field(name, schemas) for name in wanted if schemas])


def _extra_field(name: str, schemas: Sequence[pa.Schema]) -> pa.Field:
    types = list(dict.fromkeys(schema.field(name).type for schema in schemas if name in schema.names))
    if not types:
        known = ", ".join(dict.fromkeys(name for schema in schemas for name in schema.names))
        raise ConfigError(f"benchmark.columns.extra: no images table has a column {name!r}; found {known}")
    if len(types) > 1:
        raise ConfigError(
            f"benchmark.columns.extra: {name!r} is {types[0]} in one images table and {types[1]} in another; "
            "write them with one type, or leave it out"
        )
    return pa.field(name, types[0])

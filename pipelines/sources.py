"""The source tables: prompts and images as Parquet on disk or S3, cut into shards by their footers."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from operators import rows
from operators.errors import ConfigError, SourceError
from pipelines.cells import Shard
from pipelines.storage import Location, StorageConfig, locate, readable_errors

IMAGE_COLUMNS = ("image_id", "prompt_id", "image", "uri")
FOOTER_READERS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkConfig:
    """The prompts, and the images that each generator made of them."""

    name: str
    """The benchmark's name, such as genai_bench."""
    prompts: str
    """Parquet file or folder with `prompt_id`, `text` and optionally `skills`."""
    images: str
    """Folder with one folder of Parquet files per generator, with `prompt_id` and `image` (or `uri`)."""
    generators: tuple[str, ...] | None = None
    """Which generators to take; all folders by default."""
    require_every_prompt: bool = True
    """Whether a generator without an image of some prompt counts as a failed row."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ConfigError(f"benchmark.name: expected a name without '/', got {self.name!r}")


class BrokenFile(NamedTuple):
    """A source file that cannot be read; its rows are counted as failed and everything else goes on."""

    generator: str
    message: str


class Sources(NamedTuple):
    """What a sweep reads."""

    prompts: pa.Table
    """Schema PROMPTS, all prompts."""
    prompt_shards: list[Shard]
    image_shards: list[Shard]
    broken: list[BrokenFile]
    generators: list[str]

    @property
    def skills(self) -> Mapping[str, Sequence[str]]:
        """The skills of each prompt."""
        return dict(zip(*(self.prompts.column(name).to_pylist() for name in ("prompt_id", "skills")), strict=True))


class _File(NamedTuple):
    """A source file as the listing shows it."""

    group: str
    name: str
    url: str
    size: int
    etag: str


def open_sources(benchmark: BenchmarkConfig, storage: StorageConfig, *, shard_rows: int) -> Sources:
    """Lists the sources and reads their footers and the prompts; no image is read.

    Raises ConfigError where prompts or images are missing or cannot be reached.
    """
    prompts = locate(benchmark.prompts, storage)
    images = locate(benchmark.images, storage)
    with readable_errors(prompts, "benchmark.prompts"):
        prompt_files = list(_files(prompts, benchmark.name))
    with readable_errors(images, "benchmark.images"):
        generators = _generators(images, benchmark.generators)
        found = [list(_files(_below(images, generator), generator)) for generator in generators]
    if not prompt_files:
        raise ConfigError(f"benchmark.prompts {prompts.url}: expected Parquet files, found none; check the path")
    prompt_shards = [shard for file in prompt_files for shard in _prompt_shards(file, storage, shard_rows)]
    with ThreadPoolExecutor(FOOTER_READERS) as pool:
        results = list(pool.map(lambda file: _image_shards(file, storage, shard_rows), chain.from_iterable(found)))
    broken = [result for result in results if isinstance(result, BrokenFile)]
    broken += [_no_files(name, images) for name, files in zip(generators, found, strict=True) if not files]
    shards = [shard for result in results if not isinstance(result, BrokenFile) for shard in result]
    table = pa.concat_tables([read_prompts(shard, storage) for shard in prompt_shards])
    _check_prompts(table, prompts)
    return Sources(table, prompt_shards, shards, broken, generators)


def _no_files(generator: str, images: Location) -> BrokenFile:
    return BrokenFile(generator, f"{images.at(generator)}: expected Parquet files, found none; add the images")


def _below(location: Location, name: str) -> Location:
    return Location(fs=location.fs, path=location.at(name), url=f"{location.url}/{name}")


def _generators(images: Location, wanted: Sequence[str] | None) -> list[str]:
    entries = images.fs.ls(images.path, detail=True)
    folders = [PurePosixPath(entry["name"]).name for entry in entries if entry["type"] == "directory"]
    found = sorted(name for name in folders if not name.startswith("."))
    missing = sorted(set(wanted or ()) - set(found))
    if missing:
        raise ConfigError(
            f"benchmark.generators: no folder {missing[0]!r} in {images.url}; found {', '.join(found) or 'none'}"
        )
    if not found:
        raise ConfigError(f"benchmark.images {images.url}: expected one folder per generator, found none")
    return list(wanted) if wanted is not None else found


def _files(location: Location, group: str) -> Iterator[_File]:
    """The Parquet files at or below a location, by name; raises FileNotFoundError where nothing is."""
    found = location.fs.find(location.path, detail=True)
    if not found and not location.fs.exists(location.path):
        raise FileNotFoundError(location.path)
    for path, entry in sorted(found.items()):
        relative = path.removeprefix(location.path).lstrip("/") or PurePosixPath(path).name
        if relative.endswith(".parquet") and not PurePosixPath(relative).name.startswith((".", "_")):
            name = relative.removesuffix(".parquet").replace("/", "__")
            yield _File(group, name, location.fs.unstrip_protocol(path), entry["size"], _etag(entry))


def _etag(entry: Mapping[str, Any]) -> str:
    if "ETag" in entry:
        return str(entry["ETag"]).strip('"')
    return str(entry["mtime"])


def _prompt_shards(file: _File, storage: StorageConfig, shard_rows: int) -> list[Shard]:
    try:
        return _shards(file, storage, shard_rows, ("prompt_id", "text"))
    except SourceError as error:
        raise ConfigError(f"benchmark.prompts: {error}") from error


def _image_shards(file: _File, storage: StorageConfig, shard_rows: int) -> list[Shard] | BrokenFile:
    try:
        shards = _shards(file, storage, shard_rows, ("prompt_id",), one_of=("image", "uri"))
    except SourceError as error:
        return BrokenFile(file.group, str(error))
    return shards


def _shards(
    file: _File, storage: StorageConfig, shard_rows: int, columns: Sequence[str], one_of: Sequence[str] = ()
) -> list[Shard]:
    """Runs of row groups of about `shard_rows` rows; a larger row group is a shard of its own."""
    footer = _read_footer(file, storage)
    names = footer.schema.to_arrow_schema().names
    rows.require_columns(names, columns, file.url)
    if one_of and not set(one_of) & set(names):
        rows.require_columns(names, [" or ".join(one_of)], file.url)
    sizes = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
    return [
        Shard(
            group=file.group,
            name=file.name if len(run) == len(sizes) else f"{file.name}-{run[0]:05d}",
            url=file.url,
            size=file.size,
            etag=file.etag,
            row_groups=tuple(run),
            rows=sum(sizes[index] for index in run),
        )
        for run in _runs(sizes, shard_rows)
    ]


def _runs(sizes: Sequence[int], shard_rows: int) -> Iterator[list[int]]:
    """Consecutive indices whose sizes add up to at most `shard_rows`, and at least one index each."""
    run: list[int] = []
    for index, size in enumerate(sizes):
        if run and sum(sizes[i] for i in run) + size > shard_rows:
            yield run
            run = []
        run.append(index)
    if run:
        yield run


def _read_footer(file: _File, storage: StorageConfig) -> pq.FileMetaData:
    location = locate(file.url, storage)
    try:
        with location.fs.open(location.path, "rb") as stream:
            return pq.read_metadata(stream)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{file.url}: not a readable Parquet file ({str(error).splitlines()[0]}); "
            "it may be truncated: write or upload it again"
        ) from error


def read_shard(shard: Shard, storage: StorageConfig, columns: Sequence[str]) -> pa.Table:
    """A shard's rows with those of `columns` that the file has; raises SourceError naming the file.

    Read in this thread: Arrow's own threads hold on to the Python stream, and abort a process that ends meanwhile.
    """
    location = locate(shard.url, storage)
    try:
        with location.fs.open(location.path, "rb") as stream:
            file = pq.ParquetFile(stream, pre_buffer=False)
            present = [name for name in columns if name in file.schema_arrow.names]
            return file.read_row_groups(list(shard.row_groups), columns=present, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{shard.url}, row groups {shard.row_groups[0]}-{shard.row_groups[-1]}: "
            f"unreadable ({str(error).splitlines()[0]}); write or upload the file again"
        ) from error


def read_prompts(shard: Shard, storage: StorageConfig) -> pa.Table:
    """A prompts shard in the schema PROMPTS; absent columns are filled, ids become text."""
    table = read_shard(shard, storage, ("prompt_id", "text", "skills"))
    records = [
        {
            "prompt_id": None if row["prompt_id"] is None else str(row["prompt_id"]),
            "text": row["text"],
            "skills": _skills(row.get("skills"), shard),
            "suite": shard.group,
        }
        for row in table.to_pylist()
    ]
    return rows.table(records, rows.PROMPTS)


def _skills(value: Any, shard: Shard) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{shard.url}: expected `skills` to be a list of text, found {type(value).__name__}")
    return [str(skill) for skill in value]


def _check_prompts(prompts: pa.Table, location: Location) -> None:
    """Every prompt has an id, and no id stands for two texts."""
    texts: dict[str, str] = {}
    for row, (prompt_id, text) in enumerate(
        zip(*(prompts.column(c).to_pylist() for c in ("prompt_id", "text")), strict=True)
    ):
        if prompt_id is None:
            raise ConfigError(f"{location.url}, row {row}: the prompt has no prompt_id; fill it in")
        if prompt_id in texts:
            raise ConfigError(f"{location.url}, row {row}: prompt_id {prompt_id!r} stands twice; make ids unique")
        texts[prompt_id] = text

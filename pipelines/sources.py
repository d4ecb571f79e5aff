"""The source tables: prompts and images on disk or S3, cut into shards by their footers, read by our column names."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from operators import rows
from operators.errors import ConfigError, SourceError
from pipelines import prompt_files
from pipelines.cells import Shard, digest
from pipelines.storage import Location, StorageConfig, first_line, is_storage_error, locate, readable_errors

IMAGE_COLUMNS = ("image_id", "prompt_id", "image", "uri")
PROMPT_COLUMNS = ("prompt_id", "text", "skills")
FILE_READERS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsConfig:
    """What the columns of the images tables are called."""

    image_id: str = "image_id"
    """The image's own name; may be absent."""
    prompt_id: str | None = "prompt_id"
    """The prompt that it was made of; where rows hold their own prompts it may be absent, or null to be ignored."""
    image: str = "image"
    """Encoded bytes, or the {bytes, path} of Hugging Face datasets."""
    uri: str = "uri"
    """A path or s3:// address, where `image` is absent or null."""
    prompt: str = "prompt"
    """The text of the row's own prompt; read only where benchmark.prompts is null."""
    extra: tuple[str, ...] | Literal["*"] = ()
    """Further columns that scores.parquet gets after its own; "*" takes all but the ids, image and uri."""

    def __post_init__(self) -> None:
        _check_extra([name for name in self.extra if self.extra != "*"])

    def renamed(self, *, prompts: bool) -> tuple[tuple[str, str], ...]:
        """Our names with the files' own, where they differ; `prompt` always, where the rows hold their `prompts`."""
        return (*_renamed(self, IMAGE_COLUMNS), *([("prompt", self.prompt)] if prompts else []))


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptColumnsConfig:
    """What the columns of the prompts file are called."""

    prompt_id: str = "prompt_id"
    """The prompt's own name; a CSV or JSON file's too."""
    text: str = "text"
    """The prompt."""
    skills: str = "skills"
    """A list of text, or in a CSV file one skill; may be absent."""

    def renamed(self) -> tuple[tuple[str, str], ...]:
        """Our names with the file's own, where they differ."""
        return _renamed(self, PROMPT_COLUMNS)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkConfig:
    """The prompts, and the images that each generator made of them."""

    name: str
    """The benchmark's name, such as genai_bench."""
    prompts: str | None
    """Parquet file or folder, or a .csv or .json file, with ids and texts; null where the images' rows hold them."""
    images: str | None
    """Folder with one folder of Parquet files per generator; or one generator's file, or folder of files."""
    generators: tuple[str, ...] | Mapping[str, str] | None = None
    """Which folders of `images` to take, all by default; or, in place of `images`, each generator's file or folder."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    """What the images tables call their columns."""
    prompt_columns: PromptColumnsConfig = field(default_factory=PromptColumnsConfig)
    """What the prompts file calls its columns."""
    require_every_prompt: bool = True
    """Whether a generator without an image of some prompt counts as a failed row."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ConfigError(f"benchmark.name: expected a name without '/', got {self.name!r}")
        if isinstance(self.generators, Mapping) == (self.images is not None):
            raise ConfigError(
                "benchmark: expected either images, or generators as {name: path}, "
                f"got images={self.images!r} and generators={self.generators!r}; set one of them to null"
            )
        if self.prompts is not None and self.columns.prompt_id is None:
            raise ConfigError(
                "benchmark.columns.prompt_id: expected a name, got None; null fits benchmark.prompts=null"
            )
        for name in self.generators or ():
            if not name or "/" in name:
                raise ConfigError(f"benchmark.generators: expected names without '/', got {name!r}")


def _renamed(config: Any, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, getattr(config, name) or "") for name in names if getattr(config, name) != name)


def _check_extra(names: Sequence[str]) -> None:
    for name in names:
        if name in rows.SCORES.names:
            raise ConfigError(
                f"benchmark.columns.extra: scores have a column {name!r} of their own; rename it in the images "
                "tables, or name only the other columns"
            )


class BrokenFile(NamedTuple):
    """A source file that cannot be read; its rows are counted as failed and everything else goes on."""

    generator: str
    message: str
    rows: int = 1
    """How many rows are lost with it; 1 where that cannot be told."""


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


class _File(NamedTuple):
    """A source file as the listing shows it."""

    group: str
    name: str
    url: str
    size: int
    etag: str


class _Prompts(NamedTuple):
    """The prompts, and where they are read."""

    table: pa.Table
    shards: list[Shard]
    own: Mapping[Shard, Shard]
    broken: list[BrokenFile]


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
    prompts = _open_prompts(benchmark, storage, shard_rows) if benchmark.prompts is not None else None
    images = _open_images(benchmark, storage, shard_rows)
    prompts = prompts or _gather_prompts(images.shards, benchmark.name, storage)
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


def _listing(generator: str, place: Location) -> list[_File]:
    with readable_errors(place, f"benchmark.generators.{generator}"):
        return list(_files(place, generator, (".parquet",)))


def _no_files(generator: str, place: Location) -> BrokenFile:
    return BrokenFile(generator, f"{place.url}: expected Parquet files, found none; add the images")


def _open_prompts(benchmark: BenchmarkConfig, storage: StorageConfig, shard_rows: int) -> _Prompts:
    """The prompts of benchmark.prompts; whatever is wrong with them stops the sweep before anything is computed."""
    place = locate(str(benchmark.prompts), storage)
    with readable_errors(place, "benchmark.prompts"):
        suffixes = prompt_files.SUFFIXES if place.path.lower().endswith(prompt_files.SUFFIXES) else (".parquet",)
        files = list(_files(place, benchmark.name, suffixes))
    names = benchmark.prompt_columns.renamed()
    try:
        shards = [shard for file in files for shard in _prompt_shards(file, names, storage, shard_rows)]
        tables = [read_prompts(shard, storage) for shard in shards]
    except SourceError as error:
        raise ConfigError(f"benchmark.prompts: {error}") from error
    if not shards:
        kinds = "Parquet files, or one .csv or .json file, with prompts"
        raise ConfigError(f"benchmark.prompts {place.url}: expected {kinds}, found none; check the path")
    _check_prompts(shards, tables)
    return _Prompts(pa.concat_tables(tables), shards, {}, [])


def _prompt_shards(
    file: _File, names: tuple[tuple[str, str], ...], storage: StorageConfig, shard_rows: int
) -> list[Shard]:
    """The shards of a prompts file; a CSV or JSON file is one."""
    if not file.url.lower().endswith(prompt_files.SUFFIXES):
        footer = _read_footer(file, storage)
        found = footer.schema.to_arrow_schema().names
        _require_columns(found, ("prompt_id", "text"), names, "benchmark.prompt_columns", file.url)
        return _shards(file, footer, names, shard_rows)
    whole = Shard(
        group=file.group, name=file.name, url=file.url, size=file.size, etag=file.etag, row_groups=(), rows=0,
        columns=names,
    )  # fmt: skip
    count = len(read_prompts(whole, storage))
    return [replace(whole, rows=count)] if count else []


def _check_prompts(shards: Sequence[Shard], tables: Sequence[pa.Table]) -> None:
    """Every prompt has an id, and no id stands twice."""
    seen: set[str] = set()
    counted: dict[str, int] = {}
    for shard, table in zip(shards, tables, strict=True):
        first = counted.get(shard.url, 0)
        counted[shard.url] = first + len(table)
        for row, prompt_id in enumerate(table.column("prompt_id").to_pylist(), start=first):
            if prompt_id is None:
                raise ConfigError(f"{shard.url}, row {row}: the prompt has no prompt_id; fill it in")
            if prompt_id in seen:
                raise ConfigError(f"{shard.url}, row {row}: prompt_id {prompt_id!r} stands twice; make ids unique")
            seen.add(prompt_id)


def _gather_prompts(shards: Sequence[Shard], name: str, storage: StorageConfig) -> _Prompts:
    """The prompts that the images' rows hold, read from the id and text columns alone.

    Every images shard gets a prompts shard that is named by the prompts in it and not by its file. So shards with the
    same prompts, such as those of two generators, share their questions; and a new file adds its own questions and
    leaves every other cell as it is, which one table of all prompts would not.
    """
    with ThreadPoolExecutor(FILE_READERS) as pool:
        results = list(pool.map(lambda shard: _shard_prompts(shard, storage), shards))
    tables = [(shard, table) for shard, table in zip(shards, results, strict=True) if isinstance(table, pa.Table)]
    unique: dict[str, tuple[str, str]] = {}
    own: dict[Shard, Shard] = {}
    found: dict[str, Shard] = {}
    for shard, table in tables:
        texts = list(zip(*(table.column(column).to_pylist() for column in ("prompt_id", "text")), strict=True))
        for prompt_id, text in texts:
            _check_text(prompt_id, text, shard, unique)
        content = digest(sorted(texts))
        asked = replace(shard, group=name, name=f"rows-{content[:16]}", rows=len(texts), content=content)
        own[shard] = found.setdefault(content, asked)
    records = [{"prompt_id": one, "text": text, "skills": [], "suite": name} for one, (text, _) in unique.items()]
    broken = [result for result in results if isinstance(result, BrokenFile)]
    return _Prompts(rows.table(records, rows.PROMPTS), list(found.values()), own, broken)


def _shard_prompts(shard: Shard, storage: StorageConfig) -> pa.Table | BrokenFile:
    try:
        return read_prompts(shard, storage)
    except SourceError as error:
        return BrokenFile(shard.group, str(error), shard.rows)


def _check_text(prompt_id: str, text: str, shard: Shard, unique: dict[str, tuple[str, str]]) -> None:
    """No id stands for two texts, in one file or in two."""
    known, where = unique.setdefault(prompt_id, (text, shard.url))
    if known != text:
        other = "" if where == shard.url else f" in {where}"
        raise ConfigError(
            f"{shard.url}: prompt_id {prompt_id!r} stands for {text!r}, and for {known!r}{other}; make ids unique, "
            "or set benchmark.columns.prompt_id=null: ids are then made of the texts"
        )


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
    tables = any(_is_table(name, (".parquet",)) for name in files)
    return {PurePosixPath(images.path).name.removesuffix(".parquet"): images} if tables else {}


def _below(location: Location, name: str) -> Location:
    return Location(fs=location.fs, path=location.at(name), url=f"{location.url}/{name}")


def _files(location: Location, group: str, suffixes: tuple[str, ...]) -> Iterator[_File]:
    """The tables at or below a location, by name; raises FileNotFoundError where nothing is."""
    found = location.fs.find(location.path, detail=True)
    if not found and not location.fs.exists(location.path):
        raise FileNotFoundError(location.path)
    for path, entry in sorted(found.items()):
        relative = path.removeprefix(location.path).lstrip("/") or PurePosixPath(path).name
        if _is_table(PurePosixPath(relative).name, suffixes):
            name = relative.removesuffix(".parquet").replace("/", "__")
            yield _File(group, name, location.fs.unstrip_protocol(path), entry["size"], _etag(entry))


def _is_table(name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().endswith(suffixes) and not name.startswith((".", "_"))


def _etag(entry: Mapping[str, Any]) -> str:
    if "ETag" in entry:
        return str(entry["ETag"]).strip('"')
    return str(entry["mtime"])


def _images_file(
    file: _File, benchmark: BenchmarkConfig, storage: StorageConfig, shard_rows: int
) -> _ImagesFile | BrokenFile:
    names = benchmark.columns.renamed(prompts=benchmark.prompts is None)
    required = [name for name, its in names if its] + ([] if benchmark.prompts is None else ["prompt_id"])
    try:
        footer = _read_footer(file, storage)
        schema = footer.schema.to_arrow_schema()
        _require_columns(schema.names, required, names, "benchmark.columns", file.url)
        if not {benchmark.columns.image, benchmark.columns.uri} & set(schema.names):
            rows.require_columns(schema.names, ["image or uri"], file.url, key="benchmark.columns.image or .uri")
    except SourceError as error:
        return BrokenFile(file.group, str(error))
    return _ImagesFile(schema, _shards(file, footer, names, shard_rows))


def _require_columns(
    found: Sequence[str], required: Sequence[str], names: tuple[tuple[str, str], ...], key: str, url: str
) -> None:
    for name in required:
        rows.require_columns(found, [dict(names).get(name, name)], url, key=f"{key}.{name}")


def _extra_schema(columns: ColumnsConfig, schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The further columns that some file has; raises ConfigError for one that none has, or that differs in type."""
    taken = {getattr(columns, name) for name in IMAGE_COLUMNS}
    everything = dict.fromkeys(name for schema in schemas for name in schema.names if name not in taken)
    wanted = list(everything) if columns.extra == "*" else list(dict.fromkeys(columns.extra))
    _check_extra(wanted)
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


def _shards(file: _File, footer: pq.FileMetaData, names: tuple[tuple[str, str], ...], shard_rows: int) -> list[Shard]:
    """Runs of row groups of about `shard_rows` rows; a larger row group is a shard of its own, and no rows are none."""
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
            first_row=sum(sizes[: run[0]]),
            columns=names,
        )
        for run in _runs(sizes, shard_rows)
        if any(sizes[index] for index in run)
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
    except Exception as error:
        if not isinstance(error, pa.ArrowException) and not is_storage_error(error):
            raise
        raise SourceError(
            f"{file.url}: not a readable Parquet file ({first_line(error)}); "
            "it may be truncated: write or upload it again"
        ) from error


def read_shard(shard: Shard, storage: StorageConfig, columns: Sequence[str]) -> pa.Table:
    """A shard's rows with those of `columns`, by our names, that the file has; a row's own prompt has an id always.

    Raises SourceError naming the file, where it cannot be read or is not the one that was planned.
    """
    names = dict(shard.columns)
    if not (shard.holds_prompts and "prompt_id" in columns):
        return _read(shard, storage, {name: names.get(name, name) for name in columns})
    wanted = {name: names.get(name, name) for name in (*columns, "prompt")}
    table = _with_prompt_ids(_read(shard, storage, wanted), shard)
    return table.select([name for name in columns if name in table.column_names])


def read_extra(shard: Shard, storage: StorageConfig, extra: pa.Schema) -> pa.Table:
    """A shard's further columns for its scores, in the order of its rows; null where its file has no such column."""
    found = _read(shard, storage, {name: name for name in extra.names})
    absent = pa.nulls(shard.rows)
    columns = [found.column(name) if name in found.column_names else absent.cast(extra.field(name).type)
               for name in extra.names]  # fmt: skip
    return pa.table(columns, schema=extra)


def _read(shard: Shard, storage: StorageConfig, names: Mapping[str, str]) -> pa.Table:
    """The shard's columns by our names, of those that the file has.

    Read in this thread: Arrow's own threads hold on to the Python stream, and abort a process that ends meanwhile.
    """
    with _opened(shard, storage) as stream:
        file = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
        present = {name: its for name, its in names.items() if its in file.schema_arrow.names}
        wanted = list(dict.fromkeys(present.values()))
        table = file.read_row_groups(list(shard.row_groups), columns=wanted, use_threads=False)
        return table.select(list(present.values())).rename_columns(list(present))


@contextmanager
def _opened(shard: Shard, storage: StorageConfig) -> Iterator[Any]:
    """The shard's file, which must be the planned one before it is read and after: keys name what was computed from."""
    location = locate(shard.url, storage)
    try:
        _check_unchanged(shard, location)
        with location.fs.open(location.path, "rb") as stream:
            yield stream
        _check_unchanged(shard, location)
    except Exception as error:
        if not isinstance(error, (pa.ArrowException, UnicodeDecodeError)) and not is_storage_error(error):
            raise
        _check_unchanged(shard, location)
        groups = f", row groups {shard.row_groups[0]}-{shard.row_groups[-1]}" if shard.row_groups else ""
        raise SourceError(
            f"{shard.url}{groups}: unreadable ({first_line(error)}); write or upload the file again"
        ) from error


def _check_unchanged(shard: Shard, location: Location) -> None:
    """Raises SourceError where the file is gone, or has another size or etag than the plan's."""
    try:
        entry = location.fs.info(location.path)
    except FileNotFoundError as error:
        raise SourceError(
            f"{shard.url}: the file was there when the run was planned and is gone; put it back and run again: "
            "the plan is made anew"
        ) from error
    if (entry["size"], _etag(entry)) != (shard.size, shard.etag):
        raise SourceError(
            f"{shard.url}: the file has changed since the run was planned ({shard.size} bytes, etag {shard.etag}; now "
            f"{entry['size']} bytes, etag {_etag(entry)}); run again: the plan is made anew"
        )


def _with_prompt_ids(table: pa.Table, shard: Shard) -> pa.Table:
    """The table with a prompt_id in every row: its own as text, or else a hash of its prompt."""
    texts = [_text(value, shard, row) or "" for row, value in enumerate(table.column("prompt").to_pylist())]
    given = table.column("prompt_id").to_pylist() if "prompt_id" in table.column_names else [None] * len(texts)
    ids = [_text_id(text) if one is None else str(one) for one, text in zip(given, texts, strict=True)]
    others = table.drop_columns(["prompt_id"]) if "prompt_id" in table.column_names else table
    return others.append_column("prompt_id", pa.array(ids, pa.string()))


def _text_id(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(value: Any, shard: Shard, row: int) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise SourceError(f"{shard.url}, row {row} of its shard: expected the prompt as text, found {type(value).__name__}")


def read_prompts(shard: Shard, storage: StorageConfig) -> pa.Table:
    """A shard's prompts in the schema PROMPTS; absent columns are filled, ids become text.

    Of an images shard whose rows hold their own prompts, each id and text once; raises SourceError naming the file.
    """
    records = [
        {
            "prompt_id": None if found["prompt_id"] is None else str(found["prompt_id"]),
            "text": _text(found["text"], shard, row),
            "skills": _skills(found.get("skills"), shard),
            "suite": shard.group,
        }
        for row, found in enumerate(_own_prompts(shard, storage) if shard.holds_prompts else _prompts(shard, storage))
    ]
    return rows.table(records, rows.PROMPTS)


def _own_prompts(shard: Shard, storage: StorageConfig) -> list[dict[str, Any]]:
    table = read_shard(shard, storage, ("prompt_id", "prompt"))
    pairs = zip(*(table.column(name).to_pylist() for name in ("prompt_id", "prompt")), strict=True)
    return [{"prompt_id": one, "text": text} for one, text in dict.fromkeys((one, text or "") for one, text in pairs)]


def _prompts(shard: Shard, storage: StorageConfig) -> list[dict[str, Any]]:
    names = {name: dict(shard.columns).get(name, name) for name in PROMPT_COLUMNS}
    if not shard.url.lower().endswith(prompt_files.SUFFIXES):
        return _as_records(read_shard(shard, storage, PROMPT_COLUMNS), shard)
    with _opened(shard, storage) as stream:
        records = prompt_files.read_prompt_file(stream.read(), shard.url, [names["prompt_id"], names["text"]])
    in_csv = shard.url.lower().endswith(".csv")
    found = [{name: record.get(its) for name, its in names.items()} for record in records]
    return [{**one, "skills": _one_skill(one["skills"])} for one in found] if in_csv else found


def _as_records(table: pa.Table, shard: Shard) -> list[dict[str, Any]]:
    try:
        return [dict(row) for row in table.to_pylist()]
    except UnicodeDecodeError as error:
        raise SourceError(f"{shard.url}: a prompt is not UTF-8 ({error}); write the file in UTF-8") from error


def _one_skill(value: Any) -> Any:
    """A CSV field as a list of one skill, or of none where it is empty."""
    return value if not isinstance(value, str) else [value] if value else []


def _skills(value: Any, shard: Shard) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise SourceError(f"{shard.url}: expected `skills` to be a list of text, found {type(value).__name__}")
    return [str(skill) for skill in value]

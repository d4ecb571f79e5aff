"""Image files of a benchmark's generators: listing them, reading their footers, and dividing them into shards."""

import hashlib
import io
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base import rows
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.images.generation_settings import (
    SETTINGS_COLUMN,
    ColumnAlternatives,
    find_setting_columns,
    has_settings,
    list_setting_columns,
    list_source_columns,
    make_settings_type,
)
from plumbline.operators.images.rows import SOURCE_COLUMNS
from plumbline.pipelines.base.arrow_views import remove_views_from_schema
from plumbline.pipelines.base.storage import Place, StorageConfig, convert_read_errors
from plumbline.pipelines.base.tables import NO_GENERATOR, REJECTED_SCHEMA, Rejection, escape_bytes
from plumbline.pipelines.sources.benchmark import (
    GENERATOR_COLUMNS,
    IMAGE_COLUMNS,
    BenchmarkConfig,
    ColumnsConfig,
    check_extra_columns,
    name_generators,
)
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.origins import (
    MANIFEST_FILE,
    Origins,
    describe_ignored_files,
    format_first_names,
    format_suffix_counts,
    read_origins,
)
from plumbline.pipelines.sources.prompts import PromptTables
from plumbline.pipelines.sources.shards import (
    INGEST_KEY,
    N_FILE_READERS,
    BrokenFile,
    ListedFile,
    Listing,
    ShardSize,
    check_columns,
    digest_files,
    get_run_shard_size,
    is_table,
    list_files,
    read_footer,
    require_columns,
    split_file,
)
from plumbline.pipelines.store.cells import Shard, digest
from plumbline.pipelines.store.runs import read_newest_runs
from plumbline.pipelines.store.store import STORE_FILE, Store, is_store

TABLE_SUFFIXES = (".parquet",)
REJECTED_FILE = "rejected.parquet"
"""File for the rejected rows of an ingest, next to the generators' folders."""
MAX_REJECTED, MAX_REJECTED_BYTES = 1_000_000, 256 * 2**20
"""Maximum number of rejected rows that a sweep reads, and maximum size of their file, compressed or uncompressed."""
MAX_SHARD_SIZE = ShardSize(rows=32_768, bytes=512 << 20)
"""Maximum size of a shard. Its scores take about 1 MB, and a worker keeps the bytes of two or three shards in memory.
"""
MIN_SHARDS = 128
"""Minimum number of shards per benchmark; there may be fewer, so that no shard gets fewer rows than the default."""


class ImageFiles(NamedTuple):
    """Files of all generators, listed but not opened."""

    places: Mapping[str, Place]
    """Folder or file of each generator, in alphabetical order or in the order of the configuration."""
    listings: Mapping[str, Listing]
    siblings: list[str]
    """Files next to the generators' folders that are not tables."""
    rejected: tuple[Rejection, ...] = ()
    """Rows that an ingest rejected."""

    @property
    def others(self) -> list[str]:
        inside = [f"{name}/{path}" for name, listing in self.listings.items() for path in listing.others]
        return [*self.siblings, *inside]

    @property
    def digest(self) -> str:
        """Digest of the names, sizes and ETags of the files."""
        seen = hashlib.sha256("\0".join([*self.places, *self.others]).encode(errors="surrogateescape"))
        for listing in self.listings.values():
            seen.update(digest_files(listing.tables).encode())
        if self.rejected:
            seen.update(digest(self.rejected).encode())
        return seen.hexdigest()


class Images(NamedTuple):
    """The images of all generators as shards, and the files that cannot be read."""

    shards: list[Shard]
    broken: list[BrokenFile]
    rejected: tuple[Rejection, ...]
    generators: list[str]
    extra: pa.Schema
    """Extra columns that are copied to the scores."""
    settings: Mapping[str, ColumnAlternatives]
    """Columns that may contain generation settings."""
    origins: Origins


class _OpenedFile(NamedTuple):
    schema: pa.Schema
    shards: list[Shard]
    is_ingested: bool


def list_images(benchmark: BenchmarkConfig, storage: StorageConfig) -> ImageFiles:
    """List the files of every generator; raise ConfigError if there are none, or if they cannot be listed."""
    if isinstance(benchmark.generators, Mapping):
        places, siblings = {name: storage.locate(url) for name, url in benchmark.generators.items()}, list[str]()
    else:
        images = storage.locate(str(benchmark.images))
        with convert_read_errors(images, "benchmark.images"):
            places, siblings = _find_folders(images, benchmark)
        if absent := sorted(set(benchmark.generators or ()) - set(places)):
            found = ", ".join(places) or "none"
            raise ConfigError(f"benchmark.generators: no folder {absent[0]!r} in {images.url}; found {found}")
        if not places:
            raise _make_no_tables_error(benchmark, siblings)
        places = {name: places[name] for name in benchmark.generators or places}
    listings = {}
    for name, place in places.items():
        with convert_read_errors(place, f"benchmark.generators.{name}"):
            listings[name] = list_files(place, name, TABLE_SUFFIXES)
    return ImageFiles(places, listings, siblings, _read_rejected_rows(benchmark, storage, places))


def _find_folders(images: Place, benchmark: BenchmarkConfig) -> tuple[dict[str, Place], list[str]]:
    """Return the folder of each generator, and the names of other files in `images`.

    If `images` is a table, or a folder that directly contains the tables of one generator, it is that generator's
    folder.

    Raise ConfigError if `images` is a store, or contains Parquet files of an unknown generator next to the folders.
    """
    entries = images.list()
    if STORE_FILE in entries and is_store(images):
        raise ConfigError(
            f"benchmark.images {images.url}: expected images, found a store of scores; give the folder of images"
        )
    names = sorted(name for name, entry in entries.items() if entry.type == "directory" and not name.startswith("."))
    folders = {escape_bytes(name): images / name for name in names}
    folders = {generator: folders[name] for name, generator in name_generators(folders).items()}
    folders = {name: folder for name, folder in folders.items() if not is_store(folder)}
    files = sorted(name for name, entry in entries.items() if entry.type == "file")
    files = [name for name in files if is_table(name, ("",)) and name != MANIFEST_FILE]
    tables = [name for name in files if is_table(name, TABLE_SUFFIXES)]
    full = [name for name, folder in folders.items() if tables and list_files(folder, name, TABLE_SUFFIXES).tables]
    unclear = [name for name in tables if full and _may_have_images(images / name, benchmark)]
    if unclear:
        raise ConfigError(
            f"benchmark.images {images.url}: found Parquet files ({format_first_names(unclear)}) next to folders with "
            f"Parquet files ({format_first_names(full)}); move these files into a folder for their generator, or name "
            "the path of every generator in benchmark.generators"
        )
    if tables and not full:
        return {images.name.removesuffix(".parquet"): images}, []  # the listing of `images` has the other files
    return folders, [name for name in files if name not in tables]


def _may_have_images(file: Place, benchmark: BenchmarkConfig) -> bool:
    """Return True if a Parquet file may contain images; ingests also write other tables next to the folders."""
    columns = {benchmark.columns.image, benchmark.columns.uri}
    try:
        (listed,) = list_files(file, "", TABLE_SUFFIXES).tables
        return bool(columns & set(read_footer(listed).schema.to_arrow_schema().names))
    except SourceError:
        return True


def _make_no_tables_error(benchmark: BenchmarkConfig, others: Sequence[str]) -> ConfigError:
    images = benchmark.images or "PATH"
    inside = "" if benchmark.prompts is None else ", with the prompts in that folder itself (docs/ingest.md)"
    return ConfigError(
        f"benchmark.images {images}: expected one folder per generator, or Parquet files, found "
        f"{format_suffix_counts(others) or 'none'}; to score image files or tars, use plumbline score "
        f"images={images}{inside}; to convert them to Parquet, use plumbline ingest"
    )


def _read_rejected_rows(
    benchmark: BenchmarkConfig, storage: StorageConfig, generators: Container[str]
) -> tuple[Rejection, ...]:
    # a trial of the first prompts has no rejected rows, because it is not known which prompts they belong to
    if benchmark.images is None or benchmark.limit is not None:
        return ()
    place = storage.locate(benchmark.images) / REJECTED_FILE
    with convert_read_errors(place, "benchmark.images"):
        try:
            content = place.read(MAX_REJECTED_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return ()
    try:
        footer = pq.read_metadata(io.BytesIO(content)) if len(content) <= MAX_REJECTED_BYTES else None
        groups = [] if footer is None else [footer.row_group(number) for number in range(footer.num_row_groups)]
        size = sum(group.total_byte_size for group in groups)
        if footer is None or footer.num_rows > MAX_REJECTED or size > MAX_REJECTED_BYTES:
            raise ConfigError(
                f"{place}: expected at most {MAX_REJECTED:,} rejected rows and {MAX_REJECTED_BYTES >> 20} MiB, found "
                "more; correct the input and run the ingest again, or remove the file to leave its rows out"
            )
        table = pq.read_table(io.BytesIO(content), use_threads=False)
    except pa.ArrowException as error:
        raise ConfigError(f"{place}: damaged ({error}); run the ingest again") from error
    if not {*Rejection._fields} - {*Rejection._field_defaults} <= {*table.column_names}:
        return ()  # the file is not from an ingest
    known = table.select([name for name in REJECTED_SCHEMA.names if name in table.column_names])
    rejected = [Rejection(**row) for row in known.to_pylist()]
    return tuple(row for row in rejected if benchmark.generators is None or row.generator in generators)


def open_images(
    benchmark: BenchmarkConfig,
    storage: StorageConfig,
    shard_size: ShardSize,
    prompts: PromptTables | None,
    cache: ImageFileCache,
    files: ImageFiles | None = None,
) -> Images:
    """Read the footers of every generator's files; an unreadable file does not affect the other files.

    Configured columns for sources, masks and captions may be missing if `prompts` contains them.
    """
    files = files or list_images(benchmark, storage)
    places, columns = files.places, benchmark.columns
    cache.load(places)
    listed = [file for listing in files.listings.values() for file in listing.tables]
    if places and not listed:
        raise _make_no_tables_error(benchmark, files.others)
    optional = set() if prompts is None else prompts.edit_columns
    with ThreadPoolExecutor(N_FILE_READERS) as pool:
        results = list(
            pool.map(lambda file: _open_file(file, benchmark, shard_size, optional, cache.read_footer), listed)
        )
    broken = [result for result in results if isinstance(result, BrokenFile)]
    for name, listing in files.listings.items():
        if not listing.tables:
            advice = "expected Parquet files, found none; add the images, or leave it out (benchmark.generators)"
            broken.append(BrokenFile(name, f"{places[name].url}: {advice}"))
    tables = [result for result in results if isinstance(result, _OpenedFile)]
    if broken and not tables and (benchmark.prompts is None or columns != ColumnsConfig()):
        raise ConfigError(f"benchmark.images: {broken[0].message}")
    schemas = [table.schema for table in tables]
    settings = _find_setting_columns(columns, schemas)
    # a rejected row without a generator belongs to the only generator, if there is only one
    fallback = next(iter(places)) if len(places) == 1 else NO_GENERATOR
    return Images(
        shards=[shard for table in tables for shard in table.shards],
        broken=broken,
        rejected=tuple(row._replace(generator=row.generator or fallback) for row in files.rejected),
        generators=list(places),
        extra=_make_extra_schema(columns, schemas, settings),
        settings=settings,
        origins=_describe_origins(benchmark, storage, files, tables, settings),
    )


def _open_file(
    file: ListedFile,
    benchmark: BenchmarkConfig,
    shard_size: ShardSize,
    optional: Container[str],
    footer_of: Callable[[ListedFile], pq.FileMetaData],
) -> _OpenedFile | BrokenFile:
    """Read a file's schema and shards; raise ConfigError if it contains generators that the sweep cannot separate."""
    columns = benchmark.columns
    names = columns.list_renamed_columns(prompts=benchmark.prompts is None)
    required = [name for name, own in names if own and name not in optional]
    required += [] if benchmark.prompts is None else ["prompt_id"]
    try:
        footer = footer_of(file)
        schema = remove_views_from_schema(footer.schema.to_arrow_schema())
        require_columns(schema, required, names, "benchmark.columns", file.url)
        ids = [name for name in (columns.image_id, columns.prompt_id) if name is not None]
        check_columns(schema, _list_columns_to_read(benchmark, schema), ids, file.url)
        if not {columns.image, columns.uri} & set(schema.names):
            rows.require_columns(schema.names, ["image or uri"], file.url, key="benchmark.columns.image or .uri")
    except SourceError as error:
        return BrokenFile(file.group, str(error))
    is_ingested = INGEST_KEY in (footer.metadata or {})
    if not is_ingested:
        _check_single_generator(file, footer, benchmark)
    return _OpenedFile(schema, split_file(file, footer, names, shard_size), is_ingested)


def _check_single_generator(file: ListedFile, footer: pq.FileMetaData, benchmark: BenchmarkConfig) -> None:
    if isinstance(benchmark.generators, Mapping):
        return
    names = [benchmark.columns.generator] if benchmark.columns.generator else GENERATOR_COLUMNS
    for index in range(footer.num_columns):
        if (name := footer.schema.column(index).path) not in names:
            continue
        groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        known = [statistics for statistics in groups if statistics is not None and statistics.has_min_max]
        values = [str(end) for statistics in known for end in (statistics.min, statistics.max)]
        if len(set(values)) > 1:
            raise ConfigError(
                f"{file.url}: the column {name!r} names several generators ({min(values)!r} to {max(values)!r}), "
                f"which a sweep would treat as one, {file.group!r}. To separate them, use plumbline score with "
                f"benchmark.columns.generator={name}, or plumbline ingest with columns.generator={name}; to treat them "
                f"as one, set benchmark.generators={{{file.group}: PATH}} and benchmark.images=null"
            )


def _list_columns_to_read(benchmark: BenchmarkConfig, schema: pa.Schema) -> list[str]:
    columns = benchmark.columns
    names = IMAGE_COLUMNS if benchmark.prompts is not None else (*IMAGE_COLUMNS, "prompt")
    extra = schema.names if columns.extra == "*" else columns.extra
    settings = list_source_columns(list_setting_columns(columns.settings))
    return [*(getattr(columns, name) for name in names), *columns.edit_columns.values(), *extra, *settings]


def _find_setting_columns(columns: ColumnsConfig, schemas: Sequence[pa.Schema]) -> dict[str, ColumnAlternatives]:
    """Return the columns that may contain generation settings; empty if no file has any.

    Raise ConfigError if no file has a configured column.
    """
    ways = list_setting_columns(columns.settings)
    found = {name for schema in schemas for name in find_setting_columns(schema.names, ways)}
    if any(map(has_settings, schemas)):
        return ways
    absent = [list_source_columns({name: way})[0] for name, way in ways.items() if name not in found]
    if columns.settings is not None and schemas and absent:
        known = ", ".join(dict.fromkeys(name for schema in schemas for name in schema.names))
        raise ConfigError(f"benchmark.columns.settings: no images table has a column {absent[0]!r}; found {known}")
    return ways if found else {}


def _make_extra_schema(
    columns: ColumnsConfig, schemas: Sequence[pa.Schema], settings: Mapping[str, ColumnAlternatives]
) -> pa.Schema:
    used = {*(getattr(columns, name) for name in IMAGE_COLUMNS), *columns.edit_columns.values()}
    used |= {SETTINGS_COLUMN} if settings else set()
    names = dict.fromkeys(name for schema in schemas for name in schema.names)
    wanted = [name for name in names if name not in used] if columns.extra == "*" else dict.fromkeys(columns.extra)
    check_extra_columns(list(wanted))
    fields: list[pa.Field] = []
    for name in wanted:
        if not schemas or (settings and name == SETTINGS_COLUMN):
            continue
        types = list(dict.fromkeys(schema.field(name).type for schema in schemas if name in schema.names))
        if not types:
            found = ", ".join(names)
            raise ConfigError(f"benchmark.columns.extra: no images table has a column {name!r}; found {found}")
        if len(types) > 1:
            raise ConfigError(
                f"benchmark.columns.extra: {name!r} is {types[0]} in one images table and {types[1]} in another; "
                "use the same type in both, or leave the column out"
            )
        fields.append(pa.field(name, types[0]))
    return pa.schema([*fields, *([pa.field(SETTINGS_COLUMN, make_settings_type(settings))] if settings else [])])


def _describe_origins(
    benchmark: BenchmarkConfig,
    storage: StorageConfig,
    files: ImageFiles,
    tables: Sequence[_OpenedFile],
    settings: Mapping[str, ColumnAlternatives],
) -> Origins:
    columns, schemas = benchmark.columns, [table.schema for table in tables]
    root = storage.locate(benchmark.images) if benchmark.images is not None else None
    all_ingested = root is not None and bool(tables) and all(table.is_ingested for table in tables)
    origins = read_origins(root) if root is not None and all_ingested else None
    if origins is None:
        read = {*_list_columns_to_read(benchmark, pa.schema([])), *columns.extra}
        names = dict.fromkeys(name for schema in schemas for name in schema.names)
        of_folder = "the name of" if root in files.places.values() else "the folders in"
        origins = Origins(
            benchmark.prompts or f"the column {columns.prompt!r} of the images' tables",
            "benchmark.generators" if benchmark.images is None else f"{of_folder} {benchmark.images}",
            [] if columns.extra == "*" else [name for name in names if name not in read],
            describe_ignored_files(files.others),
        )
    if columns.sources and not origins.sources:
        own = sum(not {*columns.sources}.isdisjoint(schema.names) for schema in schemas)
        tables_named = ["the images' tables"] * (own > 0) + [str(benchmark.prompts)] * (own < len(schemas))
        named = " and ".join(map(repr, columns.sources))
        origins = origins._replace(sources=f"the column {named} of {' and of '.join(tables_named)}")
    columns_by_setting: dict[str, dict[str, None]] = {}
    for schema in schemas:
        for setting, found in find_setting_columns(schema.names, settings).items():
            columns_by_setting.setdefault(setting, {})[" x ".join(found)] = None
    words = [name if [*own] == [name] else f"{name} ({', '.join(own)})" for name, own in columns_by_setting.items()]
    words += ["those in the images' files and rows"] if settings and any(map(has_settings, schemas)) else []
    unread = [name for name in origins.unread if name not in list_source_columns(settings)]
    return origins._replace(settings=", ".join(words), unread=unread)


def find_ingested_sources(benchmark: BenchmarkConfig, storage: StorageConfig) -> dict[str, str]:
    """Return the columns with source images that an ingest wrote, each mapped to itself; empty if there are none.

    Only the first readable image table is checked.
    """
    for listing in list_images(benchmark, storage).listings.values():
        for file in listing.tables:
            try:
                footer = read_footer(file)
            except SourceError:
                continue
            names = footer.schema.to_arrow_schema().names if INGEST_KEY in (footer.metadata or {}) else []
            return {column: column for column in SOURCE_COLUMNS if column in names}
    return {}


def load_shard_size(benchmark: str, images: ImageFiles, store: Store, *, remember: bool) -> ShardSize:
    """Return the size of a benchmark's shards in a store.

    The size is chosen when a benchmark is first used with a store and does not change afterwards, because keys depend
    on it. If the file that records the size is lost, the size is taken from the newest run whose configuration has a
    limit in bytes.
    """
    note = f"cuts/{benchmark}.json"
    if known := store.read_json(note):
        return ShardSize(known["rows"], known["bytes"])
    sizes = (get_run_shard_size((run.manifest or {}).get("config", {})) for run in read_newest_runs(store, benchmark))
    size = next((size for size in sizes if size.bytes is not None), None) or choose_shard_size(images)
    if remember and not store.create_json(note, size._asdict()):
        return load_shard_size(benchmark, images, store, remember=False)  # another sweep was first
    return size


def choose_shard_size(images: ImageFiles) -> ShardSize:
    """Return a size that gives enough shards for many workers without making shards too short or too long."""
    n_rows = 0
    for listing in images.listings.values():  # the generator's largest file gives the number of rows per byte
        largest = max(listing.tables, key=lambda file: file.size, default=None)
        if largest is not None:
            with suppress(SourceError):
                n_bytes = sum(file.size for file in listing.tables)
                n_rows += read_footer(largest).num_rows * n_bytes // max(largest.size, 1)
    return MAX_SHARD_SIZE._replace(rows=min(max(n_rows // MIN_SHARDS, ShardSize().rows), MAX_SHARD_SIZE.rows))

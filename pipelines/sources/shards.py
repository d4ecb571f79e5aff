"""Lists source files, uses their footers to divide them into shards, and reads shards under our column names."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from itertools import accumulate, chain, groupby
from typing import Any, NamedTuple, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base import rows
from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.rows import require_unique_columns
from plumbline.operators.images.generation_settings import (
    SETTINGS_COLUMN,
    ColumnAlternatives,
    list_source_columns,
    read_settings,
)
from plumbline.operators.images.rows import EDIT_COLUMNS, format_id
from plumbline.pipelines.base.arrow_views import remove_views
from plumbline.pipelines.base.hugging_face_labels import name_labels
from plumbline.pipelines.base.parquet_reader import ParquetReader
from plumbline.pipelines.base.storage import Place, get_first_line, is_storage_error
from plumbline.pipelines.base.tables import escape_bytes
from plumbline.pipelines.store.cells import Shard
from plumbline.pipelines.store.store import exclude_stores

N_FILE_READERS = 16
INGEST_KEY = b"plumbline_ingest"
"""Key in the metadata of files that an ingest wrote."""
MAX_ROWS_AT_ONCE = 65_536
"""Maximum number of rows of a file whose ids and texts are read together, across shards."""
BINARY_TYPES = (pa.binary(), pa.large_binary(), pa.binary_view())
MAX_NAME_BYTES = 120
"""Maximum bytes of a file's name that are used in cell names: a file system allows 255, and cell names are longer."""
HIDDEN_PATH_PATTERN = re.compile("(?:^|/)[._]")
"""Start of the name of a hidden file or folder in a path."""
SHARD_LIKE_NAME_PATTERN = re.compile(r"-\d{5,}\.parquet$")
"""End of a file name that could be confused with a shard of another file: shards are named by their first row group."""

Read = ParamSpec("Read")
Found = TypeVar("Found")


class ShardSize(NamedTuple):
    """Maximum size of a shard."""

    rows: int = 256
    """Maximum number of rows; a larger row group becomes a shard of its own."""
    bytes: int | None = None
    """Maximum number of bytes; None for no limit."""


def get_run_shard_size(config: Mapping[str, Any]) -> ShardSize:
    """Return the shard size of a run from the configuration in its manifest."""
    return ShardSize(config.get("shard_rows", ShardSize().rows), config.get("shard_bytes"))


class BrokenFile(NamedTuple):
    """A source file that cannot be read. Its rows count as failed; other files are not affected."""

    generator: str
    message: str
    rows: int = 1
    """Number of lost rows; 1 if unknown."""


class UnreadableFileError(SourceError):
    """Raised if a file is not a readable table."""


class ListedFile(NamedTuple):
    """A source file that was listed but not opened."""

    group: str
    name: str
    place: Place
    size: int
    etag: str
    regular: bool
    """True for a regular file; False for a broken link, a pipe or a device."""

    @property
    def url(self) -> str:
        """Address of the file, with file:// for a local file."""
        return self.place.uri


class Listing(NamedTuple):
    """The files found at a path, except hidden files and files that belong to a store."""

    tables: list[ListedFile]
    others: list[str]
    """Paths of other files, relative to the folder."""


def list_files(place: Place, group: str, suffixes: tuple[str, ...]) -> Listing:
    """List a file, or the files below a folder sorted by name; raise FileNotFoundError if it does not exist."""
    found = dict(place.files())
    if not found and not place.exists():
        raise FileNotFoundError(place.url)
    paths = {path or place.name: path for path in exclude_stores(place, sorted(found))}
    visible = [relative for relative in paths if not HIDDEN_PATH_PATTERN.search(relative)]
    others = [relative for relative in visible if not relative.lower().endswith(suffixes)]
    tables: list[ListedFile] = []
    for relative in (relative for relative in visible if relative.lower().endswith(suffixes)):
        entry, shown = found[paths[relative]], escape_bytes(relative)
        name = shown.removesuffix(".parquet").replace("/", "__")
        is_like_shard = (
            SHARD_LIKE_NAME_PATTERN.search(shown) is not None
            and SHARD_LIKE_NAME_PATTERN.sub(".parquet", shown) in paths
        )
        # names are unique: an ambiguous or a long name gets a hash of the path
        if "__" in shown or len(name.encode()) > MAX_NAME_BYTES or is_like_shard:
            short = name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
            name = f"{short}-{hashlib.sha256(shown.encode()).hexdigest()[:8]}"
        file = place / paths[relative]
        tables.append(ListedFile(group, name, file, entry.size, entry.etag, regular=entry.type == "file"))
    return Listing(tables, others)


def digest_files(files: Iterable[ListedFile]) -> str:
    """Return a digest of files with their sizes and ETags, as in the keys of their shards."""
    seen = hashlib.sha256()
    for file in files:
        line = f"{file.group}\0{file.name}\0{resolve_links(file.place)}\0{file.size}\0{file.etag}\0{file.regular}\n"
        seen.update(line.encode(errors="surrogateescape"))
    return seen.hexdigest()


def resolve_links(place: Place) -> str:
    """Return a file's address, with all links resolved if the file is local."""
    return os.path.realpath(place.path) if place.is_local else place.url


def is_table(relative: str, suffixes: tuple[str, ...]) -> bool:
    """Return True if a file has one of the suffixes, and neither the file nor any folder in its path is hidden."""
    return relative.lower().endswith(suffixes) and not HIDDEN_PATH_PATTERN.search(relative)


def retry_unreadable(read: Callable[Read, Found]) -> Callable[Read, Found]:
    """Decorate a function so that it reads an unreadable file a second time before it fails.

    S3 sends byte ranges of objects without a checksum, so the bytes may have been garbled in transit.
    """

    @wraps(read)
    def read_twice(*args: Read.args, **options: Read.kwargs) -> Found:
        try:
            return read(*args, **options)
        except UnreadableFileError:
            return read(*args, **options)

    return read_twice


@retry_unreadable
def read_footer(file: ListedFile) -> pq.FileMetaData:
    """Return a Parquet file's footer; raise SourceError if it has none, or if the file's name is not UTF-8."""
    if file.url != escape_bytes(file.url):
        raise SourceError(f"{escape_bytes(file.url)}: the file's name, or a folder's, is not UTF-8; rename it")
    if not file.regular:
        raise SourceError(f"{file.url}: expected a file, found a broken link, a pipe or a device; remove it")
    try:
        with file.place.open(size=file.size, etag=file.etag) as stream:
            return pq.read_metadata(stream)
    except Exception as error:
        if not isinstance(error, pa.ArrowException) and not is_storage_error(error):
            raise
        with suppress(OSError):  # the server may be out of reach
            _check_unchanged(file)
        raise UnreadableFileError(
            f"{file.url}: not a readable Parquet file ({get_first_line(error)}); "
            "it may be truncated: write or upload it again"
        ) from error


def require_columns(
    schema: pa.Schema, required: Sequence[str], names: tuple[tuple[str, str], ...], key: str, url: str
) -> None:
    """Raise SourceError naming the configuration key if a file lacks a required column."""
    for name in required:
        rows.require_columns(schema.names, [dict(names).get(name, name)], url, key=f"{key}.{name}")


def check_columns(schema: pa.Schema, read: Sequence[str], ids: Sequence[str], url: str) -> None:
    """Raise SourceError if a column to read occurs twice, or if ids are neither text nor numbers."""
    require_unique_columns(schema.names, read, url)
    for name in set(ids) & set(schema.names):
        dtype = schema.field(name).type
        if pa.types.is_nested(dtype) or dtype in BINARY_TYPES or pa.types.is_fixed_size_binary(dtype):
            raise SourceError(f"{url}: expected {name!r} to contain text or numbers, found {dtype}; write ids as text")


def split_file(
    file: ListedFile, footer: pq.FileMetaData, names: tuple[tuple[str, str], ...], shard_size: ShardSize
) -> list[Shard]:
    """Return shards of consecutive row groups within the size limit; a larger row group is a shard of its own."""
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    first_rows = list(accumulate((group.num_rows for group in groups), initial=0))
    first_bytes = list(accumulate((group.total_byte_size for group in groups), initial=0))
    runs: list[range] = []
    for index in range(len(groups)):
        first = runs[-1].start if runs else index
        n_rows, n_bytes = first_rows[index + 1] - first_rows[first], first_bytes[index + 1] - first_bytes[first]
        if runs and n_rows <= shard_size.rows and (shard_size.bytes is None or n_bytes <= shard_size.bytes):
            runs[-1] = range(first, index + 1)
        else:
            runs.append(range(index, index + 1))
    return [
        Shard(
            group=file.group,
            name=file.name if len(runs) == 1 else f"{file.name}-{run.start:05d}",
            place=file.place,
            size=file.size,
            etag=file.etag,
            row_groups=tuple(run),
            rows=first_rows[run.stop] - first_rows[run.start],
            first_row=first_rows[run.start],
            columns=names,
        )
        for run in runs
        if first_rows[run.stop] > first_rows[run.start]
    ]


@retry_unreadable
def read_shard(shard: Shard, columns: Sequence[str]) -> pa.Table:
    """Return a shard's rows with the given `columns` (our names), except columns that the file lacks.

    If rows contain their own prompts, each row gets a prompt_id. Raise SourceError naming the file if it cannot be read
    or has changed since the plan was made.
    """
    with open_shard(shard) as stream:
        return _read_renamed_columns(ParquetReader(stream, shard.size), shard, columns)


def read_image_addresses(shard: Shard) -> list[str]:
    """Return the address of each row's image; empty unless the shard was ingested without copying images."""
    if not shard.objects:
        return []
    try:
        with open_shard(shard) as stream:
            file = ParquetReader(stream, shard.size)
            if INGEST_KEY not in (file.footer.metadata or {}):
                return []
            files: list[str | None] = _read_renamed_columns(file, shard, ("uri",)).column("uri").to_pylist()
    except (SourceError, KeyError):  # the caller can still name the row in the shard's file
        return []
    return [each for each in files if each] if all(files) else []


def _read_renamed_columns(file: ParquetReader, shard: Shard, columns: Sequence[str]) -> pa.Table:
    """Return the shard's rows from an open file, with the columns renamed to our names.

    Rows with their own prompts get a prompt_id: their own, or a hash of the prompt.
    """
    if not (shard.contains_prompts and "prompt_id" in columns):
        return _read_row_groups(file, shard, map_file_columns(shard, columns))
    table = _read_row_groups(file, shard, map_file_columns(shard, (*columns, "prompt")))
    texts = [
        require_prompt_text(value, shard, row) or "" for row, value in enumerate(read_column(table, "prompt", shard))
    ]
    given: list[Any] = [None] * len(texts)
    if "prompt_id" in table.column_names:
        given, table = read_column(table, "prompt_id", shard), table.drop_columns(["prompt_id"])
    ids = [format_id(prompt_id) or hash_text(text) for prompt_id, text in zip(given, texts, strict=True)]
    table = table.append_column("prompt_id", pa.array(ids, pa.string()))
    return table.select([name for name in columns if name in table.column_names])


def map_file_columns(shard: Shard, columns: Sequence[str]) -> dict[str, str]:
    """Map Plumbline's names for these columns to the names in the shard's file.

    Columns for sources, masks and captions are left out if they are not configured.
    """
    names = dict(shard.columns)
    return {name: names.get(name, name) for name in columns if name in names or name not in EDIT_COLUMNS}


def read_each_shard(
    shards: Sequence[Shard], columns: Sequence[str], footer: pq.FileMetaData | None = None
) -> list[pa.Table | SourceError]:
    """Read columns from the shards of one file; a shard that fails twice is replaced by its error.

    Addresses are not read if every row contains its image's bytes.
    """
    tables = _read_shards_of_file(shards, columns, footer)
    damaged = any(isinstance(table, UnreadableFileError) for table in tables)
    return _read_shards_of_file(shards, columns) if damaged else tables


def _read_shards_of_file(
    shards: Sequence[Shard], columns: Sequence[str], footer: pq.FileMetaData | None = None
) -> list[pa.Table | SourceError]:
    without_addresses = [name for name in columns if name != "uri"]
    try:
        with open_shard(shards[0]) as stream:
            file = ParquetReader(stream, shards[0].size, footer)
            tables: list[pa.Table | SourceError] = []
            for (_, may_lack_bytes), run in _group_shards(file.footer, shards):
                names = columns if may_lack_bytes else without_addresses
                tables += _read_shards_together(file, [shard for shard, _ in run], names)
            return tables
    except SourceError as error:
        return [error] * len(shards)


def _group_shards(
    footer: pq.FileMetaData, shards: Sequence[Shard]
) -> Iterator[tuple[tuple[int, bool], Iterator[tuple[Shard, int]]]]:
    """Group neighbouring shards to read together: at most MAX_ROWS_AT_ONCE, either all with image bytes or all without.

    The bool in each group's key is True if, according to the footer, a row may lack image bytes.
    """
    image = dict(shards[0].columns).get("image", "image")
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    leaves = [index for index, path in enumerate(paths) if path in (image, f"{image}.bytes")]

    def may_lack_bytes(shard: Shard) -> bool:
        groups = [footer.row_group(group) for group in shard.row_groups]
        statistics = [group.column(index).statistics for group in groups for index in leaves]
        return not leaves or any(each is None or not each.has_null_count or each.null_count for each in statistics)

    ends = accumulate(_count_rows(footer, shard.row_groups) for shard in shards)
    return groupby(zip(shards, ends, strict=True), lambda each: (each[1] // MAX_ROWS_AT_ONCE, may_lack_bytes(each[0])))


def _read_shards_together(
    file: ParquetReader, shards: Sequence[Shard], columns: Sequence[str]
) -> list[pa.Table | SourceError]:
    """Return a table for each shard; a row group that is shared by several shards is read only once.

    If reading fails, each shard is read separately, because only one of them may be damaged.
    """
    try:
        if len(shards) == 1:
            return [_read_renamed_columns(file, shards[0], columns)]
        runs = list(dict.fromkeys(shard.row_groups for shard in shards))
        table = _read_renamed_columns(
            file, replace(shards[0], row_groups=tuple(chain.from_iterable(runs)), picked=()), columns
        )
        sizes = [_count_rows(file.footer, run) for run in runs]
        starts = accumulate(sizes, initial=0)
        tables = {run: table.slice(start, size) for run, start, size in zip(runs, starts, sizes, strict=False)}
        return [select_picked_rows(tables[shard.row_groups], shard) for shard in shards]
    except (pa.ArrowException, OSError, UnicodeDecodeError, SourceError) as error:
        if len(shards) > 1:
            return list(chain.from_iterable(_read_shards_together(file, [shard], columns) for shard in shards))
        return [error if isinstance(error, SourceError) else _make_unreadable_error(shards[0], error)]


def _count_rows(footer: pq.FileMetaData, row_groups: Sequence[int]) -> int:
    return sum(footer.row_group(index).num_rows for index in row_groups)


def select_picked_rows(table: pa.Table, shard: Shard) -> pa.Table:
    """Return the rows of a shard, given a table with all rows of its row groups or of its whole file."""
    return table.take(pa.array(shard.picked)) if shard.picked else table


@retry_unreadable
def read_extra_columns(shard: Shard, extra: pa.Schema, settings: Mapping[str, ColumnAlternatives]) -> pa.Table:
    """Return the columns that a shard adds to its scores, in row order; null if the shard's file lacks them.

    The settings column is assembled from the columns that contain generation settings.
    """
    with open_shard(shard) as stream:
        file = ParquetReader(stream, shard.size)
        found = _read_row_groups(
            file,
            shard,
            {name: name for name in (*extra.names, *list_source_columns(settings))},
            keep_label_numbers=True,
        )
    absent = pa.nulls(shard.rows)
    columns = [found.column(name) if name in found.column_names else absent.cast(extra.field(name).type)
               for name in extra.names]  # fmt: skip
    if settings:
        columns[extra.get_field_index(SETTINGS_COLUMN)] = read_settings(found, settings)
    return pa.table(columns, schema=extra)


def _read_row_groups(
    file: ParquetReader, shard: Shard, names: Mapping[str, str], *, keep_label_numbers: bool = False
) -> pa.Table:
    """Return the shard's rows with the columns of `names` that the file has, renamed to Plumbline's names.

    Hugging Face class labels are stored as numbers. They are replaced by their names unless `keep_label_numbers` is
    True. Ids always keep their numbers, because keys contain them.
    """
    present = {name: column for name, column in names.items() if column in file.names}
    wanted = list(dict.fromkeys(present.values()))
    # read in this thread: Arrow's own threads keep the Python stream, and can abort a process that is ending
    table = remove_views(file.read(shard.row_groups, wanted))
    if not keep_label_numbers:
        table = name_labels(table, exclude=[names[role] for role in ("image_id", "prompt_id") if role in names])
    return select_picked_rows(table, shard).select(list(present.values())).rename_columns(list(present))


@contextmanager
def open_shard(shard: Shard) -> Iterator[Any]:
    """Open the shard's file; raise SourceError if it is unreadable, or has changed since it was planned."""
    try:
        with shard.place.open(size=shard.size, etag=shard.etag, cache_type="none") as stream:
            yield stream
    except Exception as error:
        _check_unchanged(shard)
        if not isinstance(error, (pa.ArrowException, UnicodeDecodeError)) and not is_storage_error(error):
            raise
        raise _make_unreadable_error(shard, error) from error
    if not shard.place.filesystem.reads_one_version:
        _check_unchanged(shard)


def _make_unreadable_error(shard: Shard, error: Exception) -> UnreadableFileError:
    groups = f", row groups {shard.row_groups[0]}-{shard.row_groups[-1]}" if shard.row_groups else ""
    return UnreadableFileError(
        f"{shard.url}{groups}: unreadable ({get_first_line(error)}); write or upload the file again"
    )


def _check_unchanged(file: Shard | ListedFile) -> None:
    """Raise SourceError if the file is gone, or its size or ETag differs from the plan."""
    try:
        entry = file.place.get_entry()
    except FileNotFoundError as error:
        raise SourceError(
            f"{file.url}: the file has disappeared since the run was planned; restore it and run again to "
            "make a new plan"
        ) from error
    if (entry.size, entry.etag) != (file.size, file.etag):
        raise SourceError(
            f"{file.url}: the file has changed since the run was planned ({file.size} bytes, etag {file.etag}; now "
            f"{entry.size} bytes, etag {entry.etag}); run again to make a new plan"
        )


def hash_text(text: str) -> str:
    """Return a hash of a text, which serves as the id of a prompt without an id."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_column(table: pa.Table, name: str, shard: Shard) -> list[Any]:
    """Return a column of a shard; raise SourceError naming the first row whose text is not UTF-8."""
    column, values = table.column(name), []
    with suppress(UnicodeDecodeError):
        return list(column.to_pylist())
    for row, value in enumerate(column):  # find the row
        try:
            values.append(value.as_py())
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{describe_row(shard, row)}: {name} is not UTF-8 ({error}); write the file in UTF-8"
            ) from error
    return values


def describe_row(shard: Shard, row: int) -> str:
    """Return text for messages about a shard's row: the file, and the row number in the file, counted from 0."""
    return f"{shard.url}, row {shard.get_row_in_file(row)}"


def require_prompt_text(value: Any, shard: Shard, row: int) -> str | None:
    """Return a prompt if it is text; otherwise raise SourceError naming the row."""
    if rows.is_missing(value):
        return None
    if isinstance(value, str):
        return value
    raise SourceError(f"{describe_row(shard, row)}: expected the prompt as text, found {type(value).__name__}")

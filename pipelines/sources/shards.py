"""Source files, as they are listed, divided into shards by their footers, and read by our names of columns."""

import hashlib
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from itertools import accumulate, chain, groupby
from typing import Any, NamedTuple, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base import rows
from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.rows import require_once
from plumbline.operators.images.generation_settings import COLUMN, Ways, columns_of, read_settings
from plumbline.operators.images.rows import EDIT_COLUMNS, id_text
from plumbline.pipelines.base.class_labels import name_labels
from plumbline.pipelines.base.parquet_reader import ParquetReader
from plumbline.pipelines.base.storage import (
    Place,
    first_line,
    is_storage_error,
)
from plumbline.pipelines.base.tables import printable
from plumbline.pipelines.base.view_types import without_views
from plumbline.pipelines.store.cells import Shard
from plumbline.pipelines.store.store import exclude_stores

FILE_READERS = 16
INGESTED = b"plumbline_ingest"
"""Key in the metadata of files that an ingest wrote."""
MAX_ROWS_AT_ONCE = 65_536
"""Number of ids and texts of a file that are read in one go, across shards."""
BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())
MAX_NAME_BYTES = 120
"""Maximum bytes of a file's name in the names of its cells: a file system allows 255, and the cells add to it."""
HIDDEN = re.compile("(?:^|/)[._]")
"""The mark of a hidden file or folder in a path."""
PART = re.compile(r"-\d{5,}\.parquet$")
"""End of a file's name that could be that of a shard of another file, which is named by its first row group."""


Read = ParamSpec("Read")
Found = TypeVar("Found")


class ShardSize(NamedTuple):
    """Size limits of a shard."""

    rows: int = 256
    """Maximum number of rows; a larger row group is a shard of its own."""
    bytes: int | None = None
    """Maximum bytes; None for no limit."""

    def holds(self, rows: int, size: int) -> bool:
        """Return True if this number of rows and bytes is within the limits."""
        return rows <= self.rows and (self.bytes is None or size <= self.bytes)

    @property
    def of_prompts(self) -> "ShardSize":
        """Size of shards of prompts, which have few bytes and take long if a model writes about them."""
        return self if self.bytes is None else ShardSize()


def run_shard_size(config: Mapping[str, Any]) -> ShardSize:
    """Return the size of the shards of a run, by its manifest's configuration."""
    return ShardSize(config.get("shard_rows", ShardSize().rows), config.get("shard_bytes"))


class BrokenFile(NamedTuple):
    """A source file that cannot be read; its rows are counted as failed and everything else goes on."""

    generator: str
    message: str
    rows: int = 1
    """Number of lost rows; 1 if unknown."""


class UnreadableFile(SourceError):
    """A file that is not a readable table."""


class ListedFile(NamedTuple):
    """A source file, as it is listed."""

    group: str
    name: str
    place: Place
    size: int
    etag: str
    regular: bool
    """True for a regular file; false for a link that leads nowhere, a pipe or a device."""

    @property
    def url(self) -> str:
        """Address, with file:// for a local file."""
        return self.place.uri


class Listing(NamedTuple):
    """A file, or the files below a folder without hidden files and stores."""

    tables: list[ListedFile]
    others: list[str]
    """Paths of the other files, relative to the place."""


def list_files(place: Place, group: str, suffixes: tuple[str, ...]) -> Listing:
    """List a file, or the files below a folder by name; raises FileNotFoundError if it does not exist."""
    found = dict(place.files())
    if not found and not place.exists():
        raise FileNotFoundError(place.url)
    paths = {path or place.name: path for path in exclude_stores(place, sorted(found))}
    visible = [relative for relative in paths if not HIDDEN.search(relative)]
    tables = [relative for relative in visible if relative.lower().endswith(suffixes)]
    others = [relative for relative in visible if not relative.lower().endswith(suffixes)]

    def listed(relative: str) -> ListedFile:
        entry, file = found[paths[relative]], place / paths[relative]
        name = _name(printable(relative), paths)
        return ListedFile(group, name, file, entry.size, entry.etag, regular=entry.type == "file")

    return Listing(list(map(listed, tables)), others)


def state_of(files: Iterable[ListedFile]) -> str:
    """Return a digest of the list of files, their sizes and etags, as in the keys of their shards."""
    seen = hashlib.sha256()
    for file in files:
        line = f"{file.group}\0{file.name}\0{resolved(file.place)}\0{file.size}\0{file.etag}\0{file.regular}\n"
        seen.update(line.encode(errors="surrogateescape"))
    return seen.hexdigest()


def resolved(place: Place) -> str:
    """Return a file's address, with all links followed if it is local."""
    return os.path.realpath(place.path) if place.is_local else place.url


def _name(relative: str, others: Container[str]) -> str:
    """Return a file's name within its group.

    A long name, or one that could be that of another file or of its shard, is shortened and gets a hash.
    """
    name = relative.removesuffix(".parquet").replace("/", "__")
    of_a_part = PART.search(relative) is not None and PART.sub(".parquet", relative) in others
    if "__" not in relative and len(name.encode()) <= MAX_NAME_BYTES and not of_a_part:
        return name
    short = name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(relative.encode()).hexdigest()[:8]}"


def is_table(relative: str, suffixes: tuple[str, ...]) -> bool:
    """Return True if a file has a table's suffix, and neither it nor a folder of its path is hidden or a marker."""
    return relative.lower().endswith(suffixes) and not HIDDEN.search(relative)


def read_again(read: Callable[Read, Found]) -> Callable[Read, Found]:
    """Decorate a function that reads a file: the file is read once more before it is called unreadable.

    A part of an object comes from S3 without a checksum, so it may have been garbled on the way.
    """

    @wraps(read)
    def reading(*args: Read.args, **options: Read.kwargs) -> Found:
        try:
            return read(*args, **options)
        except UnreadableFile:
            return read(*args, **options)

    return reading


@read_again
def read_footer(file: ListedFile) -> pq.FileMetaData:
    """Return a Parquet file's footer; raise SourceError if it has none, or if the file's name is not UTF-8."""
    if file.url != printable(file.url):
        raise SourceError(f"{printable(file.url)}: the file's name, or a folder's, is not UTF-8; rename it")
    if not file.regular:
        raise SourceError(
            f"{file.url}: expected a file, found a link that leads nowhere, a pipe or a device; remove it"
        )
    try:
        with file.place.open(size=file.size, etag=file.etag) as stream:
            return pq.read_metadata(stream)
    except Exception as error:
        if not isinstance(error, pa.ArrowException) and not is_storage_error(error):
            raise
        with suppress(OSError):  # a server that cannot be asked
            _check_unchanged(file)
        raise UnreadableFile(
            f"{file.url}: not a readable Parquet file ({first_line(error)}); "
            "it may be truncated: write or upload it again"
        ) from error


def require_columns(
    schema: pa.Schema, required: Sequence[str], names: tuple[tuple[str, str], ...], key: str, url: str
) -> None:
    """Raise SourceError with the configuration's key if a file lacks a required column."""
    for name in required:
        rows.require_columns(schema.names, [dict(names).get(name, name)], url, key=f"{key}.{name}")


def check_columns(schema: pa.Schema, read: Sequence[str], ids: Sequence[str], url: str) -> None:
    """Raise SourceError if a column that is read occurs twice, or if ids are neither text nor numbers."""
    require_once(schema.names, read, url)
    for name in set(ids) & set(schema.names):
        dtype = schema.field(name).type
        if pa.types.is_nested(dtype) or dtype in BINARY or pa.types.is_fixed_size_binary(dtype):
            raise SourceError(f"{url}: expected {name!r} to hold text or numbers, found {dtype}; write ids as text")


def split_file(
    file: ListedFile, footer: pq.FileMetaData, names: tuple[tuple[str, str], ...], shard_size: ShardSize
) -> list[Shard]:
    """Return the runs of row groups within the size as shards; a larger row group is a shard of its own."""
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    sizes = [group.num_rows for group in groups]
    firsts = list(accumulate(sizes, initial=0))
    return [
        Shard(
            group=file.group,
            name=file.name if len(run) == len(sizes) else f"{file.name}-{run[0]:05d}",
            place=file.place,
            size=file.size,
            etag=file.etag,
            row_groups=tuple(run),
            rows=sum(sizes[index] for index in run),
            first_row=firsts[run[0]],
            columns=names,
        )
        for run in _runs(sizes, [group.total_byte_size for group in groups], shard_size)
        if any(sizes[index] for index in run)
    ]


def _runs(rows: Sequence[int], sizes: Sequence[int], shard_size: ShardSize) -> Iterator[list[int]]:
    """Yield consecutive row groups within the size, at least one at a time; `sizes` are their bytes when read."""
    run: list[int] = []
    for index in range(len(rows)):
        if run and not shard_size.holds(sum(rows[run[0] : index + 1]), sum(sizes[run[0] : index + 1])):
            yield run
            run = []
        run.append(index)
    if run:
        yield run


@read_again
def read_shard(shard: Shard, columns: Sequence[str]) -> pa.Table:
    """Return a shard's rows with those of `columns` (our names) that the file has.

    Every row that contains its own prompt has a prompt_id. Raises SourceError naming the file if it cannot be read or
    has changed since it was planned.
    """
    with opened(shard) as stream:
        return _read_named(ParquetReader(stream, shard.size), shard, columns)


def read_own_files(shard: Shard) -> list[str]:
    """Return the image file of each row if an ingest wrote the shard without copying images; else an empty list."""
    if not shard.objects:
        return []
    try:
        with opened(shard) as stream:
            file = ParquetReader(stream, shard.size)
            if INGESTED not in (file.footer.metadata or {}):
                return []
            files: list[str | None] = _read_named(file, shard, ("uri",)).column("uri").to_pylist()
    except (SourceError, KeyError):  # the place of the row in the shard's file says enough
        return []
    return [each for each in files if each] if all(files) else []


def _read_named(file: ParquetReader, shard: Shard, columns: Sequence[str]) -> pa.Table:
    """Return the shard's rows of an open file, by our names."""
    if not (shard.holds_prompts and "prompt_id" in columns):
        return _row_groups(file, shard, own_names(shard, columns))
    table = _add_prompt_ids(_row_groups(file, shard, own_names(shard, (*columns, "prompt"))), shard)
    return table.select([name for name in columns if name in table.column_names])


def own_names(shard: Shard, columns: Sequence[str]) -> dict[str, str]:
    """Return the file's names of our columns; columns of sources, masks and captions only if they are configured."""
    names = dict(shard.columns)
    return {name: names.get(name, name) for name in columns if name in names or name not in EDIT_COLUMNS}


def read_each(
    shards: Sequence[Shard], columns: Sequence[str], footer: pq.FileMetaData | None = None
) -> list[pa.Table | SourceError]:
    """Read columns of the shards of one file; the error in place of a shard that cannot be read.

    Addresses are not read if every row has the bytes of its image. If part of a file is unreadable, it is read once
    more, as by `read_again`.
    """
    tables = _read_file(shards, columns, footer)
    damaged = any(isinstance(table, UnreadableFile) for table in tables)
    return _read_file(shards, columns) if damaged else tables


def _read_file(
    shards: Sequence[Shard], columns: Sequence[str], footer: pq.FileMetaData | None = None
) -> list[pa.Table | SourceError]:
    without_addresses = [name for name in columns if name != "uri"]
    try:
        with opened(shards[0]) as stream:
            file = ParquetReader(stream, shards[0].size, footer)
            runs = _runs_to_read(file.footer, shards)
            read = (_read_run(file, run, columns if lacking else without_addresses) for run, lacking in runs)
            return list(chain.from_iterable(read))
    except SourceError as error:
        return [error] * len(shards)


def _runs_to_read(footer: pq.FileMetaData, shards: Sequence[Shard]) -> Iterator[tuple[list[Shard], bool]]:
    """Yield runs of shards to read at once; True for a run if, by the footer, its rows may lack embedded images."""
    image = dict(shards[0].columns).get("image", "image")
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    places = [index for index, path in enumerate(paths) if path in (image, f"{image}.bytes")]

    def lacks_bytes(shard: Shard) -> bool:
        groups = [footer.row_group(group) for group in shard.row_groups]
        statistics = [group.column(index).statistics for group in groups for index in places]
        return not places or any(one is None or not one.has_null_count or one.null_count for one in statistics)

    ends = accumulate(_count_rows(footer, shard.row_groups) for shard in shards)
    runs = groupby(zip(shards, ends, strict=True), lambda each: (each[1] // MAX_ROWS_AT_ONCE, lacks_bytes(each[0])))
    for (_, lacking), run in runs:
        yield [shard for shard, _ in run], lacking


def _read_run(file: ParquetReader, shards: Sequence[Shard], columns: Sequence[str]) -> list[pa.Table | SourceError]:
    """Return a table of each shard, read together; a row group that several shards have rows of is read once.

    If that fails, each shard is read by itself, as only one may be damaged.
    """
    try:
        if len(shards) == 1:
            return [_read_named(file, shards[0], columns)]
        runs = list(dict.fromkeys(shard.row_groups for shard in shards))
        table = _read_named(file, replace(shards[0], row_groups=tuple(chain.from_iterable(runs)), picked=()), columns)
        sizes = [_count_rows(file.footer, run) for run in runs]
        starts = accumulate(sizes, initial=0)
        tables = {run: table.slice(start, size) for run, start, size in zip(runs, starts, sizes, strict=False)}
        return [picked_rows(tables[shard.row_groups], shard) for shard in shards]
    except (pa.ArrowException, OSError, UnicodeDecodeError, SourceError) as error:
        if len(shards) > 1:
            return list(chain.from_iterable(_read_run(file, [shard], columns) for shard in shards))
        return [error if isinstance(error, SourceError) else _unreadable_error(shards[0], error)]


def _count_rows(footer: pq.FileMetaData, row_groups: Sequence[int]) -> int:
    return sum(footer.row_group(index).num_rows for index in row_groups)


def picked_rows(table: pa.Table, shard: Shard) -> pa.Table:
    """Return the rows that a shard has picked, from those of its row groups or of its whole file."""
    return table.take(pa.array(shard.picked)) if shard.picked else table


@read_again
def read_extra(shard: Shard, extra: pa.Schema, settings: Mapping[str, Ways]) -> pa.Table:
    """Return a shard's further columns for its scores, in the order of its rows; null if its file has no such column.

    If there are settings, the column with their name is made of the columns that contain them.
    """
    with opened(shard) as stream:
        file = ParquetReader(stream, shard.size)
        found = _row_groups(file, shard, {name: name for name in (*extra.names, *columns_of(settings))}, labels=True)
    absent = pa.nulls(shard.rows)
    columns = [found.column(name) if name in found.column_names else absent.cast(extra.field(name).type)
               for name in extra.names]  # fmt: skip
    if settings:
        columns[extra.get_field_index(COLUMN)] = read_settings(found, settings)
    return pa.table(columns, schema=extra)


def _row_groups(file: ParquetReader, shard: Shard, names: Mapping[str, str], *, labels: bool = False) -> pa.Table:
    """Return those of the shard's columns that the file has, by our names.

    Hugging Face's class labels become their names, unless `labels` keeps the numbers. Ids keep the form that keys were
    made of.

    The file is read in this thread: Arrow's own threads keep the Python stream, and abort a process that ends
    meanwhile.
    """
    present = {name: column for name, column in names.items() if column in file.names}
    wanted = list(dict.fromkeys(present.values()))
    table = without_views(file.read(shard.row_groups, wanted))
    if not labels:
        table = name_labels(table, exclude=[names[role] for role in ("image_id", "prompt_id") if role in names])
    return picked_rows(table, shard).select(list(present.values())).rename_columns(list(present))


@contextmanager
def opened(shard: Shard) -> Iterator[Any]:
    """Open the shard's file; raises SourceError if, after reading, it is not the planned file, whose keys are used."""
    try:
        with shard.place.open(size=shard.size, etag=shard.etag, cache_type="none") as stream:
            yield stream
    except Exception as error:
        _check_unchanged(shard)
        if not isinstance(error, (pa.ArrowException, UnicodeDecodeError)) and not is_storage_error(error):
            raise
        raise _unreadable_error(shard, error) from error
    if not shard.place.filesystem.reads_one_version:
        _check_unchanged(shard)


def _unreadable_error(shard: Shard, error: Exception) -> UnreadableFile:
    groups = f", row groups {shard.row_groups[0]}-{shard.row_groups[-1]}" if shard.row_groups else ""
    return UnreadableFile(f"{shard.url}{groups}: unreadable ({first_line(error)}); write or upload the file again")


def _check_unchanged(file: Shard | ListedFile) -> None:
    """Raise SourceError if the file is gone, or has another size or etag than in the plan."""
    try:
        entry = file.place.entry()
    except FileNotFoundError as error:
        raise SourceError(
            f"{file.url}: the file was there when the run was planned and is gone; put it back and run again: "
            "the plan is made anew"
        ) from error
    if (entry.size, entry.etag) != (file.size, file.etag):
        raise SourceError(
            f"{file.url}: the file has changed since the run was planned ({file.size} bytes, etag {file.etag}; now "
            f"{entry.size} bytes, etag {entry.etag}); run again: the plan is made anew"
        )


def _add_prompt_ids(table: pa.Table, shard: Shard) -> pa.Table:
    """Return the table with a prompt_id in every row: its own as text, or else a hash of its prompt."""
    texts = [prompt_text(value, shard, row) or "" for row, value in enumerate(column_values(table, "prompt", shard))]
    in_rows = "prompt_id" in table.column_names
    given = column_values(table, "prompt_id", shard) if in_rows else [None] * len(texts)
    ids = [id_text(one) or text_id(text) for one, text in zip(given, texts, strict=True)]
    others = table.drop_columns(["prompt_id"]) if "prompt_id" in table.column_names else table
    return others.append_column("prompt_id", pa.array(ids, pa.string()))


def text_id(text: str) -> str:
    """Return the id of a prompt that has none of its own."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def column_values(table: pa.Table, name: str, shard: Shard) -> list[Any]:
    """Return a column of a shard; raises SourceError naming the first row whose text is not UTF-8."""
    column = table.column(name)
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError as error:
        row = next(row for row, value in enumerate(column) if not _is_utf8(value))
        raise SourceError(f"{where(shard, row)}: {name} is not UTF-8 ({error}); write the file in UTF-8") from error


def _is_utf8(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def where(shard: Shard, row: int) -> str:
    """Return the name of a shard's row in messages: its file, and its number there from 0."""
    return f"{shard.url}, row {shard.row_in_file(row)}"


def prompt_text(value: Any, shard: Shard, row: int) -> str | None:
    """Return a prompt as text; raises SourceError naming the row if it is anything else."""
    if rows.is_missing(value):
        return None
    if isinstance(value, str):
        return value
    raise SourceError(f"{where(shard, row)}: expected the prompt as text, found {type(value).__name__}")

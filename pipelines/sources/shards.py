"""Source files as a listing shows them, cut into shards by their footers, and read by our column names."""

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
from plumbline.operators.images.rows import BESIDE, id_text
from plumbline.pipelines.base.class_labels import name_labels
from plumbline.pipelines.base.parquet_reader import ParquetReader
from plumbline.pipelines.base.storage import (
    Place,
    first_line,
    is_storage_error,
)
from plumbline.pipelines.base.tables import printable
from plumbline.pipelines.base.view_types import without_views
from plumbline.pipelines.cells.cells import Shard
from plumbline.pipelines.cells.store import outside_stores

FILE_READERS = 16
INGESTED = b"plumbline_ingest"
"""Key in the metadata of files that an ingest wrote."""
ROWS_AT_ONCE = 65_536
"""Of a file's ids and texts that are read in one go, whatever the shards."""
BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())
LONGEST_NAME = 120
"""Bytes of a file's name that its cells' names take over: a file system takes 255, and they add to it."""
HIDDEN = re.compile("(?:^|/)[._]")
"""In the path of a file, what marks it or one of its folders as hidden."""
PART = re.compile(r"-\d{5,}\.parquet$")
"""How the name of a file ends that could be a shard's of another file, which is named by its first row group."""


Read = ParamSpec("Read")
Found = TypeVar("Found")


class Cut(NamedTuple):
    """How much of a file is worked on together."""

    rows: int = 256
    """Row groups of a file go together up to so many rows."""
    bytes: int | None = None
    """And up to so many bytes of theirs; None is no limit."""

    def holds(self, rows: int, size: int) -> bool:
        """Whether so many rows of so many bytes are within it."""
        return rows <= self.rows and (self.bytes is None or size <= self.bytes)

    @property
    def of_prompts(self) -> "Cut":
        """That of prompts, which have few bytes and take long where a model writes about them."""
        return self if self.bytes is None else Cut()


def cut_of(config: Mapping[str, Any]) -> Cut:
    """That of a run, by its manifest's configuration."""
    return Cut(config.get("shard_rows", Cut().rows), config.get("shard_bytes"))


class BrokenFile(NamedTuple):
    """A source file that cannot be read; its rows are counted as failed and everything else goes on."""

    generator: str
    message: str
    rows: int = 1
    """How many rows are lost with it; 1 where that cannot be told."""


class UnreadableFile(SourceError):
    """A file whose bytes are not those of a table, or cannot be had."""


class ListedFile(NamedTuple):
    """A source file as the listing shows it."""

    group: str
    name: str
    place: Place
    size: int
    etag: str
    regular: bool
    """Whether it is a file; not where it is a link that leads nowhere, a pipe or a device."""

    @property
    def url(self) -> str:
        """Its address, with file:// for a local file."""
        return self.place.uri


class Listing(NamedTuple):
    """What lies at or below a place, but for what is hidden or in a store."""

    tables: list[ListedFile]
    others: list[str]
    """The other files, by their paths from there."""


def list_files(place: Place, group: str, suffixes: tuple[str, ...]) -> Listing:
    """The tables at or below a place, by name, and what lies beside them; raises FileNotFoundError for no place."""
    found = dict(place.files())
    if not found and not place.exists():
        raise FileNotFoundError(place.url)
    paths = {path or place.name: path for path in outside_stores(place, sorted(found))}
    visible = [relative for relative in paths if not HIDDEN.search(relative)]
    tables = [relative for relative in visible if relative.lower().endswith(suffixes)]
    others = [relative for relative in visible if not relative.lower().endswith(suffixes)]

    def listed(relative: str) -> ListedFile:
        entry, file = found[paths[relative]], place / paths[relative]
        name = _name(printable(relative), paths)
        return ListedFile(group, name, file, entry.size, entry.etag, regular=entry.type == "file")

    return Listing(list(map(listed, tables)), others)


def state_of(files: Iterable[ListedFile]) -> str:
    """The digest of which files these are, and of what changes when one does: as the keys of their shards have it."""
    seen = hashlib.sha256()
    for file in files:
        line = f"{file.group}\0{file.name}\0{resolved(file.place)}\0{file.size}\0{file.etag}\0{file.regular}\n"
        seen.update(line.encode(errors="surrogateescape"))
    return seen.hexdigest()


def resolved(place: Place) -> str:
    """A file's address, of a local one with all links followed."""
    return os.path.realpath(place.path) if place.is_local else place.url


def _name(relative: str, others: Container[str]) -> str:
    """A file's name within its group; where it is long, or could be another's or a part's of another, cut and with a
    hash.
    """
    name = relative.removesuffix(".parquet").replace("/", "__")
    of_a_part = PART.search(relative) is not None and PART.sub(".parquet", relative) in others
    if "__" not in relative and len(name.encode()) <= LONGEST_NAME and not of_a_part:
        return name
    short = name.encode()[:LONGEST_NAME].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(relative.encode()).hexdigest()[:8]}"


def is_table(relative: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file is named as a table, and neither it nor a folder of its path is hidden or a marker."""
    return relative.lower().endswith(suffixes) and not HIDDEN.search(relative)


def read_again(read: Callable[Read, Found]) -> Callable[Read, Found]:
    """What a function reads of a file, which is fetched once more before it is called unreadable.

    A part of an object comes from S3 without a checksum, so that it may have been garbled on the way.
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
    """Raises SourceError, with the configuration's key, where the file lacks a column by its own name for it."""
    for name in required:
        rows.require_columns(schema.names, [dict(names).get(name, name)], url, key=f"{key}.{name}")


def check_columns(schema: pa.Schema, read: Sequence[str], ids: Sequence[str], url: str) -> None:
    """Raises SourceError where a column that is read stands twice, or ids are neither text nor numbers."""
    require_once(schema.names, read, url)
    for name in set(ids) & set(schema.names):
        dtype = schema.field(name).type
        if pa.types.is_nested(dtype) or dtype in BINARY or pa.types.is_fixed_size_binary(dtype):
            raise SourceError(f"{url}: expected {name!r} to hold text or numbers, found {dtype}; write ids as text")


def cut_shards(file: ListedFile, footer: pq.FileMetaData, names: tuple[tuple[str, str], ...], cut: Cut) -> list[Shard]:
    """Runs of row groups; one that is larger than the cut is a shard of its own, and no rows are none."""
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
        for run in _runs(sizes, [group.total_byte_size for group in groups], cut)
        if any(sizes[index] for index in run)
    ]


def _runs(rows: Sequence[int], sizes: Sequence[int], cut: Cut) -> Iterator[list[int]]:
    """Consecutive indices of row groups within the cut, at least one each; `sizes` are their bytes when read."""
    run: list[int] = []
    for index in range(len(rows)):
        if run and not cut.holds(sum(rows[run[0] : index + 1]), sum(sizes[run[0] : index + 1])):
            yield run
            run = []
        run.append(index)
    if run:
        yield run


@read_again
def read_shard(shard: Shard, columns: Sequence[str]) -> pa.Table:
    """A shard's rows with those of `columns`, by our names, that the file has; a row's own prompt has an id always.

    Raises SourceError naming the file, where it cannot be read or is not the one that was planned.
    """
    with opened(shard) as stream:
        return _named(ParquetReader(stream, shard.size), shard, columns)


def read_own_files(shard: Shard) -> list[str]:
    """Return the image file of each row, if an ingest wrote the shard and left the files where they were; else none."""
    if not shard.objects:
        return []
    try:
        with opened(shard) as stream:
            file = ParquetReader(stream, shard.size)
            if INGESTED not in (file.footer.metadata or {}):
                return []
            files: list[str | None] = _named(file, shard, ("uri",)).column("uri").to_pylist()
    except (SourceError, KeyError):  # the place of the row in the shard's file says enough
        return []
    return [each for each in files if each] if all(files) else []


def _named(file: ParquetReader, shard: Shard, columns: Sequence[str]) -> pa.Table:
    """The shard's rows of an open file, by our names."""
    if not (shard.holds_prompts and "prompt_id" in columns):
        return _row_groups(file, shard, own_names(shard, columns))
    table = _with_prompt_ids(_row_groups(file, shard, own_names(shard, (*columns, "prompt"))), shard)
    return table.select([name for name in columns if name in table.column_names])


def own_names(shard: Shard, columns: Sequence[str]) -> dict[str, str]:
    """The file's names of our columns; a column of sources or masks is one only where it is named."""
    names = dict(shard.columns)
    return {name: names.get(name, name) for name in columns if name in names or name not in BESIDE}


def read_each(
    shards: Sequence[Shard], columns: Sequence[str], footer: pq.FileMetaData | None = None
) -> list[pa.Table | SourceError]:
    """Those of `columns` that one file has, shard by shard; the error in place of a shard that cannot be read.

    Addresses only where an image may be read by its own: not where every row has its bytes. A file of which something
    is unreadable is fetched once more, as by `read_again`.
    """
    tables = _read_each(shards, columns, footer)
    damaged = any(isinstance(table, UnreadableFile) for table in tables)
    return _read_each(shards, columns) if damaged else tables


def _read_each(
    shards: Sequence[Shard], columns: Sequence[str], footer: pq.FileMetaData | None = None
) -> list[pa.Table | SourceError]:
    try:
        with opened(shards[0]) as stream:
            file = ParquetReader(stream, shards[0].size, footer)
            read = (_readable(file, *alike, columns) for alike in _alike(file.footer, shards))
            return list(chain.from_iterable(read))
    except SourceError as error:
        return [error] * len(shards)


def _alike(footer: pq.FileMetaData, shards: Sequence[Shard]) -> Iterator[tuple[list[Shard], bool]]:
    """The shards of a file in runs to be read at once, each with whether its rows may lack encoded images of their own.

    As far as the footer tells.
    """
    image = dict(shards[0].columns).get("image", "image")
    paths = [footer.schema.column(index).path for index in range(footer.num_columns)]
    places = [index for index, path in enumerate(paths) if path in (image, f"{image}.bytes")]

    def lacks_bytes(shard: Shard) -> bool:
        groups = [footer.row_group(group) for group in shard.row_groups]
        statistics = [group.column(index).statistics for group in groups for index in places]
        return not places or any(one is None or not one.has_null_count or one.null_count for one in statistics)

    ends = accumulate(_rows_of(footer, shard.row_groups) for shard in shards)
    runs = groupby(zip(shards, ends, strict=True), lambda each: (each[1] // ROWS_AT_ONCE, lacks_bytes(each[0])))
    for (_, lacking), run in runs:
        yield [shard for shard, _ in run], lacking


def _readable(
    file: ParquetReader, shards: Sequence[Shard], lacking: bool, columns: Sequence[str]
) -> list[pa.Table | SourceError]:
    """A table of each shard, read at once; where that fails each is read by itself, for only one may be damaged."""
    wanted = [name for name in columns if name != "uri" or lacking]
    try:
        return list(_read_together(file, shards, wanted))
    except (pa.ArrowException, OSError, UnicodeDecodeError, SourceError) as error:
        if len(shards) > 1:
            return list(chain.from_iterable(_readable(file, [shard], lacking, columns) for shard in shards))
        return [error if isinstance(error, SourceError) else _unreadable(shards[0], error)]


def _read_together(file: ParquetReader, shards: Sequence[Shard], columns: Sequence[str]) -> Iterator[pa.Table]:
    """A table of each shard; row groups of which several shards have some rows are read once."""
    if len(shards) == 1:
        yield _named(file, shards[0], columns)
        return
    runs = list(dict.fromkeys(shard.row_groups for shard in shards))
    everything = replace(shards[0], row_groups=tuple(chain.from_iterable(runs)), picked=())
    table = _named(file, everything, columns)
    sizes = [_rows_of(file.footer, run) for run in runs]
    starts = accumulate(sizes, initial=0)
    tables = {run: table.slice(start, size) for run, start, size in zip(runs, starts, sizes, strict=False)}
    yield from (picked_rows(tables[shard.row_groups], shard) for shard in shards)


def _rows_of(footer: pq.FileMetaData, row_groups: Sequence[int]) -> int:
    return sum(footer.row_group(index).num_rows for index in row_groups)


def picked_rows(table: pa.Table, shard: Shard) -> pa.Table:
    """Those of the rows of a shard's row groups, or of its whole file, that the shard has."""
    return table.take(pa.array(shard.picked)) if shard.picked else table


@read_again
def read_extra(shard: Shard, extra: pa.Schema, settings: Mapping[str, Ways]) -> pa.Table:
    """A shard's further columns for its scores, in the order of its rows; null where its file has no such column.

    Where there are settings, the column with their name is made of the columns that hold them.
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
    """The shard's columns by our names, of those that the file has.

    Hugging Face's class labels become their names, unless `labels` keeps the numbers. Ids stay what keys were made of.

    Read in this thread: Arrow's own threads hold on to the Python stream, and abort a process that ends meanwhile.
    """
    present = {name: column for name, column in names.items() if column in file.names}
    wanted = list(dict.fromkeys(present.values()))
    table = without_views(file.read(shard.row_groups, wanted))
    if not labels:
        table = name_labels(table, but=[names[role] for role in ("image_id", "prompt_id") if role in names])
    return picked_rows(table, shard).select(list(present.values())).rename_columns(list(present))


@contextmanager
def opened(shard: Shard) -> Iterator[Any]:
    """The shard's file, which must still be the planned one once it was read: keys name what was computed from."""
    try:
        with shard.place.open(size=shard.size, etag=shard.etag, cache_type="none") as stream:
            yield stream
    except Exception as error:
        _check_unchanged(shard)
        if not isinstance(error, (pa.ArrowException, UnicodeDecodeError)) and not is_storage_error(error):
            raise
        raise _unreadable(shard, error) from error
    if not shard.place.filesystem.reads_one_version:
        _check_unchanged(shard)


def _unreadable(shard: Shard, error: Exception) -> UnreadableFile:
    groups = f", row groups {shard.row_groups[0]}-{shard.row_groups[-1]}" if shard.row_groups else ""
    return UnreadableFile(f"{shard.url}{groups}: unreadable ({first_line(error)}); write or upload the file again")


def _check_unchanged(file: Shard | ListedFile) -> None:
    """Raises SourceError where the file is gone, or has another size or etag than the plan's."""
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


def _with_prompt_ids(table: pa.Table, shard: Shard) -> pa.Table:
    """The table with a prompt_id in every row: its own as text, or else a hash of its prompt."""
    texts = [prompt_text(value, shard, row) or "" for row, value in enumerate(column_values(table, "prompt", shard))]
    in_rows = "prompt_id" in table.column_names
    given = column_values(table, "prompt_id", shard) if in_rows else [None] * len(texts)
    ids = [id_text(one) or text_id(text) for one, text in zip(given, texts, strict=True)]
    others = table.drop_columns(["prompt_id"]) if "prompt_id" in table.column_names else table
    return others.append_column("prompt_id", pa.array(ids, pa.string()))


def text_id(text: str) -> str:
    """The id of a prompt that has none of its own."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def column_values(table: pa.Table, name: str, shard: Shard) -> list[Any]:
    """A column of a shard; raises SourceError naming the first row whose text is not UTF-8."""
    column = table.column(name)
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError as error:
        row = next(row for row, value in enumerate(column) if not _decodes(value))
        raise SourceError(f"{where(shard, row)}: {name} is not UTF-8 ({error}); write the file in UTF-8") from error


def _decodes(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def where(shard: Shard, row: int) -> str:
    """How a row of a shard is named in messages: by its file, and its place there from 0."""
    return f"{shard.url}, row {shard.row_in_file(row)}"


def prompt_text(value: Any, shard: Shard, row: int) -> str | None:
    """A prompt as text; raises SourceError naming the row where it is something else."""
    if rows.is_missing(value):
        return None
    if isinstance(value, str):
        return value
    raise SourceError(f"{where(shard, row)}: expected the prompt as text, found {type(value).__name__}")

"""Cache of a benchmark's image files in a store, so that a plan opens only files that are new or have changed.

The cache contains each file's footer and, if its rows contain no addresses, the prompt ids and texts of its rows. A
file is identified by its address, size and ETag, as in the keys of its cells. Files without a valid entry are read
again.
"""

import io
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import SourceError
from plumbline.operators.images.rows import ADDRESS_COLUMNS, format_id, list_image_records
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.shards import (
    ListedFile,
    read_each_shard,
    read_footer,
    resolve_links,
    select_picked_rows,
)
from plumbline.pipelines.store.cells import Shard, digest
from plumbline.pipelines.store.store import Store, StoreError

CACHE_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("footer", pa.binary()),
        ("prompt_id", pa.list_(pa.string())),
        ("prompt", pa.list_(pa.string())),
    ]
)
"""One row per file of a generator. The lists have one id or text per row of the file; null means that the file itself
must be read.
"""
CACHE_FOLDER = "sources"
"""Folder of the cache in a store; below it are the benchmark, a digest of the column names, and the generator."""
PROMPT_FIELDS = ("prompt_id", "prompt")
CACHE_VERSION = 1
"""Version of the cache, raised when its content changes."""


class CachedFile(NamedTuple):
    """The part of an image file that is kept in the cache."""

    footer: bytes
    """A Parquet file that consists of the footer alone."""
    prompts: pa.Table | None = None
    """The column prompt_id, and prompt if rows contain their own prompts; None if the file itself must be read."""

    @property
    def metadata(self) -> pq.FileMetaData:
        return pq.read_metadata(pa.BufferReader(self.footer))


class ImageFileCache:
    """The image files of a benchmark, read from a store's cache if possible, and otherwise from the files."""

    def __init__(self, store: Store | None, benchmark: BenchmarkConfig) -> None:
        names = benchmark.columns.list_renamed_columns(prompts=benchmark.prompts is None)
        self.store = store
        self.folder = f"{CACHE_FOLDER}/{benchmark.name}/{digest([CACHE_VERSION, names])[:8]}"
        self.tables: dict[str, pa.Table] = {}
        self.row_of: dict[tuple[str, str, int, str], int] = {}
        """Row of a file in its generator's cache table, by generator, address, size and ETag."""
        self.seen: dict[tuple[str, str, int, str], CachedFile] = {}
        self.changed: set[str] = set()
        """Generators whose cache tables must be written, because some of their files had to be read."""

    def load(self, generators: Iterable[str]) -> None:
        if self.store is None:
            return
        for name in generators:
            try:
                table = self.store.read_file(f"{self.folder}/{name}.parquet")
            except StoreError:
                continue
            if table.schema.equals(CACHE_SCHEMA):
                self.tables[name] = table.combine_chunks()
                keys = zip(*(table.column(key).to_pylist() for key in ("file", "size", "etag")), strict=True)
                self.row_of |= {(name, *key): row for row, key in enumerate(keys)}

    def read_footer(self, file: ListedFile) -> pq.FileMetaData:
        """Return a file's footer; raise SourceError naming the file if it has no footer."""
        key = (file.group, resolve_links(file.place), file.size, file.etag)
        if (known := self._read_cached_file(key)) is not None:
            self.seen[key] = known
            return known.metadata
        footer = read_footer(file)
        sink = io.BytesIO()
        footer.write_metadata_file(sink)
        self.seen[key] = CachedFile(sink.getvalue())
        self.changed.add(file.group)
        return footer

    def read(self, shards: Sequence[Shard], columns: Sequence[str]) -> list[pa.Table | SourceError]:
        """Read columns from a file's shards like `read_each_shard`; if they are cached, the file is not opened."""
        key = (shards[0].group, resolve_links(shards[0].place), shards[0].size, shards[0].etag)
        known = self.seen.get(key) or self._read_cached_file(key)
        if known is None:
            return read_each_shard(shards, columns)
        wanted = [name for name in columns if name in PROMPT_FIELDS]
        if known.prompts is not None and set(wanted) <= set(known.prompts.column_names):
            table = known.prompts.select(wanted)
            # `picked` counts from the first row of the row groups, whose number of rows a shard of picked rows lacks
            parts = [table.slice(shard.first_row, None if shard.picked else shard.rows) for shard in shards]
            return [select_picked_rows(part, shard) for part, shard in zip(parts, shards, strict=True)]
        tables = read_each_shard(shards, columns, known.metadata)
        # the absence of addresses only shows that rows have none if they were requested
        prompts = (
            _join_shards(shards, tables, known.metadata.num_rows) if set(ADDRESS_COLUMNS) <= set(columns) else None
        )
        if prompts is not None:
            self.seen[key] = known._replace(prompts=prompts)
            self.changed.add(key[0])
        return tables

    def save(self) -> None:
        if self.store is None:
            return
        for name in self.changed:
            files = {key[1:]: known for key, known in self.seen.items() if key[0] == name}
            columns = [*zip(*files, strict=True), [known.footer for known in files.values()]]
            columns += [
                pa.concat_arrays([_make_list(known, column) for known in files.values()]) for column in PROMPT_FIELDS
            ]
            self.store.write_table(f"{self.folder}/{name}.parquet", pa.table(columns, schema=CACHE_SCHEMA))
        self.changed.clear()

    def _read_cached_file(self, key: tuple[str, str, int, str]) -> CachedFile | None:
        if (row := self.row_of.get(key)) is None:
            return None
        columns = {name: self.tables[key[0]].column(name)[row] for name in ("footer", *PROMPT_FIELDS)}
        known = {name: columns[name].values for name in PROMPT_FIELDS if columns[name].is_valid}
        return CachedFile(columns["footer"].as_py(), pa.table(known) if known else None)


def _make_list(known: CachedFile, column: str) -> pa.ListArray:
    """Return a column of one file as an array with a single element: a list or null."""
    if known.prompts is None or column not in known.prompts.column_names:
        return pa.nulls(1, pa.list_(pa.string()))
    values = known.prompts.column(column).combine_chunks()
    return pa.ListArray.from_arrays([0, len(values)], values)


def _join_shards(shards: Sequence[Shard], tables: Sequence[pa.Table | SourceError], rows: int) -> pa.Table | None:
    """Return the ids and texts of all rows of a file; None if the shards lack some rows or contain addresses."""
    read = [table for table in tables if isinstance(table, pa.Table)]
    names = set(read[0].column_names) if read else set()
    if len(read) < len(shards) or any(shard.picked for shard in shards) or sum(map(len, read)) != rows:
        return None
    if not {"prompt_id"} <= names <= {*PROMPT_FIELDS}:
        return None
    records = [record for table in read for record in list_image_records(table)]
    columns = {name: [format_id(record[name]) for record in records] for name in PROMPT_FIELDS if name in names}
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})

"""Reader of Parquet files that fetches only the bytes it needs: no read-ahead, few requests, single pages if possible.

Pages are located via the page index, which pyarrow writes but does not expose.
"""

import io
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.images.rows import list_image_records
from plumbline.pipelines.base.arrow_views import remove_views

FOOTER_READ_BYTES = 64 << 10
"""Number of bytes that pyarrow reads at the end of a file to find the footer. Page indices are just before it."""
MAX_GAP_BYTES = 64 << 10
"""Maximum number of unneeded bytes between two ranges that are read with one request."""
SMALL_CHUNK_BYTES = 1 << 20
"""Maximum bytes of a column chunk that is read together with its neighbours. The pages of larger chunks are read one by
one.
"""
MAX_SPAN_BYTES = 8 << 20
"""Maximum bytes of neighbouring chunks that are read with one request."""
MAX_BUFFERED_BYTES = 64 << 20
"""Maximum bytes of prefetched chunks that are kept until pyarrow reads them."""
PAGE_BUFFER_BYTES = 16 << 10
"""Number of bytes that pyarrow reads for a page's header."""
STREAM_BYTES = 1 << 20
"""Number of bytes that are read at a time from a large chunk without a page index."""
ROWS_AT_ONCE = 16
"""Number of rows of a large chunk without a page index that are in memory at the same time."""
MAX_FOOTER_BYTES = 4 << 20
"""Maximum size in bytes of a footer that is searched for page indices."""
MAX_INDEX_BYTES = 4 << 20
"""Maximum size in bytes of one column's page index."""
BOOLEANS, INTEGERS, BYTE, DOUBLE, BINARY, LISTS, MAP, STRUCT = (1, 2), (4, 5, 6), 3, 7, 8, (9, 10), 11, 12
"""Type codes of Thrift's compact protocol."""
INTEGER_BITS = 64
ROW_GROUPS, COLUMNS, INDEX_OFFSET, INDEX_LENGTH = 4, 1, 4, 5
"""Field numbers of FileMetaData, RowGroup and ColumnChunk in parquet.thrift."""
PAGES, PAGE_OFFSET, PAGE_SIZE, PAGE_FIRST_ROW = 1, 1, 2, 3
"""Field numbers of OffsetIndex and PageLocation in parquet.thrift."""


class PageLocation(NamedTuple):
    """A data page of a column chunk."""

    offset: int
    size: int
    first_row: int
    """Index, within the row group, of the page's first row."""


def locate_indices(footer: pq.FileMetaData) -> list[list[range | None]]:
    """Return the byte range of each column chunk's page index, by row group and leaf column.

    The range is None if a chunk has no index. The list is empty if the footer is too large to search.
    """
    if footer.serialized_size > MAX_FOOTER_BYTES:
        return []
    copy = io.BytesIO()
    footer.write_metadata_file(copy)
    indices: list[list[range | None]] = []
    for group in _ThriftReader(copy.getvalue()[4:]).read_struct().get(ROW_GROUPS, []):
        indices.append([])
        for column in group.get(COLUMNS, []):
            offset, length = column.get(INDEX_OFFSET), column.get(INDEX_LENGTH, 0)
            is_usable = offset is not None and 0 < length <= MAX_INDEX_BYTES
            indices[-1].append(range(offset, offset + length) if is_usable else None)
    return indices


def parse_index(data: bytes, chunk: range, rows: int) -> list[PageLocation]:
    """Return the data pages of a column chunk with `rows` rows; empty if the index does not belong to this chunk."""
    try:
        found = _ThriftReader(data).read_struct()[PAGES]
        pages = [PageLocation(page[PAGE_OFFSET], page[PAGE_SIZE], page.get(PAGE_FIRST_ROW, 0)) for page in found]
    except (LookupError, TypeError, AttributeError, RecursionError):
        return []
    ordered = all(before.first_row < page.first_row for before, page in pairwise(pages))
    inside = all(page.offset in chunk and page.size > 0 and page.offset + page.size <= chunk.stop for page in pages)
    return pages if pages and ordered and inside and pages[0].first_row == 0 and pages[-1].first_row < rows else []


class _ThriftReader:
    """Reader of Thrift's compact protocol, to the extent that Parquet uses it.

    Every value takes at least one byte, so the amount of work is bounded by the size of the data. Damaged data raises
    LookupError.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def read_struct(self) -> dict[int, Any]:
        """Return the values of a struct by field number."""
        fields: dict[int, Any] = {}
        number = 0
        while header := self._read_byte():
            number = number + (header >> 4) if header >> 4 else self._read_integer()
            kind = header & 15
            fields[number] = kind == BOOLEANS[0] if kind in BOOLEANS else self._read_value(kind)
        return fields

    def _read_value(self, kind: int) -> Any:
        if kind in INTEGERS:
            return self._read_integer()
        if kind == BINARY:
            return self._read_bytes(self._read_varint())
        if kind in LISTS:
            header = self._read_byte()
            count = header >> 4 if header >> 4 < 15 else self._read_varint()
            return [self._read_value(header & 15) for _ in range(count)]
        if kind == STRUCT:
            return self.read_struct()
        if kind in (*BOOLEANS, BYTE):
            return self._read_byte()
        if kind == DOUBLE:
            return self._read_bytes(8)
        raise LookupError(f"unknown Thrift type {kind}")

    def _read_byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _read_bytes(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise LookupError(f"expected {count} bytes from byte {self._at} on, found {len(self._data) - self._at}")
        self._at += count
        return self._data[self._at - count : self._at]

    def _read_varint(self) -> int:
        value = 0
        for shift in range(0, INTEGER_BITS, 7):
            byte = self._read_byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise LookupError(f"expected an integer of at most {INTEGER_BITS} bits, found more")

    def _read_integer(self) -> int:
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)


class ExactStream(io.RawIOBase):
    """File stream without read-ahead, except that neighbouring ranges that were announced are fetched together."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        super().__init__()
        self._stream, self._size, self._at = stream, size, 0
        self._spans: list[range] = []
        self._buffered: OrderedDict[range, bytes] = OrderedDict()
        self._dropped: set[range] = set()
        self.jump = (size, 0)
        """A position, and the number of bytes that are skipped for reads at or after this position."""

    def announce(self, ranges: Sequence[range]) -> None:
        """Register the ranges that will be read next, so that ranges close to each other are read together."""
        self._spans = sorted({*merge_ranges(ranges), *self._buffered}, key=lambda span: span.start)
        self._dropped.clear()

    def read(self, size: int = -1) -> bytes:
        size = max(0, self._size - self._at) if size is None or size < 0 else size
        start = self._at + (self.jump[1] if self._at >= self.jump[0] else 0)
        data = self.read_range(range(start, min(start + size, self._size)))
        self._at += len(data)
        return data

    def read_range(self, wanted: range) -> bytes:
        index = bisect_right(self._spans, wanted.start, key=lambda span: span.start) - 1
        span = self._spans[index] if index >= 0 and wanted.stop <= self._spans[index].stop else wanted
        if span == wanted or span in self._dropped:
            return self._fetch_range(wanted)
        if span not in self._buffered:
            self._buffered[span] = self._fetch_range(span)
            while sum(map(len, self._buffered)) > MAX_BUFFERED_BYTES and len(self._buffered) > 1:
                oldest, _ = self._buffered.popitem(last=False)
                self._dropped.add(oldest)  # later reads in a dropped span only fetch their own bytes
        return self._buffered[span][wanted.start - span.start : wanted.stop - span.start]

    def _fetch_range(self, wanted: range) -> bytes:
        if not wanted:
            return b""
        try:
            self._stream.seek(wanted.start)
            return self._stream.read(len(wanted))
        except ValueError:  # fsspec refuses a range if an HTTP server only sends whole files
            if self._size > MAX_BUFFERED_BYTES:
                raise
            self._stream.seek(0)
            self._stream = io.BytesIO(self._stream.read())
            return self._stream.getbuffer()[wanted.start : wanted.stop].tobytes()

    def release(self) -> None:
        self._buffered.clear()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def merge_ranges(ranges: Iterable[range]) -> list[range]:
    """Return the ranges, merging small ranges that are close together."""
    ordered = sorted(ranges, key=lambda each: each.start)
    merged = [each for each in ordered if len(each) > SMALL_CHUNK_BYTES]
    run = range(0)
    for each in ordered:
        if len(each) > SMALL_CHUNK_BYTES:
            continue
        if run and each.start - run.stop <= MAX_GAP_BYTES and each.stop - run.start <= MAX_SPAN_BYTES:
            run = range(run.start, max(run.stop, each.stop))
            continue
        merged += [run] if run else []
        run = each
    return [*merged, run] if run else merged


class ParquetReader:
    """Reader of an open Parquet file of `size` bytes, for use in one thread; a known footer is not read again."""

    def __init__(self, stream: IO[bytes], size: int, footer: pq.FileMetaData | None = None) -> None:
        self._stream, self._size = ExactStream(stream, size), size
        if footer is None:
            self._stream.announce([range(max(0, size - FOOTER_READ_BYTES), size)])
        self._file = pq.ParquetFile(self._stream, metadata=footer, pre_buffer=False, page_checksum_verification=True)
        self.footer: pq.FileMetaData = self._file.metadata
        self.names: list[str] = self._file.schema_arrow.names

    def read(self, row_groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        leaves = [leaf for name in columns for leaf in self._find_leaves(name)]
        self._stream.announce([self._locate_chunk(group, leaf) for group in row_groups for leaf in leaves])
        try:
            return self._file.read_row_groups(list(row_groups), columns=list(columns), use_threads=False)
        finally:
            self._stream.release()

    def read_rows(self, row_group: int, rows: Sequence[int], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield rows of a row group; `rows` are their indices in ascending order.

        In a large column, only the pages with these rows are read. If the file has no page index, the column is read up
        to the last of these rows.
        """
        leaves = {name: self._find_leaves(name) for name in columns}
        large = [name for name, own in leaves.items() if any(self._is_large(row_group, leaf) for leaf in own)]
        small = [name for name in columns if name not in large]
        table = remove_views(self.read([row_group], small)) if small else None
        records = [{} for _ in rows] if table is None else list_image_records(table.take(pa.array(rows, pa.int64())))
        values = {name: [self._read_values(row_group, rows, leaf) for leaf in leaves[name]] for name in large}
        for record in records:
            for name, leaf_values in values.items():
                fields = [next(values) for values in leaf_values]
                record[name] = fields[0] if len(fields) == 1 else _merge_structs(fields)
            yield record

    def _read_values(self, row_group: int, rows: Sequence[int], leaf: int) -> Iterator[Any]:
        """Yield the values of one leaf column; if it is a field of a struct, yield structs with only this field."""
        pages = self._find_pages(row_group, leaf) if self._is_large(row_group, leaf) else []
        path, chunk = self.footer.schema.column(leaf).path, self._locate_chunk(row_group, leaf)
        if pages:
            first_rows = [page.first_row for page in pages]
            page_of_row = [pages[bisect_right(first_rows, row) - 1] for row in rows]
            dictionary_size = pages[0].offset - chunk.start  # pyarrow reads the dictionary with every page
            if sum(dictionary_size + page.size for page in page_of_row) <= len(chunk):
                for wanted, page in zip(rows, page_of_row, strict=True):
                    yield self._read_row_from_page(row_group, path, pages[0].offset, page, wanted - page.first_row)
                return
        # without an index, or if pages would cost more than the chunk: read the chunk in small batches
        first, remaining = 0, iter(rows)
        row = next(remaining, None)
        file = self._open_for_steps(STREAM_BYTES)
        for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[row_group], columns=[path], use_threads=False):
            while row is not None and row < first + len(batch):
                yield batch.column(0)[row - first].as_py()
                row = next(remaining, None)
            first += len(batch)
            if row is None:
                return

    def _read_row_from_page(self, row_group: int, path: str, first: int, page: PageLocation, row: int) -> Any:
        """Return a row of a data page.

        While reading, the stream skips to this page, so pyarrow takes it for the first page of the column chunk.
        """
        self._stream.announce([range(page.offset, min(self._size, page.offset + max(page.size, PAGE_BUFFER_BYTES)))])
        self._stream.jump = (first, page.offset - first)
        try:
            file = self._open_for_steps(PAGE_BUFFER_BYTES)
            batches = file.iter_batches(row + 1, row_groups=[row_group], columns=[path], use_threads=False)
            return next(batches).column(0)[row].as_py()
        finally:
            self._stream.jump = (self._size, 0)
            self._stream.release()

    def _open_for_steps(self, buffer: int) -> pq.ParquetFile:
        """Open the file again, to read a column chunk in steps of `buffer` bytes."""
        options = {"metadata": self.footer, "pre_buffer": False, "page_checksum_verification": True}
        return pq.ParquetFile(self._stream, buffer_size=buffer, **options)

    def _find_pages(self, row_group: int, leaf: int) -> list[PageLocation]:
        """Return a chunk's pages; empty if the chunk has no index, or if its column contains lists.

        A row of such a column may continue on the next page.
        """
        index = self._index_ranges[row_group][leaf] if row_group < len(self._index_ranges) else None
        if index is None or self.footer.schema.column(leaf).max_repetition_level:
            return []
        chunk, rows = self._locate_chunk(row_group, leaf), self.footer.row_group(row_group).num_rows
        return parse_index(self._stream.read_range(range(index.start, min(index.stop, self._size))), chunk, rows)

    @cached_property
    def _index_ranges(self) -> list[list[range | None]]:
        return locate_indices(self.footer)

    def _find_leaves(self, name: str) -> list[int]:
        paths = (self.footer.schema.column(leaf).path for leaf in range(self.footer.num_columns))
        return [leaf for leaf, path in enumerate(paths) if path == name or path.startswith(f"{name}.")]

    def _locate_chunk(self, row_group: int, leaf: int) -> range:
        chunk = self.footer.row_group(row_group).column(leaf)
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
        return range(start, start + chunk.total_compressed_size)

    def _is_large(self, row_group: int, leaf: int) -> bool:
        return len(self._locate_chunk(row_group, leaf)) > SMALL_CHUNK_BYTES


def _merge_structs(structs: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    known = [struct for struct in structs if struct is not None]
    return {name: value for struct in known for name, value in struct.items()} if known else None

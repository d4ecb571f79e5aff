"""Reader of Parquet files that fetches only the needed bytes: no read-ahead, few requests, single pages if possible."""

import io
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.images.rows import image_records
from plumbline.pipelines.base.parquet_pages import Indices, PageLocation, locate_indices, page_with, parse_index
from plumbline.pipelines.base.view_types import without_views

TAIL_BYTES = 64 << 10
"""Bytes at the end of a file that pyarrow reads to find the footer. Page indices lie right before it."""
MAX_GAP = 64 << 10
"""Unneeded bytes between two ranges up to which one request reads both."""
SMALL_CHUNK = 1 << 20
"""Bytes of a column chunk up to which it is read with its neighbours; pages of a larger one are read one by one."""
MAX_SPAN = 8 << 20
"""Bytes of neighbouring chunks that are read with one request."""
MAX_BUFFERED = 64 << 20
"""Bytes of such requests that are kept until pyarrow reads them."""
PAGE_BUFFER = 16 << 10
"""Bytes that pyarrow reads for a page's header."""
STREAM_BYTES = 1 << 20
"""Bytes of a large chunk without a page index that are read at a time."""
ROWS_AT_ONCE = 16
"""Rows of such a chunk that are in memory at the same time."""


class ExactStream(io.RawIOBase):
    """Stream of a file that reads exactly the requested bytes, and announced ranges that are close together at once."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        super().__init__()
        self._stream, self._size, self._at = stream, size, 0
        self._spans: list[range] = []
        self._buffered: OrderedDict[range, bytes] = OrderedDict()
        self._dropped: set[range] = set()
        self.jump = (size, 0)
        """A position, and the number of bytes that reads at or after it skip."""

    def announce(self, ranges: Sequence[range]) -> None:
        """Announce the ranges that will be read, in addition to those that are in memory."""
        self._spans = sorted({*merge(ranges), *self._buffered}, key=lambda span: span.start)
        self._dropped.clear()

    def read(self, size: int = -1) -> bytes:
        size = max(0, self._size - self._at) if size is None or size < 0 else size
        start = self._at + (self.jump[1] if self._at >= self.jump[0] else 0)
        data = self._bytes(range(start, min(start + size, self._size)))
        self._at += len(data)
        return data

    def _bytes(self, wanted: range) -> bytes:
        place = bisect_right(self._spans, wanted.start, key=lambda span: span.start) - 1
        span = self._spans[place] if place >= 0 and wanted.stop <= self._spans[place].stop else wanted
        if span == wanted or span in self._dropped:
            return self._fetch(wanted)
        if span not in self._buffered:
            self._fetch_span(span)
        return self._buffered[span][wanted.start - span.start : wanted.stop - span.start]

    def _fetch_span(self, span: range) -> None:
        """Fetch a span and keep it; drop the oldest spans beyond MAX_BUFFERED, and do not fetch them whole again."""
        self._buffered[span] = self._fetch(span)
        while sum(map(len, self._buffered)) > MAX_BUFFERED and len(self._buffered) > 1:
            dropped, _ = self._buffered.popitem(last=False)
            self._dropped.add(dropped)

    def _fetch(self, wanted: range) -> bytes:
        if not wanted:
            return b""
        try:
            self._stream.seek(wanted.start)
            return self._stream.read(len(wanted))
        except ValueError:  # fsspec refuses a range if an HTTP server only sends whole files
            if self._size > MAX_BUFFERED:
                raise
            self._stream.seek(0)
            self._stream = io.BytesIO(self._stream.read())
            return self._stream.getbuffer()[wanted.start : wanted.stop].tobytes()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return the bytes of a range."""
        return self._bytes(range(offset, min(offset + size, self._size)))

    def release(self) -> None:
        """Drop the ranges that are in memory."""
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


def merge(ranges: Iterable[range]) -> list[range]:
    """Return the ranges, with small ones that are close together merged into one."""
    ordered = sorted(ranges, key=lambda each: each.start)
    merged = [each for each in ordered if len(each) > SMALL_CHUNK]
    run = range(0)
    for each in ordered:
        if len(each) > SMALL_CHUNK:
            continue
        if run and each.start - run.stop <= MAX_GAP and each.stop - run.start <= MAX_SPAN:
            run = range(run.start, max(run.stop, each.stop))
            continue
        merged += [run] if run else []
        run = each
    return [*merged, run] if run else merged


class ParquetReader:
    """A Parquet file that is open for reading in one thread."""

    def __init__(self, stream: IO[bytes], size: int, footer: pq.FileMetaData | None = None) -> None:
        """Open a file of `size` bytes; a known `footer` is not read again."""
        self._stream, self._size = ExactStream(stream, size), size
        if footer is None:
            self._stream.announce([range(max(0, size - TAIL_BYTES), size)])
        self._file = pq.ParquetFile(self._stream, metadata=footer, pre_buffer=False, page_checksum_verification=True)
        self.footer: pq.FileMetaData = self._file.metadata
        self.names: list[str] = self._file.schema_arrow.names

    def read(self, row_groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Return columns of whole row groups."""
        leaves = [leaf for name in columns for leaf in self._leaves(name)]
        self._stream.announce([self._chunk(group, leaf) for group in row_groups for leaf in leaves])
        try:
            return self._file.read_row_groups(list(row_groups), columns=list(columns), use_threads=False)
        finally:
            self._stream.release()

    def read_rows(self, row_group: int, rows: Sequence[int], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield rows of a row group; `rows` are their indices in ascending order.

        Of a large column, only the pages with these rows are read. If the file has no page index, the column is read up
        to the last of these rows.
        """
        leaves = {name: self._leaves(name) for name in columns}
        large = [name for name, own in leaves.items() if any(self._is_large(row_group, leaf) for leaf in own)]
        small = [name for name in columns if name not in large]
        table = without_views(self.read([row_group], small)) if small else None
        records = [{} for _ in rows] if table is None else image_records(table.take(pa.array(rows, pa.int64())))
        values = {name: [self._values(row_group, rows, leaf) for leaf in leaves[name]] for name in large}
        for record in records:
            yield record | {name: _join([next(part) for part in parts]) for name, parts in values.items()}

    def _values(self, row_group: int, rows: Sequence[int], leaf: int) -> Iterator[Any]:
        """Yield the values of one leaf column; a leaf of a struct yields structs with one field."""
        pages = self._pages(row_group, leaf) if self._is_large(row_group, leaf) else []
        path, chunk = self.footer.schema.column(leaf).path, self._chunk(row_group, leaf)
        wanted = [page_with(pages, row) for row in rows] if pages else []
        dictionary = pages[0].offset - chunk.start if pages else 0
        if not pages or sum(dictionary + page.size for page in wanted) > len(chunk):
            yield from self._stream_values(row_group, rows, path)
            return
        for row, page in zip(rows, wanted, strict=True):
            yield self._read_page(row_group, path, pages[0].offset, page, row - page.first_row)

    def _stream_values(self, row_group: int, rows: Sequence[int], path: str) -> Iterator[Any]:
        first, wanted = 0, iter(rows)
        row = next(wanted, None)
        file = self._reopen(STREAM_BYTES)
        for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=[row_group], columns=[path], use_threads=False):
            while row is not None and row < first + len(batch):
                yield batch.column(0)[row - first].as_py()
                row = next(wanted, None)
            first += len(batch)
            if row is None:
                return

    def _read_page(self, row_group: int, path: str, first: int, page: PageLocation, row: int) -> Any:
        """Return a row of a data page; the stream makes pyarrow take the page for the first one of its column chunk."""
        self._stream.announce([range(page.offset, min(self._size, page.offset + max(page.size, PAGE_BUFFER)))])
        self._stream.jump = (first, page.offset - first)
        try:
            batches = self._reopen(PAGE_BUFFER).iter_batches(
                row + 1, row_groups=[row_group], columns=[path], use_threads=False
            )
            return next(batches).column(0)[row].as_py()
        finally:
            self._stream.jump = (self._size, 0)
            self._stream.release()

    def _reopen(self, buffer: int) -> pq.ParquetFile:
        """Open the file again for reading a column chunk in small steps."""
        return pq.ParquetFile(
            self._stream,
            metadata=self.footer,
            pre_buffer=False,
            buffer_size=buffer,
            page_checksum_verification=True,
        )

    def _pages(self, row_group: int, leaf: int) -> list[PageLocation]:
        """Return a chunk's pages; none without an index, or of lists, whose rows may continue on the next page."""
        index = self._indices[row_group][leaf] if row_group < len(self._indices) else None
        if index is None or self.footer.schema.column(leaf).max_repetition_level:
            return []
        chunk, rows = self._chunk(row_group, leaf), self.footer.row_group(row_group).num_rows
        return parse_index(self._stream.read_at(index.offset, index.length), chunk, rows)

    @cached_property
    def _indices(self) -> Indices:
        return locate_indices(self.footer)

    def _leaves(self, name: str) -> list[int]:
        paths = (self.footer.schema.column(leaf).path for leaf in range(self.footer.num_columns))
        return [leaf for leaf, path in enumerate(paths) if path == name or path.startswith(f"{name}.")]

    def _chunk(self, row_group: int, leaf: int) -> range:
        """Return the byte range of a column chunk."""
        chunk = self.footer.row_group(row_group).column(leaf)
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
        return range(start, start + chunk.total_compressed_size)

    def _is_large(self, row_group: int, leaf: int) -> bool:
        return len(self._chunk(row_group, leaf)) > SMALL_CHUNK


def _join(fields: Sequence[Any]) -> Any:
    """Return a column's value from the values of its leaves: one value, or a struct of their fields."""
    if len(fields) == 1:
        return fields[0]
    named = [field for field in fields if field is not None]
    return {name: value for field in named for name, value in field.items()} if named else None

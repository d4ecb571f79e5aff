"""Reader of the page index of Parquet files, which pyarrow writes but does not expose."""

import io
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow.parquet as pq

MAX_FOOTER = 4 << 20
"""Bytes of a footer that is searched for page indices."""
MAX_INDEX = 4 << 20
"""Bytes of one column's page index."""
BOOLEANS, INTEGERS, BYTE, DOUBLE, BINARY, LISTS, MAP, STRUCT = (1, 2), (4, 5, 6), 3, 7, 8, (9, 10), 11, 12
"""Types of Thrift's compact protocol."""
INTEGER_BITS = 64
ROW_GROUPS, COLUMNS, INDEX_OFFSET, INDEX_LENGTH = 4, 1, 4, 5
"""Fields of FileMetaData, RowGroup and ColumnChunk in parquet.thrift."""
PAGES, PAGE_OFFSET, PAGE_SIZE, PAGE_FIRST_ROW = 1, 1, 2, 3
"""Fields of OffsetIndex and PageLocation."""


class PageLocation(NamedTuple):
    """A data page of a column chunk."""

    offset: int
    size: int
    first_row: int
    """Index of the page's first row in the row group."""


class IndexPlace(NamedTuple):
    """The position of a column chunk's page index in its file."""

    offset: int
    length: int


Indices = Sequence[Sequence[IndexPlace | None]]
"""Places of page indices by row group and leaf column."""


def locate_indices(footer: pq.FileMetaData) -> Indices:
    """Return the position of each column chunk's page index; an empty list if the footer is too large to search."""
    if footer.serialized_size > MAX_FOOTER:
        return []
    copy = io.BytesIO()
    footer.write_metadata_file(copy)
    groups = _parse(copy.getvalue()[4:]).get(ROW_GROUPS, [])
    return [[_index_place(column) for column in group.get(COLUMNS, [])] for group in groups]


def _index_place(column: dict[int, Any]) -> IndexPlace | None:
    length = column.get(INDEX_LENGTH, 0)
    return IndexPlace(column[INDEX_OFFSET], length) if 0 < length <= MAX_INDEX and INDEX_OFFSET in column else None


def parse_index(data: bytes, chunk: range, rows: int) -> list[PageLocation]:
    """Return the data pages of a column chunk with `rows` rows; an empty list if the index is not of this chunk."""
    try:
        found = _parse(data)[PAGES]
        pages = [PageLocation(page[PAGE_OFFSET], page[PAGE_SIZE], page.get(PAGE_FIRST_ROW, 0)) for page in found]
    except (LookupError, TypeError, AttributeError, RecursionError):
        return []
    ordered = all(before.first_row < page.first_row for before, page in pairwise(pages))
    inside = all(page.offset in chunk and page.size > 0 and page.offset + page.size <= chunk.stop for page in pages)
    return pages if pages and ordered and inside and pages[0].first_row == 0 and pages[-1].first_row < rows else []


def page_with(pages: Sequence[PageLocation], row: int) -> PageLocation:
    """Return the page that contains a row of the row group."""
    return pages[bisect_right(pages, row, key=lambda page: page.first_row) - 1]


def _parse(data: bytes) -> dict[int, Any]:
    """Return a struct of Thrift's compact protocol by the numbers of its fields; raise LookupError if it is damaged.

    Each value takes at least one byte, so the work is bounded by the data.
    """
    return _Compact(data).struct()


class _Compact:
    """Reads Thrift's compact protocol, as far as Parquet uses it."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while header := self._byte():
            number = number + (header >> 4) if header >> 4 else self._integer()
            kind = header & 15
            fields[number] = kind == BOOLEANS[0] if kind in BOOLEANS else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        if kind in INTEGERS:
            return self._integer()
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind in LISTS:
            header = self._byte()
            count = header >> 4 if header >> 4 < 15 else self._varint()
            return [self._value(header & 15) for _ in range(count)]
        if kind == STRUCT:
            return self.struct()
        if kind in (*BOOLEANS, BYTE):
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(8)
        raise LookupError(f"Thrift type {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise LookupError(f"{count} bytes from {self._at} on")
        self._at += count
        return self._data[self._at - count : self._at]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, INTEGER_BITS, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise LookupError(f"an integer of more than {INTEGER_BITS} bits")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

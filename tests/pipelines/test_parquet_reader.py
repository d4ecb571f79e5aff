"""Reading some rows of a Parquet file fetches little more than their bytes, whichever program wrote the file."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.pipelines.base.parquet_reader import (
    FOOTER_READ_BYTES,
    MAX_GAP_BYTES,
    PAGE_BUFFER_BYTES,
    ParquetReader,
    locate_indices,
    parse_index,
)
from tests.work import count_work

PAGED_OPTIONS: dict[str, Any] = {"write_batch_size": 1, "data_page_size": 16 << 10, "write_page_index": True}
WRITER_OPTIONS: dict[str, dict[str, Any]] = {
    "pandas": {},
    "ingest": {"compression": "none", "use_dictionary": False, "write_page_checksum": True, **PAGED_OPTIONS},
    "pages of version 2": {"compression": "zstd", "use_dictionary": False, "data_page_version": "2.0", **PAGED_OPTIONS},
    "datasets": {"use_content_defined_chunking": True, "write_page_index": True},
}
ROW_GROUP_SIZE = 64


class CountingFile(io.FileIO):
    """A file that counts the bytes read from it."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size) or b""
        self.taken += len(data)
        return data


def make_shuffled_table(seed: int, *, struct: bool) -> pa.Table:
    """Return images of various sizes, some of them null, as bytes or Hugging Face structs, between other columns."""
    draws = np.random.default_rng(seed)
    images = [draws.bytes(int(size)) for size in draws.integers(20_000, 120_000, 150)]
    encoded: list[Any] = [{"bytes": image, "path": None} for image in images] if struct else list(images)
    for row in draws.integers(150, size=5):
        encoded[row] = None
    columns = {"prompt_id": [f"p{row}" for row in range(150)], "image": encoded, "note": ["as it was"] * 150}
    columns["sources"] = [[draws.bytes(15_000)] * int(count) for count in draws.integers(0, 3, 150)]
    names = draws.permutation(list(columns))
    return pa.table({name: columns[name] for name in names})


@pytest.mark.parametrize("struct", [False, True])
@pytest.mark.parametrize("writer", WRITER_OPTIONS)
def test_any_rows_of_any_writers_file_are_read(writer: str, struct: bool, tmp_path: Path) -> None:
    draws = np.random.default_rng(3)
    table, path = make_shuffled_table(5, struct=struct), tmp_path / "images.parquet"
    pq.write_table(table, path, row_group_size=ROW_GROUP_SIZE, **WRITER_OPTIONS[writer])
    with CountingFile(path) as file:
        reader = ParquetReader(file, path.stat().st_size)
        for group in (2, 0, 1):
            there = table.slice(group * ROW_GROUP_SIZE, ROW_GROUP_SIZE)
            rows = sorted(set(draws.integers(len(there), size=5).tolist()))
            found = list(reader.read_rows(group, rows, table.column_names))
            assert found == there.take(rows).to_pylist()
        assert reader.read([0, 2], ["image", "note"]).equals(
            pa.concat_tables([table.slice(0, ROW_GROUP_SIZE), table.slice(2 * ROW_GROUP_SIZE)]).select(
                ["image", "note"]
            )
        )


def test_reading_a_few_rows_fetches_their_pages_and_reading_ids_their_columns(tmp_path: Path) -> None:
    table, path = make_shuffled_table(8, struct=False), tmp_path / "images.parquet"
    pq.write_table(table, path, row_group_size=ROW_GROUP_SIZE, **WRITER_OPTIONS["ingest"])
    with CountingFile(path) as file:
        reader = ParquetReader(file, path.stat().st_size)
        assert file.taken <= FOOTER_READ_BYTES
        file.taken = 0
        assert reader.read([0, 1, 2], ["prompt_id", "note"]).num_rows == 150
        assert file.taken < 3 * MAX_GAP_BYTES
        file.taken = 0
        found = list(reader.read_rows(1, [3, 40], ["prompt_id", "image"]))
        shown = sum(len(row["image"] or b"") for row in found)
        assert file.taken < shown + 2 * PAGE_BUFFER_BYTES + MAX_GAP_BYTES < path.stat().st_size / 10


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff" * 10_000,
        b"\x19\xf7\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x19\xf8\x01\xff\xff\xff\xff\x0f",
        b"\x19" * 10_000,
        b"",
    ],
    ids=["an integer without end", "numbers without end", "a text without end", "lists in lists", "zeros"],
)
def test_a_damaged_page_index_is_ignored_and_costs_no_more_than_its_bytes(damage: bytes, tmp_path: Path) -> None:
    table, path = make_shuffled_table(2, struct=False), tmp_path / "images.parquet"
    pq.write_table(table, path, row_group_size=ROW_GROUP_SIZE, **WRITER_OPTIONS["ingest"])
    content = bytearray(path.read_bytes())
    for place in (place for group in locate_indices(pq.read_metadata(path)) for place in group if place is not None):
        content[place.start : place.stop] = damage[: len(place)].ljust(len(place), b"\0")
    path.write_bytes(content)
    with CountingFile(path) as file:
        found = list(ParquetReader(file, len(content)).read_rows(1, [3, 40], ["prompt_id", "image"]))
    assert found == table.slice(ROW_GROUP_SIZE, ROW_GROUP_SIZE).take([3, 40]).select(["prompt_id", "image"]).to_pylist()


def test_an_integer_of_a_megabyte_is_refused_after_ten_bytes() -> None:
    assert count_work(lambda: parse_index(b"\x15" + b"\xff" * 1_000_000, range(9), 9)).lines < 200

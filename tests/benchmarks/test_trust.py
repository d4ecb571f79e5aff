"""Verifying everything that a sweep reads from the store takes a small fraction of the sweep's time."""

import hashlib
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.pipelines.running.events import ProgressTotals
from plumbline.pipelines.store.store import Store, decode_cell, encode_cell
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import SHAPES_FOLDER, make_sweep_config
from tests.benchmarks.size import HERE_OPTIONS, choose_size, expect

GENERATORS = choose_size(("atlas", "flint"), ("atlas",))
MAX_VERIFICATION_SHARE = 0.03
"""Maximum time for verification, as a fraction of the time of all stages."""
N_READS_PER_CELL = 2
"""Number of reads of each cell: by the dependent stage, and by the driver or the report."""
N_READS_PER_IMAGE = 2
"""Number of reads of each image: by the answers stage and by the similarities stage."""
N_REPEATS = choose_size(5, 1)
TINY_OPTIONS = choose_size((), (*HERE_OPTIONS, "benchmark.limit=4"))


def test_digests_and_checksums_cost_under_three_percent_of_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    totals = ProgressTotals()
    generators = f"benchmark.generators=[{','.join(GENERATORS)}]"
    planned = plan_sweep(
        make_sweep_config(
            SHAPES_FOLDER, tmp_path / "store", "cluster=local", "shard_rows=256", generators, *TINY_OPTIONS
        )
    )
    assert run_sweep(planned, totals.add).exit_code == 0
    stages = sum(state.seconds for state in totals.nodes.values())
    tables = [planned.store.read(cell.path) for cell in planned.plan.cells]
    files = [read_content(planned.store, cell.path) for cell in planned.plan.cells]
    written = time_fastest(lambda: [encode_cell(table, {}) for table in tables]) - time_fastest(
        lambda: list(map(serialize_scores, tables))
    )
    read = time_fastest(lambda: list(map(decode_cell, files))) - time_fastest(
        lambda: list(map(deserialize_scores, files))
    )
    images = [image for name in GENERATORS for image in read_encoded_images(name)]
    looked = time_fastest(lambda: digest_images(images))
    cost = written + N_READS_PER_CELL * read + N_READS_PER_IMAGE * looked
    with capsys.disabled():
        print(
            f"\n{len(files)} cells of {sum(map(len, files)):,} bytes: checksums add {written:.3f} s to writing and "
            f"{N_READS_PER_CELL * read:.3f} s to reading, digests of images take {N_READS_PER_IMAGE * looked:.3f} s; "
            f"together, {cost / stages:.2%} of the {stages:.1f} s that the stages take "
            f"({MAX_VERIFICATION_SHARE:.0%} allowed)"
        )
    expect(cost < MAX_VERIFICATION_SHARE * stages)


def time_fastest(action: Callable[[], object]) -> float:
    """Return how many seconds the fastest of several calls of `action` took."""
    tries = []
    for _ in range(N_REPEATS):
        began = time.perf_counter()
        action()
        tries.append(time.perf_counter() - began)
    return min(tries)


def read_content(store: Store, path: str) -> bytes:
    return (store.place / path).read()


def serialize_scores(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def deserialize_scores(data: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(use_threads=False)


def read_encoded_images(generator: str) -> list[bytes]:
    tables = [
        pq.read_table(file, columns=["image"])
        for file in sorted((SHAPES_FOLDER / "images" / generator).glob("*.parquet"))
    ]
    return [image for table in tables for image in table.column("image").to_pylist()]


def digest_images(images: Sequence[bytes]) -> list[str]:
    return [hashlib.sha256(image).hexdigest() for image in images]

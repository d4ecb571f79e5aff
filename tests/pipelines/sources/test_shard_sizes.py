"""Shards are as large as limits on rows, bytes and workers allow; their size is stored, because keys depend on it."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.pipelines.sources.shards import ShardSize
from plumbline.pipelines.sweeps.planning import PlannedSweep
from tests.bench_of import (
    list_sources,
    make_sweep_config,
    plan_bench,
    read_image_rows,
    read_prompt_rows,
    run_bench,
    write_benchmark,
    write_rows,
)

N_ROWS, ROW_GROUP_SIZE = 38_400, 100
"""Number of rows in a file and in a row group.

With the minimum number of shards per benchmark, each shard has 300 rows, i.e. three row groups.
"""


def write_images(folder: Path, name: str, rows: int = N_ROWS) -> None:
    """Write rows of a few bytes each; a plan does not read the images."""
    ids = [f"{name}-{row}" for row in range(rows)]
    table = {"image_id": ids, "prompt_id": [read_prompt_rows(1)[0]["prompt_id"]] * rows, "image": [b"image"] * rows}
    (folder / "images/atlas").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), folder / f"images/atlas/{name}.parquet", row_group_size=ROW_GROUP_SIZE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "bench/prompts.parquet", read_prompt_rows(1))
    write_images(tmp_path / "bench", "first")
    return tmp_path / "bench"


def plan(folder: Path, *words: str) -> PlannedSweep:
    """Plan a sweep; its shard size is only configured if the additional arguments contain it."""
    return plan_bench(folder, folder.parent / "store", "metric=[edge_density]", "shard_rows=null", *words)


def list_sizes(planned: PlannedSweep) -> list[int]:
    return [shard.rows for shard in planned.sources.image_shards]


def list_paths(planned: PlannedSweep) -> set[str]:
    return {cell.path for cells in planned.plan.scores.values() for cell in cells}


def test_a_growing_benchmark_keeps_the_shards_of_its_first_sweep(folder: Path) -> None:
    first = plan(folder)
    assert list_sizes(first) == [300] * 128
    assert (first.config.shard_rows, first.config.shard_bytes) == (300, 512 << 20), "as recorded in the manifest"
    write_images(folder, "another")
    grown = plan(folder)
    assert list_sizes(grown) == [300] * 256
    assert list_paths(first) < list_paths(grown)


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_if_the_stored_size_is_lost_or_damaged_the_newest_run_provides_it(
    harm: Callable[[Path], object], tmp_path: Path
) -> None:
    """A run whose shard size was configured does not count."""
    folder, store = write_benchmark(tmp_path / "bench", ["atlas"], count=4), tmp_path / "store"
    for shard_rows in ("null", "100"):
        run_bench(folder, store, "metric=[edge_density]", f"shard_rows={shard_rows}")
    harm(store / "cuts/small.json")
    write_images(folder, "another")
    grown = plan(folder)
    assert list_sizes(grown) == [4] + [200] * 192, "neither 300, as for a new benchmark, nor 100"
    assert {cell.shard.name.partition("-")[0] for cell in grown.plan.missing} == {"another"}


def test_a_small_benchmark_has_shards_of_256_rows_and_a_dry_run_decides_nothing(folder: Path) -> None:
    write_images(folder, "first", rows=1000)
    assert list_sizes(plan(folder, "dry_run=true")) == [200] * 5
    assert not (folder.parent / "store").exists()
    write_images(folder, "first")
    assert list_sizes(plan(folder)) == [300] * 128


def test_rows_of_many_bytes_make_small_shards(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas"], count=8)
    large = [{**row, "image": bytes(50_000)} for row in read_image_rows("atlas", 8)]
    write_rows(folder / "images/atlas/00000.parquet", large, row_group=1)
    benchmark = make_sweep_config(folder, tmp_path / "store").benchmark
    cut = [shard.rows for shard in list_sources(benchmark, ShardSize(4, 160_000)).image_shards]
    assert cut == [3, 3, 2]
    assert [len(shard.row_groups) for shard in list_sources(benchmark, ShardSize(4, 1)).image_shards] == [1] * 8

"""Sources are cut into shards by their footers; what cannot be read is named and costs nothing else."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators import rows
from operators.errors import ConfigError, SourceError
from pipelines.benchmark import BenchmarkConfig
from pipelines.shards import read_shard
from pipelines.sources import Sources, open_sources
from pipelines.storage import StorageConfig
from pipelines.sweep import plan_sweep
from tests.bench_of import images, prompts, sweep_config, write_benchmark, write_rows

FAILED = {"kind": "model_failed", "message": "out of memory", "retryable": True}


def opened(folder: Path, *, shard_rows: int = 4, generators: tuple[str, ...] | None = None) -> Sources:
    benchmark = BenchmarkConfig(
        name="small", prompts=f"{folder}/prompts.parquet", images=f"{folder}/images", generators=generators
    )
    return open_sources(benchmark, StorageConfig(), shard_rows=shard_rows)


@pytest.mark.parametrize("shard_rows, shards", [(1, 3), (4, 3), (8, 2), (9, 2), (100, 1)])
def test_shards_are_runs_of_row_groups_up_to_the_wanted_size(tmp_path: Path, shard_rows: int, shards: int) -> None:
    sources = opened(write_benchmark(tmp_path, ["atlas"], count=10), shard_rows=shard_rows)
    assert len(sources.image_shards) == shards
    read = [read_shard(shard, StorageConfig(), ["image_id"]) for shard in sources.image_shards]
    assert pa.concat_tables(read).column("image_id").to_pylist() == [row["image_id"] for row in images("atlas", 10)]
    assert [len(table) for table in read] == [shard.rows for shard in sources.image_shards]
    assert len({shard.name for shard in sources.image_shards}) == shards


def test_files_in_subfolders_get_names_of_their_own(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas"])
    write_rows(folder / "images/atlas/more/00000.parquet", images("atlas", 4))
    assert {shard.name for shard in opened(folder).image_shards} == {"00000-00000", "00000-00001", "more__00000"}


@pytest.mark.parametrize(
    "path", ["a" * 215, "x/" + "é" * 100, "/".join(["deep" * 15] * 5), "more/00000", "more__00000"]
)
def test_long_and_nested_names_leave_room_for_what_a_cells_name_adds(path: str, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas"])
    for number, file in enumerate([path, "more/00000", "more__00000", path + "b"]):
        write_rows(folder / f"images/atlas/{file}.parquet", images("atlas", 4 + number))
    config = sweep_config(folder, tmp_path / "store", "metric=[clipscore]")
    planned = plan_sweep(config)
    shards = planned.sources.image_shards
    assert len({shard.name for shard in shards}) == len(shards)
    for cell in planned.plan.cells:
        assert planned.store.save(cell, rows.table([{"error": FAILED}], rows.SCORES)).state == "draft"


def test_generators_are_the_folders_or_those_asked_for(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas", "flint"])
    assert opened(folder).generators == ["atlas", "flint"]
    assert opened(folder, generators=("flint",)).generators == ["flint"]
    with pytest.raises(ConfigError, match=r"no folder 'golem' in .*; found atlas, flint"):
        opened(folder, generators=("golem",))


def test_a_truncated_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path)
    file = folder / "images/flint/00000.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    sources = opened(folder)
    assert {shard.group for shard in sources.image_shards} == {"atlas"}
    [broken] = sources.broken
    assert broken.generator == "flint"
    assert str(file) in broken.message and "truncated" in broken.message and "upload it again" in broken.message


def test_a_wrong_schema_is_named_with_what_was_found(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path)
    write_rows(folder / "images/flint/00000.parquet", [{"prompt_id": "1", "picture": b""}])
    [broken] = opened(folder).broken
    assert "expected column(s) image or uri, found prompt_id, picture" in broken.message


def test_an_empty_generator_is_named(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path)
    (folder / "images/golem").mkdir()
    [broken] = opened(folder).broken
    assert broken.generator == "golem" and "found none" in broken.message


def test_pages_that_do_not_decode_fail_by_file_and_row_groups(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas"])
    file = folder / "images/atlas/00000.parquet"
    content = bytearray(file.read_bytes())
    content[4:2000] = b"\xff" * 1996
    file.write_bytes(content)
    shard = opened(folder).image_shards[0]
    with pytest.raises(SourceError, match=r"00000\.parquet, row groups 0-0: unreadable"):
        read_shard(shard, StorageConfig(), ["image_id", "prompt_id", "image"])


@pytest.mark.parametrize(
    "rows, problem",
    [
        ([{"prompt_id": "1", "text": "a"}, {"prompt_id": "1", "text": "b"}], "row 1: prompt_id '1' stands twice"),
        ([{"prompt_id": None, "text": "a"}, {"prompt_id": "2", "text": "b"}], "row 0: the prompt has no prompt_id"),
        ([{"id": "1", "text": "a"}], r"expected column\(s\) prompt_id, found id, text"),
        ([{"prompt_id": "1", "text": "a", "skills": "counting"}], "expected `skills` to be a list of text, found str"),
    ],
)
def test_bad_prompts_stop_the_sweep_before_anything_is_computed(
    tmp_path: Path, rows: list[dict[str, object]], problem: str
) -> None:
    folder = write_benchmark(tmp_path)
    write_rows(folder / "prompts.parquet", rows)
    with pytest.raises(ConfigError, match=problem):
        opened(folder)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path)
    benchmark = BenchmarkConfig(name="x", prompts=str(tmp_path / "nope.parquet"), images=str(folder / "images"))
    with pytest.raises(ConfigError, match=r"benchmark\.prompts .*nope\.parquet: not found"):
        open_sources(benchmark, StorageConfig(), shard_rows=4)


def test_numbers_as_ids_and_absent_skills_are_understood(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path)
    write_rows(folder / "prompts.parquet", [{"prompt_id": 7, "text": "a cat"}])
    assert opened(folder).skills == {"7": []}


def test_an_s3_source_has_the_etag_of_the_object(bucket: str, tmp_path: Path) -> None:
    import fsspec

    write_benchmark(tmp_path, ["atlas"])
    fs = fsspec.filesystem("s3", use_listings_cache=False)
    fs.put(str(tmp_path) + "/", f"{bucket}/bench/", recursive=True)
    benchmark = BenchmarkConfig(name="x", prompts=f"{bucket}/bench/prompts.parquet", images=f"{bucket}/bench/images")
    sources = open_sources(benchmark, StorageConfig(), shard_rows=4)
    assert [len(shard.etag) for shard in sources.image_shards] == [32, 32]
    assert len(sources.prompts) == len(prompts(8))
    table = read_shard(sources.image_shards[1], StorageConfig(), ["image_id", "image"])
    assert table.to_pylist() == [{k: row[k] for k in ("image_id", "image")} for row in images("atlas", 8)[4:]]
    assert pq.read_metadata(tmp_path / "images/atlas/00000.parquet").num_row_groups == 2

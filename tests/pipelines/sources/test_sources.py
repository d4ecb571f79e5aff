"""Sources are divided into shards along the row groups of their files; an unreadable file affects no other file."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.sources.benchmark import BenchmarkConfig, ColumnsConfig
from plumbline.pipelines.sources.shards import ShardSize, read_shard
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import (
    list_sources,
    make_sweep_config,
    plan_bench,
    read_image_rows,
    read_prompt_rows,
    write_benchmark,
    write_rows,
)
from tests.commands import open_store_at

FAILED_ERROR = {"kind": "model_failed", "message": "out of memory", "retryable": True}


def open_folder(folder: Path, *, shard_rows: int = 4, generators: tuple[str, ...] | None = None) -> Sources:
    benchmark = BenchmarkConfig(
        name="small", prompts=f"{folder}/prompts.parquet", images=f"{folder}/images", generators=generators
    )
    return list_sources(benchmark, ShardSize(shard_rows))


@pytest.mark.parametrize("shard_rows, shards", [(1, 3), (4, 3), (8, 2), (9, 2), (100, 1)])
def test_shards_are_consecutive_row_groups_up_to_the_wanted_size(tmp_path: Path, shard_rows: int, shards: int) -> None:
    sources = open_folder(write_benchmark(tmp_path, ["atlas"], count=10), shard_rows=shard_rows)
    assert len(sources.image_shards) == shards
    read = [read_shard(shard, ["image_id"]) for shard in sources.image_shards]
    assert pa.concat_tables(read).column("image_id").to_pylist() == [
        row["image_id"] for row in read_image_rows("atlas", 10)
    ]
    assert [len(table) for table in read] == [shard.rows for shard in sources.image_shards]
    assert len({shard.name for shard in sources.image_shards}) == shards


def test_files_in_subfolders_get_different_names(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas"])
    write_rows(folder / "images/atlas/more/00000.parquet", read_image_rows("atlas", 4))
    assert {shard.name for shard in open_folder(folder).image_shards} == {"00000-00000", "00000-00001", "more__00000"}


def test_a_file_named_like_a_part_of_another_gets_a_different_name(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas"])
    for name in ("00000-00001", "00000-000001", "00001-00000"):
        write_rows(folder / f"images/atlas/{name}.parquet", read_image_rows("atlas", 3))
    names = [shard.name for shard in open_folder(folder).image_shards]
    assert len(set(names)) == len(names) == 5 and {"00000-00000", "00000-00001", "00001-00000"} < set(names)


@pytest.mark.parametrize(
    "path", ["a" * 215, "x/" + "é" * 100, "/".join(["deep" * 15] * 5), "more/00000", "more__00000"]
)
def test_long_and_nested_names_leave_room_for_the_rest_of_a_cells_name(path: str, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas"])
    for number, file in enumerate([path, "more/00000", "more__00000", path + "b"]):
        write_rows(folder / f"images/atlas/{file}.parquet", read_image_rows("atlas", 4 + number))
    config = make_sweep_config(folder, tmp_path / "store", "metric=[clipscore]")
    planned = plan_sweep(config)
    shards = planned.sources.image_shards
    assert len({shard.name for shard in shards}) == len(shards)
    for cell in planned.plan.cells:
        failed = rows.table([{"error": FAILED_ERROR}], schemas.SCORES)
        assert planned.store.save(planned.plan.make_cell(cell), failed).state == "draft"


def test_generators_are_the_folders_or_the_configured_ones(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas", "flint"])
    assert open_folder(folder).generators == ["atlas", "flint"]
    assert open_folder(folder, generators=("flint",)).generators == ["flint"]
    with pytest.raises(ConfigError, match=r"no folder 'golem' in .*; found atlas, flint"):
        open_folder(folder, generators=("golem",))


def test_an_empty_generator_is_reported_by_name(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path)
    (folder / "images/golem").mkdir()
    [broken] = open_folder(folder).broken
    assert broken.generator == "golem" and "found none" in broken.message


def test_pages_that_do_not_decode_fail_with_file_and_row_groups(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas"])
    file = folder / "images/atlas/00000.parquet"
    content = bytearray(file.read_bytes())
    content[4:2000] = b"\xff" * 1996
    file.write_bytes(content)
    found = open_folder(folder)
    [broken] = found.broken
    assert (broken.generator, broken.rows) == ("atlas", 4)
    assert "00000.parquet, row groups 0-0: unreadable" in broken.message
    assert [shard.row_groups for shard in found.image_shards] == [(1,)]


@pytest.mark.parametrize(
    "rows, problem",
    [
        ([{"prompt_id": "1", "text": "a"}, {"prompt_id": "1", "text": "b"}], "row 1: prompt_id '1' occurs twice"),
        ([{"prompt_id": None, "text": "a"}, {"prompt_id": "2", "text": "b"}], "row 0: the prompt has no prompt_id"),
        ([{"id": "1", "text": "a"}], r"expected column\(s\) prompt_id, found id, text"),
        ([{"prompt_id": "1", "text": "a", "skills": 3}], "expected `skills` to be a list of strings, found int"),
    ],
)
def test_bad_prompts_stop_the_sweep_before_anything_is_computed(
    tmp_path: Path, rows: list[dict[str, object]], problem: str
) -> None:
    folder = write_benchmark(tmp_path)
    write_rows(folder / "prompts.parquet", rows)
    with pytest.raises(ConfigError, match=problem):
        open_folder(folder)


# Layouts


def write_images(path: Path) -> None:
    write_rows(path, read_image_rows("atlas", 4))


@pytest.mark.parametrize("extra", ["", "logs/", "logs/out.txt", ".cache/0.parquet"])
def test_a_folder_without_tables_next_to_files_is_ignored(extra: str, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, [])
    write_images(folder / "images/0.parquet")
    if extra.endswith(".parquet"):
        write_images(folder / "images" / extra)
    elif extra:
        (folder / "images" / extra.partition("/")[0]).mkdir()
        (folder / "images/logs/out.txt").touch()
    sources = open_folder(folder)
    assert sources.generators == ["images"] and sum(shard.rows for shard in sources.image_shards) == 4


def test_files_next_to_the_folders_of_generators_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["flint"])
    write_images(folder / "images/0.parquet")
    with pytest.raises(
        ConfigError,
        match=r"Parquet files \(0\.parquet\) next to folders with Parquet files \(flint\); move these files",
    ):
        open_folder(folder)
    (folder / "images/0.parquet").write_bytes(b"PAR1")
    with pytest.raises(ConfigError, match=r"\(0\.parquet\) next to folders"):
        open_folder(folder)


def test_tables_without_images_may_be_next_to_the_folders_as_ingest_writes_them(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["flint"])
    write_rows(folder / "images/prompts.parquet", read_prompt_rows(8))
    assert open_folder(folder).generators == ["flint"]


@pytest.mark.parametrize("inside", ["store", "flint/store"])
def test_a_store_among_the_images_is_not_a_generator(inside: str, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["flint"])
    open_store_at(folder / "images" / inside).check()
    write_images(folder / "images" / inside / "scores/01234567/flint/0-01234567.parquet")
    sources = open_folder(folder)
    assert sources.generators == ["flint"] and sum(shard.rows for shard in sources.image_shards) == 8
    assert sources.broken == []


def test_images_and_store_in_one_folder_are_refused(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["flint"])
    with pytest.raises(ConfigError, match=r"store .*images: it also contains the images; use a separate folder"):
        plan_bench(folder, folder / "images", "metric=[clipscore]")
    assert not (folder / "images/store.json").exists()
    open_store_at(folder / "images").check()
    with pytest.raises(ConfigError, match=r"benchmark\.images .*: expected images, found a store of scores"):
        open_folder(folder)


def test_links_are_followed_once_and_broken_links_are_named(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["flint"])
    write_images(tmp_path / "elsewhere/0.parquet")
    (folder / "images/linked").symlink_to(tmp_path / "elsewhere")
    (folder / "images/flint/again").symlink_to(folder / "images/flint")
    (folder / "images/flint/more.parquet").symlink_to(tmp_path / "elsewhere/0.parquet")
    (folder / "images/flint/gone.parquet").symlink_to(tmp_path / "nothing")
    (folder / "images/circle").symlink_to(folder / "images/circle")
    os.mkfifo(folder / "images/flint/pipe.parquet")
    sources = open_folder(folder)
    assert sources.generators == ["flint", "linked"]
    assert {shard.group: shard.rows for shard in sources.image_shards} == {"flint": 4, "linked": 4}
    for shard in sources.image_shards:
        assert len(read_shard(shard, ["prompt_id"])) == shard.rows
    assert [broken.message.partition(": ")[0].rpartition("/")[2] for broken in sources.broken] == [
        "gone.parquet", "pipe.parquet"
    ]  # fmt: skip
    assert all("expected a file, found a broken link" in broken.message for broken in sources.broken)


# Columns and values


def write_with_repeated_column(path: Path, table: pa.Table, name: str) -> None:
    """Write the table as a Parquet file in which the column `name` occurs twice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.append_column(name, table.column(name)), path)


@pytest.mark.parametrize("name", ["prompt_id", "text", "skills"])
def test_a_repeated_column_of_the_prompts_stops_the_sweep(name: str, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["flint"])
    write_with_repeated_column(folder / "prompts.parquet", pa.Table.from_pylist(read_prompt_rows(8)), name)
    with pytest.raises(ConfigError, match=rf"prompts\.parquet: 2 columns are called '{name}'; rename or remove"):
        open_folder(folder)


@pytest.mark.parametrize("extra", ["*", ()])
@pytest.mark.parametrize("name", ["image_id", "prompt_id", "image", "uri", "prompt", "seed"])
def test_a_repeated_column_of_the_images_only_costs_its_file(name: str, extra: Any, tmp_path: Path) -> None:
    rows = [{**row, "prompt": "a cat", "prompt_id": "1", "uri": "u", "seed": 7} for row in read_image_rows("atlas", 4)]
    write_rows(tmp_path / "images/flint/0.parquet", rows)
    write_with_repeated_column(tmp_path / "images/flint/1.parquet", pa.Table.from_pylist(rows), name)
    columns = ColumnsConfig(extra=extra)
    benchmark = BenchmarkConfig(name="small", prompts=None, images=f"{tmp_path}/images", columns=columns)
    sources = list_sources(benchmark)
    (broken,) = sources.broken
    assert f"1.parquet: 2 columns are called {name!r}; rename or remove all but one" in broken.message
    assert [shard.rows for shard in sources.image_shards] == [4]


@pytest.mark.parametrize("values", [[b"p"], [["p"]], [{"a": "p"}]], ids=["bytes", "list", "struct"])
def test_ids_that_are_neither_text_nor_numbers_are_refused(values: list[Any], tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["flint", "atlas"])
    for name in ("image_id", "prompt_id"):
        write_rows(folder / "images/atlas/00000.parquet", [{**read_image_rows("atlas", 1)[0], name: values[0]}])
        (broken,) = open_folder(folder).broken
        assert f"00000.parquet: expected '{name}' to contain text or numbers, found" in broken.message
    write_rows(folder / "prompts.parquet", [{"prompt_id": values[0], "text": "a"}])
    with pytest.raises(ConfigError, match=r"prompts\.parquet: expected 'prompt_id' to contain text or numbers"):
        open_folder(folder)


def test_a_missing_number_is_not_an_id_and_a_null_is_not_a_skill(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["flint"])
    asked = [{"prompt_id": 7.5, "text": "a", "skills": ["x", None]}, {"prompt_id": 8.5, "text": "b", "skills": None}]
    write_rows(folder / "prompts.parquet", asked)
    assert [open_folder(folder).skills.find(prompt) for prompt in ("7.5", "8.5")] == [("x",), ()]
    write_rows(folder / "prompts.parquet", [*asked, {"prompt_id": float("nan"), "text": "c", "skills": []}])
    with pytest.raises(ConfigError, match=r"row 2: the prompt has no prompt_id"):
        open_folder(folder)


def write_latin(path: Path, **columns: list[bytes]) -> None:
    """Write text columns with these raw bytes, which need not be valid UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: pa.array(values, pa.binary()).view(pa.string()) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), path)


@pytest.mark.parametrize("name", ["prompt_id", "text"])
def test_text_of_a_prompt_that_is_not_utf8_is_named_by_its_row(name: str, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["flint"])
    write_latin(
        folder / "prompts.parquet", **{"prompt_id": [b"1", b"2"], "text": [b"a", b"b"], name: [b"1", b"caf\xe9"]}
    )
    with pytest.raises(ConfigError, match=rf"prompts\.parquet, row 1: {name} is not UTF-8 .*; write the file in UTF-8"):
        open_folder(folder)


@pytest.mark.parametrize("name", ["prompt_id", "prompt"])
def test_a_rows_own_prompt_that_is_not_utf8_is_named_and_only_costs_its_shard(name: str, tmp_path: Path) -> None:
    columns = {"prompt_id": [b"1", b"2"], "prompt": [b"a", b"b"], "image": [b"x", b"y"]}
    write_latin(tmp_path / "images/0.parquet", **columns)
    write_latin(tmp_path / "images/1.parquet", **{**columns, name: [b"1", b"caf\xe9"]})
    benchmark = BenchmarkConfig(name="small", prompts=None, images=f"{tmp_path}/images")
    sources = list_sources(benchmark)
    (broken,) = sources.broken
    assert f"1.parquet, row 1: {name} is not UTF-8" in broken.message and broken.rows == 2
    assert len(sources.image_shards) == 1


def test_missing_paths_are_named(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path)
    benchmark = BenchmarkConfig(name="x", prompts=str(tmp_path / "nope.parquet"), images=str(folder / "images"))
    with pytest.raises(ConfigError, match=r"benchmark\.prompts .*nope\.parquet: not found"):
        list_sources(benchmark)


def test_numbers_as_ids_and_absent_skills_are_understood(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path)
    write_rows(folder / "prompts.parquet", [{"prompt_id": 7, "text": "a cat"}])
    prompts = open_folder(folder).prompts
    assert prompts.select(["prompt_id", "skills"]).to_pylist() == [{"prompt_id": "7", "skills": []}]


def test_an_s3_source_has_the_objects_etag(bucket: str, tmp_path: Path) -> None:
    import fsspec

    write_benchmark(tmp_path, ["atlas"])
    fs = fsspec.filesystem("s3", use_listings_cache=False)
    fs.put(str(tmp_path) + "/", f"{bucket}/bench/", recursive=True)
    benchmark = BenchmarkConfig(name="x", prompts=f"{bucket}/bench/prompts.parquet", images=f"{bucket}/bench/images")
    sources = list_sources(benchmark)
    assert [len(shard.etag) for shard in sources.image_shards] == [32, 32]
    assert len(sources.prompts) == len(read_prompt_rows(8))
    table = read_shard(sources.image_shards[1], ["image_id", "image"])
    assert table.to_pylist() == [{k: row[k] for k in ("image_id", "image")} for row in read_image_rows("atlas", 8)[4:]]
    assert pq.read_metadata(tmp_path / "images/atlas/00000.parquet").num_row_groups == 2

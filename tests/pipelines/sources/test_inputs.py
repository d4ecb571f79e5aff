"""Inputs may have any column names and paths, and prompts in rows; files that change after planning are not read."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.images.rows import read_image_row
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS, ColumnsConfig
from plumbline.pipelines.sources.prompts import read_prompts
from plumbline.pipelines.sources.shards import list_files, read_extra_columns, read_footer, read_shard
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import (
    CAPTIONED_OPTIONS,
    list_captioned_images,
    list_sources,
    make_score_config,
    make_sweep_config,
    plan_bench,
    read_image_rows,
    read_prompt_rows,
    run_bench,
    run_config,
    run_plan,
    write_benchmark,
    write_rows,
)

STORAGE_CONFIG = StorageConfig()
CLIPSCORE_OPTION = "metric=[clipscore]"


def rename_columns(rows: list[dict[str, Any]], **names: str) -> list[dict[str, Any]]:
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


def count_by_stage(plan: Plan) -> Counter[str]:
    return Counter(cell.recipe.stage for cell in plan.missing)


# Names of columns


def test_columns_may_have_any_name_and_their_names_are_part_of_the_keys(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=4)
    ours = plan_bench(folder, tmp_path / "store")
    (table,) = (read_shard(shard, IMAGE_COLUMNS) for shard in ours.sources.image_shards)
    write_rows(
        folder / "prompts.parquet", rename_columns(read_prompt_rows(4), prompt_id="key", text="caption", skills="tags")
    )
    write_rows(
        folder / "images/atlas/00000.parquet", rename_columns(read_image_rows("atlas", 4), prompt_id="key", image="jpg")
    )
    names = [f"benchmark.prompt_columns.{name}" for name in ("prompt_id=key", "text=caption", "skills=tags")]
    names += ["benchmark.columns.prompt_id=key", "benchmark.columns.image=jpg"]
    theirs = plan_bench(folder, tmp_path / "store", *names)
    (shard,) = theirs.sources.image_shards
    assert read_shard(shard, IMAGE_COLUMNS) == table
    assert theirs.sources.prompts == ours.sources.prompts
    assert shard.describe_source()["columns"] == (("prompt_id", "key"), ("image", "jpg"))
    assert shard.describe_source() != ours.sources.image_shards[0].describe_source()


def test_the_structs_of_hugging_face_and_addresses_may_have_other_names_too(tmp_path: Path) -> None:
    rows = [{"id": 1, "img": {"bytes": b"x", "path": None}, "link": None},
            {"id": 2, "img": {"bytes": None, "path": None}, "link": "s3://b/2.png"}]  # fmt: skip
    folder = write_benchmark(tmp_path, ["atlas"], count=4)
    write_rows(folder / "images/atlas/00000.parquet", rows)
    names = ["prompt_id=id", "image=img", "uri=link"]
    config = make_sweep_config(folder, tmp_path / "store", *(f"benchmark.columns.{name}" for name in names))
    (shard,) = plan_sweep(config).sources.image_shards
    assert read_shard(shard, IMAGE_COLUMNS).to_pylist() == [
        {"prompt_id": row["id"], "image": row["img"], "uri": row["link"]} for row in rows
    ]


@pytest.mark.parametrize(
    "image", [[b"x", b"y"], [{"bytes": b"x", "path": None}] * 2, None], ids=["bytes", "structs", "uris"]
)
def test_rows_of_several_images_are_lists_of_images_or_addresses(image: Any, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas"], count=4)
    files = [folder / "images" / f"{name}.png" for name in "ab"]
    for file in files:
        file.write_bytes(b"frame")
    rows = [
        {"prompt_id": prompt["prompt_id"], "image": image, "uri": list(map(str, files))}
        for prompt in read_prompt_rows(4)
    ]
    write_rows(folder / "images/atlas/00000.parquet", rows)
    config = make_sweep_config(folder, tmp_path / "store")
    (shard,) = plan_sweep(config).sources.image_shards
    assert read_shard(shard, IMAGE_COLUMNS).to_pylist() == rows
    files[1].write_bytes(b"another frame")
    (replaced,) = plan_sweep(config).sources.image_shards
    assert replaced.describe_source() != shard.describe_source(), "a different frame makes a different shard"


def test_a_file_without_the_configured_column_is_reported_with_the_key(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path)
    write_rows(folder / "images/flint/00000.parquet", rename_columns(read_image_rows("flint", 4), image="jpg"))
    sources = plan_bench(folder, tmp_path / "store", "benchmark.columns.image=jpg").sources
    (broken,) = sources.broken
    assert broken.generator == "atlas" and str(folder / "images/atlas/00000.parquet") in broken.message
    assert "expected column(s) jpg, found image_id, prompt_id, image" in broken.message
    assert "or correct benchmark.columns.image" in broken.message


# Prompts in the images' rows


def test_rows_with_their_own_prompts_need_no_ids_and_get_them_from_their_texts(tmp_path: Path) -> None:
    rows = list_captioned_images("atlas", 4)
    write_rows(tmp_path / "data/a.parquet", [*rows, *rows, {**rows[0], "caption": None}], row_group=100)
    sources = plan_sweep(make_score_config(tmp_path / "data", tmp_path / "store", *CAPTIONED_OPTIONS)).sources
    (shard,) = sources.image_shards
    ids = read_shard(shard, ("prompt_id",)).column("prompt_id").to_pylist()
    assert ids[:4] == ids[4:8] and len(set(ids)) == 5
    texts = dict(zip(*(sources.prompts.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True))
    assert [texts[one] for one in ids] == [*[row["caption"] for row in rows] * 2, ""]
    assert len(read_prompts(shard)) == 5
    assert sources.generators == ["data"]


def test_given_ids_are_kept_and_missing_ids_are_generated(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "a.parquet", [{"prompt_id": i, "prompt": t, "image": b"x"} for i, t in ((7, "a"), (None, "b"))]
    )
    (shard,) = plan_sweep(make_score_config(tmp_path / "a.parquet", tmp_path / "store")).sources.image_shards
    given, made = read_shard(shard, IMAGE_COLUMNS).column("prompt_id").to_pylist()
    assert given == "7" and len(made) == 16
    record = read_shard(shard, ("image_id", "prompt_id")).to_pylist()[0]
    assert read_image_row({**record, "image": b"x"}, "a").prompt_id == "7"


@pytest.mark.parametrize("files", [("a", "a"), ("a", "b")])
def test_an_id_with_two_texts_is_named(files: tuple[str, str], tmp_path: Path) -> None:
    rows = [{"prompt_id": "7", "prompt": text, "image": b"x"} for text in ("a cat", "a dog")]
    for file in set(files):
        write_rows(
            tmp_path / f"data/{file}.parquet", [row for row, its in zip(rows, files, strict=True) if its == file]
        )
    with pytest.raises(ConfigError, match=rf"{files[1]}\.parquet: prompt_id '7' has two texts, 'a dog' and 'a cat'"):
        plan_sweep(make_score_config(tmp_path / "data", tmp_path / "store"))
    without = plan_sweep(make_score_config(tmp_path / "data", tmp_path / "store", "benchmark.columns.prompt_id=null"))
    assert sorted(without.sources.prompts.column("text").to_pylist()) == ["a cat", "a dog"]


def test_generators_of_the_same_prompts_share_questions_and_a_new_file_adds_only_its_own(tmp_path: Path) -> None:
    for generator in ("atlas", "flint"):
        write_rows(tmp_path / f"data/{generator}/0.parquet", list_captioned_images(generator, 8))
    config = make_score_config(tmp_path / "data", tmp_path / "store", *CAPTIONED_OPTIONS)
    before = plan_sweep(config).plan
    assert count_by_stage(before) == {"questions": 2, "answers": 4, "similarities": 4, "scores": 8}
    write_rows(tmp_path / "data/flint/1.parquet", list_captioned_images("flint", 12)[8:])
    old = {cell.path for cell in before.cells}
    new = Counter(cell.recipe.stage for cell in plan_sweep(config).plan.cells if cell.path not in old)
    assert new == {"questions": 1, "answers": 1, "similarities": 1, "scores": 2}


# Further columns of the scores


def write_table_with_extra_columns(path: Path) -> pa.Table:
    rows = pa.Table.from_pylist([{k: row[k] for k in ("prompt_id", "image")} for row in read_image_rows("atlas", 8)])
    seeds = pa.array(range(8), pa.int16())
    tags = pa.array([["a", str(n)] for n in range(8)])
    table = rows.append_column("seed", seeds).append_column("tags", tags)
    pq.write_table(table, path, row_group_size=4)
    return table


def test_extra_columns_are_read_in_row_order_and_affect_no_key(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas", "flint"])
    table = write_table_with_extra_columns(folder / "images/atlas/00000.parquet")
    plain = plan_bench(folder, tmp_path / "store")
    some = plan_bench(folder, tmp_path / "store", "benchmark.columns.extra=[seed]")
    every = plan_bench(folder, tmp_path / "store", "benchmark.columns.extra=*")
    first, *others = ({cell.path for cell in each.plan.cells} for each in (plain, some, every))
    assert others == [first, first]
    assert some.sources.extra.field("seed").type == pa.int16() and some.sources.extra.names == ["seed", "settings"]
    assert every.sources.extra.names == ["seed", "tags", "settings"]
    read = [
        read_extra_columns(shard, every.sources.extra, every.sources.settings) for shard in every.sources.image_shards
    ]
    assert pa.concat_tables(read[:2]).drop_columns("settings") == table.select(["seed", "tags"])
    assert read[2].column("tags").null_count == 4


def test_an_extra_column_with_two_types_or_with_a_name_of_the_scores_is_refused(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path, ["atlas", "flint"])
    write_table_with_extra_columns(folder / "images/atlas/00000.parquet")
    write_rows(folder / "images/flint/00000.parquet", [{**row, "seed": "1"} for row in read_image_rows("flint", 4)])
    with pytest.raises(ConfigError, match=r"extra: 'seed' is int16 in one images table and string in another"):
        plan_bench(folder, tmp_path / "store", "benchmark.columns.extra=*")
    with pytest.raises(ConfigError, match=r"columns\.extra: the scores already have a column 'metric'"):
        ColumnsConfig(extra=("metric",))


# Locations of generators


def test_a_generator_may_be_a_path(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    write_rows(tmp_path / "elsewhere/flint.parquet", read_image_rows("flint", 8))
    paths = {"one": f"{folder}/images/atlas", "two": f"{tmp_path}/elsewhere/flint.parquet"}
    given = ", ".join(f"{name}: {path}" for name, path in paths.items())
    config = make_sweep_config(folder, tmp_path / "store", f"benchmark.generators={{{given}}}", "benchmark.images=null")
    sources = plan_sweep(config).sources
    assert sources.generators == ["one", "two"] and sources.broken == []
    assert Counter(shard.group for shard in sources.image_shards) == {"one": 2, "two": 2}
    wrong = make_sweep_config(folder, tmp_path / "store", "benchmark.generators={x: /nowhere}", "benchmark.images=null")
    with pytest.raises(ConfigError, match=r"benchmark\.generators\.x /nowhere: not found"):
        plan_sweep(wrong)


@pytest.mark.parametrize("below", ["", "/00000.parquet"])
def test_one_file_or_a_folder_of_files_is_one_generator(below: str, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    config = make_sweep_config(folder, tmp_path / "store", f"benchmark.images={folder}/images/atlas{below}")
    sources = plan_sweep(config).sources
    assert sources.generators == ["00000" if below else "atlas"]
    assert sum(shard.rows for shard in sources.image_shards) == 8


# Files that change, and files without rows


def change(file: Path, how: str) -> None:
    stat = file.stat()
    if how == "gone":
        file.unlink()
    elif how == "rewritten":
        write_rows(file, read_image_rows("cobalt", 8))
    else:
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000_000))


@pytest.mark.parametrize("how", ["gone", "rewritten", "touched"])
def test_a_file_that_changed_since_the_plan_is_not_read(how: str, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    shard = plan_bench(folder, tmp_path / "store").sources.image_shards[0]
    change(folder / "images/atlas/00000.parquet", how)
    found = "the file has disappeared" if how == "gone" else "the file has changed since the run was planned"
    with pytest.raises(SourceError, match=rf"00000\.parquet: .*{found}.*run again to make a new plan"):
        read_shard(shard, IMAGE_COLUMNS)


def test_a_changed_object_on_s3_is_not_read(bucket: str, tmp_path: Path) -> None:
    import fsspec

    fs = fsspec.filesystem("s3", use_listings_cache=False)
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    fs.put(f"{folder}/", f"{bucket}/bench/", recursive=True)
    config = make_sweep_config(f"{bucket}/bench", tmp_path / "store")
    sources = list_sources(config.benchmark)
    read_shard(sources.image_shards[0], IMAGE_COLUMNS)
    content = (folder / "images/atlas/00000.parquet").read_bytes()
    assert b"parquet-cpp-arrow" in content
    as_long = content.replace(
        b"parquet-cpp-arrow", b"parquet-cpp-arroW"
    )  # same size and time, so only the ETag differs
    fs.pipe_file(f"{bucket}/bench/images/atlas/00000.parquet", as_long)
    with pytest.raises(SourceError, match="has changed since the run was planned"):
        read_shard(sources.image_shards[0], IMAGE_COLUMNS)
    fs.rm(f"{bucket}/bench/images/atlas/00000.parquet")
    with pytest.raises(SourceError, match="has disappeared since the run was planned; restore it and run again"):
        read_shard(sources.image_shards[0], IMAGE_COLUMNS)


def test_an_object_that_differs_from_the_listing_is_reported_as_changed(bucket: str, tmp_path: Path) -> None:
    place = StorageConfig().locate(f"{bucket}/images")
    write_rows(tmp_path / "00000.parquet", read_image_rows("atlas", 8))
    content = (tmp_path / "00000.parquet").read_bytes()
    (place / "00000.parquet").write(content)
    (listed,) = list_files(place, "atlas", (".parquet",)).tables
    (place / "00000.parquet").write(content[:-8] + content)
    with pytest.raises(SourceError, match=r"00000\.parquet: the file has changed .* run again to make a new plan"):
        read_footer(listed)
    (place / "00000.parquet").remove()
    with pytest.raises(
        SourceError, match=r"00000\.parquet: .* has disappeared since the run was planned; restore it and run again"
    ):
        read_footer(listed)


def test_a_stream_from_s3_fails_once_the_object_was_replaced(bucket: str) -> None:
    place = StorageConfig().locate(f"{bucket}/file")
    place.write(b"atlas" * 1000)
    listed = place.list()["file"]
    with place.open(size=listed.size, etag=listed.etag, cache_type="none") as stream:
        assert stream.read(5) == b"atlas"
        place.write(b"delft" * 1000)
        with pytest.raises(OSError, match="no longer"):
            stream.read(5)


def test_files_without_rows_are_accepted(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    file = folder / "images/atlas/empty.parquet"
    pq.write_table(pq.read_table(folder / "images/atlas/00000.parquet").slice(0, 0), file)
    sources = plan_bench(folder, tmp_path / "store").sources
    assert sources.broken == [] and sum(shard.rows for shard in sources.image_shards) == 8
    assert all(shard.rows for shard in sources.image_shards)


@pytest.mark.parametrize("where", ["folder", "s3"])
def test_a_file_that_changes_between_plan_and_run_only_fails_itself_and_commits_nothing(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = StorageConfig().locate(request.getfixturevalue("bucket") if where == "s3" else str(tmp_path / "root"))
    bench = write_benchmark(tmp_path / "bench", ["atlas", "flint"], count=4)
    for file in bench.rglob("*.parquet"):
        (root / f"bench/{file.relative_to(bench)}").write(file.read_bytes())
    config = make_sweep_config((root / "bench").url, (root / "store").url, CLIPSCORE_OPTION)
    plan = plan_sweep(config)
    write_rows(tmp_path / "other.parquet", read_image_rows("cobalt", 8))
    (root / "bench/images/flint/00000.parquet").write((tmp_path / "other.parquet").read_bytes())
    done = run_plan(plan)
    errors = done.results.read_errors().to_pylist()
    assert {(row["generator"], row["kind"]) for row in errors} == {("flint", "broken_file")} and len(errors) == 4
    assert all("run again to make a new plan" in row["message"] and row["retryable"] for row in errors)
    assert not list_cells(root / "store", "flint") and list_cells(root / "store", "atlas")
    assert run_config(config).results.n_null == 4, "the rewritten file has eight images, four of them without a prompt"
    assert sum(path.startswith("scores/") for path in list_cells(root / "store", "flint")) == 2


def list_cells(store: Place, generator: str) -> list[str]:
    return [path for path, _ in store.files() if path.split("/")[2:3] == [generator]]


def test_rows_with_prompts_are_scored_as_with_a_prompts_file_and_keep_their_columns(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=6)
    rows = list_captioned_images("atlas", 6)
    write_rows(tmp_path / "rows/atlas.parquet", rows)
    plain = run_bench(folder, tmp_path / "one")
    done = run_config(
        make_score_config(
            tmp_path / "rows", tmp_path / "two", *CAPTIONED_OPTIONS, "benchmark.columns.extra=[seed,caption]"
        )
    )
    for metric in ("vqascore", "clipscore"):
        expected = [row["score"] for row in plain.results.read_scores().to_pylist() if row["metric"] == metric]
        found = [row for row in done.results.read_scores().to_pylist() if row["metric"] == metric]
        assert [row["score"] for row in found] == pytest.approx(expected, abs=1e-6)
        assert [(row["seed"], row["caption"]) for row in found] == [(row["seed"], row["caption"]) for row in rows]
    assert pq.read_table(f"{done.folder}/scores.parquet").column_names[-3:] == ["seed", "caption", "settings"]
    manifest = json.loads(Path(done.folder, "manifest.json").read_text())
    assert manifest["config"]["benchmark"]["columns"]["extra"] == ["seed", "caption"]
    again = run_config(make_score_config(tmp_path / "rows", tmp_path / "two", *CAPTIONED_OPTIONS))
    assert again.computed == 0 and again.results.read_scores().column_names[-1] == "settings"


def test_a_broken_file_of_rows_with_prompts_loses_no_row(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows/a.parquet", list_captioned_images("atlas", 4))
    write_rows(tmp_path / "rows/b.parquet", list_captioned_images("flint", 4))
    config = make_score_config(
        tmp_path / "rows", tmp_path / "store", *CAPTIONED_OPTIONS, CLIPSCORE_OPTION, "benchmark.columns.extra=*"
    )
    plan = plan_sweep(config)
    (tmp_path / "rows/b.parquet").unlink()
    done = run_plan(plan)
    assert (len(done.results.read_scores()), done.results.n_null) == (8, 4)
    lost = [row for row in done.results.read_scores().to_pylist() if row["score"] is None]
    assert all(row["seed"] is None and "has disappeared" in row["error"]["message"] for row in lost)

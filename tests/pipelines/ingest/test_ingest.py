"""An ingest keeps rows unchanged, works the same on disk and on S3, writes each row once, and reports every loss."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.pipelines.ingest import shards as ingest_shards
from plumbline.pipelines.ingest.ingest import IngestResult, ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig, IngestLimits
from plumbline.pipelines.ingest.ingest_output import IngestRecords
from plumbline.pipelines.ingest.shards import ShardRecord
from plumbline.pipelines.ingest.tars import ALWAYS_ALLOWED_BYTES
from plumbline.pipelines.sources.input_columns import InputColumnsConfig
from tests.bench_of import plan_bench, read_image_rows, read_prompt_rows
from tests.files import make_tar

ROOT = Path(__file__).parents[3]
TEXT_BY_PROMPT = {row["prompt_id"]: row["text"] for row in read_prompt_rows(64)}


def make_source_rows(count: int, generator: str = "atlas") -> list[dict[str, Any]]:
    """Return image rows of the embedded benchmark, with the texts of their prompts."""
    return [
        {**row, "text": TEXT_BY_PROMPT[row["prompt_id"]], "generator": generator}
        for row in read_image_rows(generator, count)
    ]


def write_files(folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Write the images as files; return the rows of a table that refers to them."""
    table = []
    for row in rows:
        file = folder / row["generator"] / f"{row['image_id']}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(row["image"])
        table.append({"file": str(file.relative_to(folder)), "prompt": row["text"], "generator": row["generator"]})
    return table


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_tar(path: Path, members: Sequence[tuple[str, bytes]], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_tar(members, mode))
    return path


def list_members(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, bytes]]:
    """Return the tar members of each row: an image, its JSON and its text."""
    found: list[tuple[str, bytes]] = []
    for row in rows:
        fields = {"prompt_id": row["prompt_id"], "generator": row["generator"], "seed": 7}
        found.append((f"{row['image_id']}.png", row["image"]))
        found.append((f"{row['image_id']}.json", json.dumps(fields).encode()))
        found.append((f"{row['image_id']}.txt", row["text"].encode()))
    return found


def run_ingest(output: str | Path, **options: Any) -> IngestResult:
    return ingest(IngestConfig(output=str(output), **options), lambda record: None)


def open_filesystem(url: str) -> fsspec.AbstractFileSystem:
    return fsspec.filesystem("s3" if url.startswith("s3://") else "file", use_listings_cache=False)


def read_table(url: str | Path) -> pa.Table:
    with open_filesystem(str(url)).open(str(url), "rb") as stream:
        return pq.ParquetFile(stream, pre_buffer=False).read(use_threads=False)


def read_shard_rows(output: str | Path, ended: IngestResult) -> list[dict[str, Any]]:
    return [row for record in ended.shards for row in read_table(f"{output}/{record.path}").to_pylist()]


def read_files(output: str | Path) -> dict[str, bytes]:
    """Return the bytes of every file that a reader of the output sees, keyed by path."""
    fs = open_filesystem(str(output))
    root = fs._strip_protocol(str(output))
    files = [path for path in fs.find(root) if "/." not in path.removeprefix(root)]
    return {path.removeprefix(root): fs.cat_file(path) for path in files}


def list_rejections(output: str | Path) -> list[tuple[int | None, str]]:
    return [(row["line"], row["kind"]) for row in read_table(f"{output}/rejected.parquet").to_pylist()]


def read_manifest(output: str | Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(open_filesystem(str(output)).cat_file(f"{output}/manifest.json"))
    return values


def upload(folder: Path, place: str) -> None:
    open_filesystem(place).put(f"{folder}/", f"{place}/in/", recursive=True)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_table_and_its_files_become_shards(place: str, kind: str, tmp_path: Path) -> None:
    rows = [*make_source_rows(5), *make_source_rows(3, "flint")]
    table = [{**row, "seed": index} for index, row in enumerate(write_files(tmp_path / "in", rows))]
    (write_csv if kind == "csv" else write_lines)(tmp_path / f"in/table.{kind}", table)
    upload(tmp_path / "in", place)
    ended = run_ingest(f"{place}/out", table=f"{place}/in/table.{kind}", shard_rows=2, row_group_rows=1)
    assert (ended.exit_code, ended.rows, ended.rejected) == (0, 8, [])
    assert [(record.path, record.rows) for record in ended.shards] == [
        ("atlas/00000.parquet", 2), ("atlas/00001.parquet", 2), ("atlas/00002.parquet", 1),
        ("flint/00000.parquet", 2), ("flint/00001.parquet", 1),
    ]  # fmt: skip
    found = read_shard_rows(f"{place}/out", ended)
    assert [row["image"] for row in found] == [row["image"] for row in rows]
    assert [row["image_id"] for row in found] == [row["file"] for row in table]
    assert [row["prompt"] for row in found] == [row["text"] for row in rows]
    assert [row["seed"] for row in found] == [str(i) if kind == "csv" else i for i in range(8)]
    texts = {row["prompt_id"]: row["text"] for row in read_table(f"{place}/out/prompts.parquet").to_pylist()}
    assert [texts[row["prompt_id"]] for row in found] == [row["text"] for row in rows]
    [manifest] = read_manifest(f"{place}/out")["ingests"]
    assert (manifest["rows_in"], manifest["rows_written"], manifest["rejected"]) == (8, 8, 0)
    assert [shard["path"] for shard in manifest["shards"]] == [record.path for record in ended.shards]
    for record in ended.shards:
        assert open_filesystem(place).size(f"{place}/out/{record.path}") == record.bytes


@pytest.mark.parametrize("ending, mode", [("tar", "w"), ("tar.gz", "w:gz")])
def test_tars_become_shards(place: str, ending: str, mode: str, tmp_path: Path) -> None:
    rows = [*make_source_rows(5), *make_source_rows(3, "flint")]
    write_tar(tmp_path / f"in/a.{ending}", list_members(rows[:6]), mode)
    write_tar(tmp_path / f"in/b.{ending}", list_members(rows[6:]), mode)
    upload(tmp_path / "in", place)
    ended = run_ingest(f"{place}/out", tars=f"{place}/in", shard_rows=4)
    assert (ended.exit_code, ended.rejected) == (0, [])
    assert [(record.path, record.rows) for record in ended.shards] == [
        ("atlas/00000.parquet", 4), ("atlas/00001.parquet", 1), ("flint/00000.parquet", 1), ("flint/00001.parquet", 2),
    ]  # fmt: skip
    found = read_shard_rows(f"{place}/out", ended)
    for name, origin in (("image", "image"), ("prompt", "text"), ("prompt_id", "prompt_id")):
        assert [row[name] for row in found] == [row[origin] for row in rows]
    assert json.loads(found[0]["sample"])["seed"] == 7
    assert found[0]["image_id"] == f"a/{rows[0]['image_id']}"
    before = read_files(f"{place}/out")
    again = run_ingest(f"{place}/out", tars=f"{place}/in", shard_rows=4)
    assert not any(record.written for record in again.shards) and read_files(f"{place}/out") == before


def test_a_video_is_ingested_like_an_image(tmp_path: Path) -> None:
    clips = [b"\0\0\0\x18ftypisom" + bytes([number]) for number in range(4)]
    write_tar(tmp_path / "in/reel.tar", [m for n in range(2) for m in ((f"{n}.mp4", clips[n]), (f"{n}.txt", b"a cat"))])
    of_tars = run_ingest(tmp_path / "tars", tars=str(tmp_path / "in"), generator="reel")
    assert [row["image"] for row in read_shard_rows(tmp_path / "tars", of_tars)] == clips[:2]
    for number, clip in enumerate(clips[2:]):
        (tmp_path / f"{number}.webm").write_bytes(clip)
    table = write_csv(tmp_path / "table.csv", [{"file": f"{n}.webm", "prompt": "a cat"} for n in range(2)])
    of_table = run_ingest(tmp_path / "out", table=str(table), generator="reel")
    assert [row["image"] for row in read_shard_rows(tmp_path / "out", of_table)] == clips[2:]


def test_ingested_images_can_be_swept(tmp_path: Path) -> None:
    rows = [*make_source_rows(6), *make_source_rows(6, "flint")]
    table = write_csv(tmp_path / "table.csv", write_files(tmp_path, rows))
    run_ingest(tmp_path / "out", table=str(table), shard_rows=4, row_group_rows=2)
    ours = (f"benchmark.prompts={tmp_path}/out/prompts.parquet", f"benchmark.images={tmp_path}/out")
    planned = plan_bench(tmp_path, tmp_path / "store", *ours)
    assert planned.sources.generators == ["atlas", "flint"] and planned.sources.broken == []
    assert len(planned.sources.prompts) == 6
    assert [shard.rows for shard in planned.sources.image_shards] == [4, 2, 4, 2]


def test_every_rejected_row_is_kept_with_its_line_and_reason(tmp_path: Path) -> None:
    good = write_files(tmp_path, make_source_rows(4))
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "large.png").write_bytes(b"x" * 50_000)
    bad = [
        {"file": "absent.png", "prompt": "a", "generator": "atlas"},
        {"file": good[0]["file"], "prompt": "  ", "generator": "atlas"},
        {"file": "../outside.png", "prompt": "a", "generator": "atlas"},
        {"file": "empty.png", "prompt": "a", "generator": "atlas"},
        {"file": "large.png", "prompt": "a", "generator": "atlas"},
        {"file": "atlas", "prompt": "a", "generator": "atlas"},
        good[0],
        {"file": good[1]["file"], "prompt": "a", "generator": "../up"},
        {"file": good[1]["file"], "prompt": "a", "generator": ""},
        {"file": "", "prompt": "a", "generator": "atlas"},
        {"file": f"{good[0]['file']}/x.png", "prompt": "a", "generator": "atlas"},
    ]
    table = write_csv(tmp_path / "table.csv", [*good, *bad])
    limits = IngestLimits(max_bytes=49_999)
    ended = run_ingest(tmp_path / "out", table=str(table), limits=limits, max_failed=0.9)
    assert (ended.exit_code, ended.rows) == (2, 4)
    assert list_rejections(tmp_path / "out") == [
        (6, "missing_image"), (7, "empty_prompt"), (8, "outside_folder"), (9, "missing_image"), (10, "image_too_large"),
        (11, "missing_image"), (12, "duplicate_id"), (13, "bad_generator"), (14, "no_generator"), (15, "missing_image"),
        (16, "missing_image"),
    ]  # fmt: skip
    assert all(rejection.file == str(table) and rejection.message for rejection in ended.rejected)
    [manifest] = read_manifest(tmp_path / "out")["ingests"]
    assert manifest["rows_in"] == 15 and manifest["rejected_kinds"]["missing_image"] == 5
    assert run_ingest(tmp_path / "out", table=str(table), limits=limits).exit_code == 1


def test_a_row_whose_prompt_id_has_another_text_is_rejected(tmp_path: Path) -> None:
    files = write_files(tmp_path, make_source_rows(3))
    ids = [{**row, "prompt_id": "7", "prompt": text} for row, text in zip(files, ("a", "b", ""), strict=True)]
    ended = run_ingest(tmp_path / "out", table=str(write_csv(tmp_path / "table.csv", ids)))
    assert [rejection.kind for rejection in ended.rejected] == ["other_prompt"]
    assert read_table(tmp_path / "out/prompts.parquet").to_pylist() == [{"prompt_id": "7", "text": "a", "skills": []}]
    assert [row["prompt"] for row in read_shard_rows(tmp_path / "out", ended)] == ["a", None]


def test_lines_that_are_not_json_are_rejected_by_their_number(tmp_path: Path) -> None:
    good = write_files(tmp_path, make_source_rows(2))
    lines = [
        b"\xef\xbb\xbf" + json.dumps(good[0]).encode(),
        b"{not json",
        b"",
        b"[1]",
        b'{"file": "\xff.png"}',
        json.dumps({**good[1], "prompt": "half \ud800"}).encode(),
        json.dumps({**good[1], "prompt": ["a"]}).encode(),
        json.dumps(good[1]).encode(),
    ]
    (tmp_path / "table.jsonl").write_bytes(b"\n".join(lines))
    ended = run_ingest(tmp_path / "out", table=str(tmp_path / "table.jsonl"))
    assert ended.rows == 2
    assert list_rejections(tmp_path / "out") == [
        (2, "unreadable_json"), (4, "unreadable_json"), (5, "not_utf8"), (6, "not_utf8"), (7, "bad_value"),
    ]  # fmt: skip


def test_lines_that_are_not_csv_are_rejected_by_their_number(tmp_path: Path) -> None:
    good = write_files(tmp_path, make_source_rows(3))
    cells = [[row["file"].encode(), row["prompt"].encode()] for row in good]
    lines = [
        b"\xef\xbb\xbffile,prompt",
        cells[0][0] + b',"two\nlines"',
        b"too,many,cells",
        cells[1][0] + b",caf\xe9",
        cells[1][0] + b',"a"b',
        b",".join(cells[1]),
        cells[2][0] + b',"never closed',
        b"so this belongs to it,",
    ]
    (tmp_path / "table.csv").write_bytes(b"\r\n".join(lines))
    ended = run_ingest(tmp_path / "out", table=str(tmp_path / "table.csv"), generator="atlas")
    assert [row["prompt"] for row in read_shard_rows(tmp_path / "out", ended)] == ["two\nlines", good[1]["prompt"]]
    assert list_rejections(tmp_path / "out") == [
        (4, "wrong_columns"), (5, "not_utf8"), (6, "unreadable_line"), (8, "unreadable_line"), (9, "empty_prompt"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "prompt, later",
    [
        ('"a cat', "a dog"),
        ('"a cat', '"a dog, black"'),
        ('"a cat', 'a screen of 55"'),
        ('"a cat', '"two\nlines"'),
        ('"Stay," said the cat', "a dog"),
    ],
)
def test_a_stray_quote_only_costs_its_own_row(tmp_path: Path, prompt: str, later: str) -> None:
    files = [row["file"] for row in write_files(tmp_path, make_source_rows(40))]
    lines = ["file,prompt", *(f"{file},plain" for file in files[:20]), f"{files[20]},{prompt}",
             *(f"{file},plain" for file in files[21:30]), f"{files[30]},{later}",
             *(f"{file},plain" for file in files[31:])]  # fmt: skip
    (tmp_path / "table.csv").write_text("\n".join(lines))
    ended = run_ingest(tmp_path / "out", table=str(tmp_path / "table.csv"), generator="atlas")
    assert (
        list_rejections(tmp_path / "out") == [(22, "unreadable_line")]
        and "correct its quotes" in ended.rejected[0].message
    )
    assert [row["image_id"] for row in read_shard_rows(tmp_path / "out", ended)] == files[:20] + files[21:]


def test_a_prompt_of_several_lines_is_one_row_with_any_content(tmp_path: Path) -> None:
    files = [row["file"] for row in write_files(tmp_path, make_source_rows(2))]
    text = 'a sign, in two lines\nthat says "a.png", or\n\nnothing, else'
    write_csv(tmp_path / "table.csv", [{"file": file, "prompt": f"{file}: {text}"} for file in files])
    ended = run_ingest(tmp_path / "out", table=str(tmp_path / "table.csv"), generator="atlas")
    assert [row["prompt"] for row in read_shard_rows(tmp_path / "out", ended)] == [f"{file}: {text}" for file in files]
    assert ended.rejected == []


def test_a_repeated_field_is_refused_and_not_overwritten(tmp_path: Path) -> None:
    [row] = write_files(tmp_path, make_source_rows(1))
    good = json.dumps(row)
    (tmp_path / "t.jsonl").write_text(
        f'{good[:-1]}, "prompt": "another"}}\n{good[:-1]}, "n": {{"a": 1, "a": 2}}}}\n{good}\n'
    )
    ended = run_ingest(tmp_path / "out", table=str(tmp_path / "t.jsonl"))
    assert list_rejections(tmp_path / "out") == [(1, "unreadable_json"), (2, "unreadable_json")] and ended.rows == 1
    assert "the field 'prompt' occurs twice" in ended.rejected[0].message


@pytest.mark.parametrize(
    "values, stored",
    [([2**53 + 1, 1], [2**53 + 1, 1]), ([2**53 + 1, 0.5], [str(2**53 + 1), "0.5"]), ([2**53, 0.5], [2.0**53, 0.5])],
)
def test_integers_are_not_rounded_in_a_column_that_also_has_fractions(
    tmp_path: Path, values: list[float], stored: list[Any]
) -> None:
    rows = [{**row, "seed": seed} for row, seed in zip(write_files(tmp_path, make_source_rows(2)), values, strict=True)]
    ended = run_ingest(tmp_path / "out", table=str(write_lines(tmp_path / "t.jsonl", rows)))
    assert [row["seed"] for row in read_shard_rows(tmp_path / "out", ended)] == stored


def test_a_link_out_of_the_images_is_only_followed_if_its_folder_is_listed(tmp_path: Path) -> None:
    table = write_files(tmp_path / "in", make_source_rows(3))
    (tmp_path / "elsewhere").mkdir()
    secret = tmp_path / "elsewhere/secret.png"
    secret.write_bytes(b"secret")
    links = {"link.png": secret, "folder": tmp_path / "elsewhere", "inner.png": tmp_path / "in" / table[1]["file"]}
    for name, target in links.items():
        (tmp_path / "in" / name).symlink_to(target)
    rows = [{**table[0], "file": file} for file in (table[0]["file"], "link.png", "folder/secret.png", "inner.png")]
    write_csv(tmp_path / "in/table.csv", rows)
    (tmp_path / "linked").symlink_to(tmp_path / "in")
    options = {"table": str(tmp_path / "linked/table.csv"), "max_failed": 0.5}
    ended = run_ingest(tmp_path / "out", **options)
    assert list_rejections(tmp_path / "out") == [(3, "outside_folder"), (4, "outside_folder")] and ended.rows == 2
    assert "a link points outside" in ended.rejected[0].message and "link_roots" in ended.rejected[0].message
    assert not any(b"secret" in row["image"] for row in read_shard_rows(tmp_path / "out", ended))
    allowed = run_ingest(tmp_path / "allowed", **options, link_roots=(str(tmp_path / "elsewhere"),))
    assert allowed.rows == 4 and read_shard_rows(tmp_path / "allowed", allowed)[1]["image"] == b"secret"


def test_a_linked_tar_is_read_or_refused_by_name_and_never_ignored(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "elsewhere/a.tar", list_members(make_source_rows(2)))
    (tmp_path / "in").mkdir()
    (tmp_path / "in/link.tar").symlink_to(tar)
    for pattern in ("in", "in/*.tar"):
        with pytest.raises(ConfigError, match=r"in/link\.tar: a link points outside .*/in; put the tar itself there"):
            run_ingest(tmp_path / "out", tars=f"{tmp_path}/{pattern}")
    assert run_ingest(tmp_path / "out", tars=f"{tmp_path}/in/link.tar").rows == 2
    assert run_ingest(tmp_path / "in_roots", tars=f"{tmp_path}/in", link_roots=(str(tmp_path / "elsewhere"),)).rows == 2
    (tmp_path / "in/link.tar").unlink()
    (tmp_path / "in/notes.txt").symlink_to("nowhere")
    (tmp_path / "in/more").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"in/more/a\.tar: a link points outside .*/in; put the tar itself there"):
        run_ingest(tmp_path / "out", tars=f"{tmp_path}/in")
    assert run_ingest(tmp_path / "more", tars=f"{tmp_path}/in", link_roots=(str(tmp_path / "elsewhere"),)).rows == 2
    (tmp_path / "in/broken.tar").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"in/broken\.tar: not found"):
        run_ingest(tmp_path / "out", tars=f"{tmp_path}/in")


@pytest.mark.parametrize("value", ["NaN", "1.5", "true", '["a"]', "{}"])
def test_an_id_that_is_neither_text_nor_an_integer_is_refused(tmp_path: Path, value: str) -> None:
    [row] = write_files(tmp_path, make_source_rows(1))
    (tmp_path / "t.jsonl").write_text(f'{json.dumps(row)[:-1]}, "prompt_id": {value}}}')
    assert [rejection.kind for rejection in run_ingest(tmp_path / "out", table=str(tmp_path / "t.jsonl")).rejected] == [
        "bad_value"
    ]


def test_columns_have_the_common_type_of_their_values(tmp_path: Path) -> None:
    extras = [
        {"seed": 1, "scale": 7, "tags": ["a"], "mixed": 1, "sure": True, "deep": {"a": 1}, "none": None},
        {"seed": 2, "scale": 7.5, "tags": [], "mixed": "x", "sure": None, "deep": [1]},
    ]
    rows = [{**row, **more} for row, more in zip(write_files(tmp_path, make_source_rows(2)), extras, strict=True)]
    ended = run_ingest(tmp_path / "out", table=str(write_lines(tmp_path / "t.jsonl", rows)), shard_rows=1)
    tables = [read_table(tmp_path / "out" / record.path) for record in ended.shards]
    assert tables[0].schema.equals(tables[1].schema)
    types = {field.name: str(field.type) for field in tables[0].schema}
    assert types == {
        "image_id": "string", "prompt_id": "string", "image": "binary", "prompt": "string", "seed": "int64",
        "scale": "double", "tags": types["tags"], "mixed": "string", "sure": "bool", "deep": "string", "none": "string",
        "settings": "struct<cfg: string, steps: string, size: string, seed: string, sampler: string>",
    }  # fmt: skip
    assert [row["tags"] for row in read_shard_rows(tmp_path / "out", ended)] == [["a"], []]
    assert [row["deep"] for row in read_shard_rows(tmp_path / "out", ended)] == ['{"a": 1}', "[1]"]


def test_a_tar_only_loses_its_bad_members(tmp_path: Path) -> None:
    rows = make_source_rows(3)
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as archive:

        def add(name: str, content: bytes = b"", **attributes: Any) -> None:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            for key, value in attributes.items():
                setattr(header, key, value)
            archive.addfile(header, io.BytesIO(content))

        add("dir", type=tarfile.DIRTYPE)
        add("dir/good.v2.png", b"no image: the dot cuts the name, and this ending is none")
        add("dir/good.png", rows[0]["image"])
        add("dir/good.txt", b"a cat\n")
        add("link.png", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        add("hard.png", type=tarfile.LNKTYPE, linkname="dir/good.png")
        add("device.png", type=tarfile.CHRTYPE)
        add("no_image.txt", b"a dog")
        add("no_prompt.png", rows[1]["image"])
        add("two.png", b"1")
        add("two.jpg", b"2")
        add("two.txt", b"a")
        add("half.png", b"x" * 50_000)
        add("half.jpg", b"1")
        add("half.txt", b"a")
        add("large.png", b"x" * 50_000)
        add("large.txt", b"a")
        add("long.png", b"1")
        add("long.txt", b"a" * (2**20 + 1))
        add("json.png", b"1")
        add("json.json", b"{")
        add("../../up.png", rows[2]["image"])
        add("../../up.txt", b"a bird")
    ended = run_ingest(tmp_path / "out", tars=str(path), generator="sd xl", limits=IngestLimits(max_bytes=49_999))
    assert [(row["image_id"], row["prompt"]) for row in read_shard_rows(tmp_path / "out", ended)] == [
        ("bad/dir/good", "a cat"),
        ("bad/../../up", "a bird"),
    ]
    assert {Path(rejection.file).name: rejection.kind for rejection in ended.rejected} == {
        "link": "refused_member", "hard": "refused_member", "device": "refused_member",
        "no_image": "missing_image", "no_prompt": "empty_prompt", "two.png": "several_images",
        "two.jpg": "several_images", "half.png": "several_images", "half.jpg": "several_images",
        "good.v2.png": "dotted_name", "large": "image_too_large",
        "long": "text_too_large", "json": "unreadable_json",
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tar", "out"], "nothing is extracted"


def write_damaged_tar(folder: Path, damage: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write a tar of the rows with this kind of damage at the third sample; return its path."""
    whole = write_tar(folder / "whole.tar", list_members(rows)).read_bytes()
    with tarfile.open(folder / "whole.tar") as archive:
        third, text = (archive.getmember(f"{rows[2]['image_id']}.{kind}") for kind in ("png", "txt"))
    packed = gzip.compress(whole)
    content = {
        "content": whole[: third.offset_data + 100],
        "header": whole[: third.offset + 100],
        "between samples": whole[: third.offset],
        "within a sample": whole[: text.offset],
        "garbage": whole[: third.offset] + b"\x07" * 2048 + whole[third.offset + 2048 :],
        "endless": whole[: third.offset] + make_endless_header() + whole[third.offset + 512 :],
        "gzip": packed[: len(packed) * 3 // 4],
        "checksum": packed[:-8] + bytes(4) + packed[-4:],
    }
    (folder / "cut.tar").write_bytes(content[damage])
    return folder / "cut.tar"


def make_endless_header() -> bytes:
    """Return the tar header of a file that claims to have 2^80 bytes."""
    header = tarfile.TarInfo("endless.png")
    header.size = 2**80
    return header.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "cut, whole",
    [
        ("content", 2), ("header", 1), ("between samples", 1), ("within a sample", 2), ("garbage", 1), ("endless", 2),
        ("gzip", None), ("checksum", 3),
    ],
)  # fmt: skip
def test_a_damaged_tar_loses_the_samples_after_the_damage_and_one_before_it(
    tmp_path: Path, cut: str, whole: int | None
) -> None:
    rows = make_source_rows(4)
    ended = run_ingest(tmp_path / "out", tars=str(write_damaged_tar(tmp_path, cut, rows)), max_failed=1.0)
    found = read_shard_rows(tmp_path / "out", ended)
    assert [row["image"] for row in found] == [row["image"] for row in rows[: len(found)]]
    assert len(found) == whole or (whole is None and len(found) < 4)
    [damage] = ended.rejected
    assert (damage.file, damage.kind) == (str(tmp_path / "cut.tar"), "damaged_tar")
    assert "everything after it are lost, and the number of lost rows is unknown" in damage.message


def test_an_unknown_number_of_losses_exceeds_every_budget(tmp_path: Path) -> None:
    tar = write_damaged_tar(tmp_path, "content", make_source_rows(4))
    ended = run_ingest(tmp_path / "out", tars=str(tar), max_failed=1.0)
    assert ended.exit_code == 1 and ended.damaged == [str(tar)]
    assert read_manifest(tmp_path / "out")["ingests"][0]["damaged"] == [str(tar)]
    assert run_ingest(tmp_path / "out", tars=str(tar), max_failed=1.0).exit_code == 1, "even if it is not read again"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["tar", "gz", "bz2", "xz"])
def test_concatenated_tars_are_named_and_the_first_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    rows = make_source_rows(4)
    halves = [write_tar(tmp_path / "half", list_members(half)).read_bytes() for half in (rows[:3], rows[3:])]
    (tmp_path / "joined.tar").write_bytes(b"".join(pack(half) for half in halves))
    ended = run_ingest(tmp_path / "out", tars=str(tmp_path / "joined.tar"), max_failed=1.0)
    assert (ended.rows, ended.exit_code, ended.damaged) == (3, 1, [str(tmp_path / "joined.tar")])
    assert (
        "joined by cat" in ended.rejected[0].message and "give each tar a file of its own" in ended.rejected[0].message
    )


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["tar", "gz"])
def test_a_failure_of_the_storage_does_not_count_as_a_damaged_tar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    content = pack(write_tar(tmp_path / "t.tar", list_members(make_source_rows(2))).read_bytes())

    class FailingFile(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().read(1000)

    monkeypatch.setattr(LocalFileSystem, "open", lambda self, path, mode="rb", **options: FailingFile(content))
    with pytest.raises(ConfigError, match=r"t\.tar: cannot be reached \(.*Input/output error"):
        run_ingest(tmp_path / "out", tars=str(tmp_path / "t.tar"))


def test_a_tar_in_several_compressed_parts_is_read_completely(tmp_path: Path) -> None:
    rows = make_source_rows(2)
    whole = write_tar(tmp_path / "whole", list_members(rows)).read_bytes()
    (tmp_path / "parts.tar.gz").write_bytes(gzip.compress(whole[:700]) + gzip.compress(whole[700:]))
    ended = run_ingest(tmp_path / "out", tars=str(tmp_path / "parts.tar.gz"))
    assert (ended.rows, ended.exit_code) == (2, 0)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_tar_that_unpacks_without_end_is_abandoned(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """Samples that were unpacked before the tar was abandoned are kept."""
    members = [*list_members(make_source_rows(2)), ("zeros.bin", bytes(ALWAYS_ALLOWED_BYTES + 30_000_000))]
    whole = write_tar(tmp_path / "whole", members).read_bytes()
    (tmp_path / "bomb.tar.gz").write_bytes(compress(whole))
    ended = run_ingest(tmp_path / "out", tars=str(tmp_path / "bomb.tar.gz"))
    assert [rejection.kind for rejection in ended.rejected] == ["damaged_tar"] and ended.rows == 2
    assert "unpacks to more than 100 times its size" in ended.rejected[0].message


def test_a_file_that_is_not_a_tar_is_reported_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "no.tar").write_bytes(b"hello" * 1000)
    write_tar(tmp_path / "yes.tar", list_members(make_source_rows(1)))
    ended = run_ingest(tmp_path / "out", tars=f"{tmp_path}/*.tar")
    assert ended.rows == 1 and [rejection.kind for rejection in ended.rejected] == ["damaged_tar"]


def stop_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every commit of a shard after the first `count` fail, as if the disk were full."""
    real, left = ingest_shards.commit_file, [count]

    def commit(*arguments: Any, **options: Any) -> bool:
        if not left[0]:
            raise OSError(28, "No space left on device")
        left[0] -= 1
        return real(*arguments, **options)

    monkeypatch.setattr(ingest_shards, "commit_file", commit)


def write_messy_input(folder: Path, kind: str) -> dict[str, Any]:
    """Write alternating rows of two generators, some of them invalid, as a table or as tars; return ingest options."""
    pairs = zip(make_source_rows(9), make_source_rows(9, "flint"), strict=True)
    rows = [row for pair in pairs for row in pair]
    if kind == "table":
        table = write_files(folder, rows)
        bad = [{**table[0], "file": "absent.png"}, table[3], {**table[5], "prompt": ""}]
        return {"table": str(write_csv(folder / "table.csv", [*table[:10], *bad, *table[10:]])), "shard_rows": 4}
    write_tar(folder / "tars/a.tar", [*list_members(rows[:11]), ("x.txt", b"no image"), *list_members(rows[2:3])])
    write_tar(folder / "tars/b.tar", list_members(rows[11:]))
    return {"tars": str(folder / "tars"), "shard_rows": 2}


@pytest.mark.parametrize("kind", ["table", "tars"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interrupted_and_resumed_ingest_writes_the_same_files(
    kind: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = write_messy_input(tmp_path / "in", kind)
    undisturbed = run_ingest(tmp_path / "one", **options)
    with monkeypatch.context() as patch, pytest.raises(PlumblineError, match="two: the disk is full"):
        stop_after(after, patch)
        run_ingest(tmp_path / "two", **options)
    assert not (tmp_path / "two/manifest.json").exists()
    assert len(list((tmp_path / "two").rglob("*.parquet*"))) == after, "no draft remains"
    again = run_ingest(tmp_path / "two", **options)
    assert sum(not record.written for record in again.shards) == after
    assert read_files(tmp_path / "two") == read_files(tmp_path / "one")
    assert again.rejected == undisturbed.rejected and len(again.rejected) in (2, 3)
    assert not any(record.written for record in run_ingest(tmp_path / "two", **options).shards)


KILLED_INGEST_SCRIPT = """
import os, signal, sys
from plumbline.pipelines.ingest import shards as ingest_shards
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.ingest import ingest
real, left = ingest_shards.commit_file, [2]
def commit(*arguments, **options):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return real(*arguments, **options)
ingest_shards.commit_file = commit
ingest(IngestConfig(output=sys.argv[1], tars=sys.argv[2], shard_rows=2), print)
"""


def test_a_killed_ingest_can_be_continued(place: str, tmp_path: Path) -> None:
    options = write_messy_input(tmp_path / "in", "tars")
    run_ingest(f"{place}/one", **options)
    done = subprocess.run(
        [sys.executable, "-c", KILLED_INGEST_SCRIPT, f"{place}/two", options["tars"]],
        cwd=ROOT,
        env=dict(os.environ),
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    again = run_ingest(f"{place}/two", **options)
    assert sum(not record.written for record in again.shards) == 2
    assert read_files(f"{place}/two") == read_files(f"{place}/one")


def test_concurrent_ingests_of_a_shard_agree_if_equal_and_are_refused_if_different(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write_csv(tmp_path / "table.csv", write_files(tmp_path, make_source_rows(2)))
    real = ingest_shards.commit_file

    def race_ingests(other: int) -> IngestResult:
        """Run two ingests of the same shard; the one with `other` rows per row group commits the shard first.

        The first ingest has two rows per row group, and is about to commit the shard when the other one does.
        """

        def commit(*arguments: Any, **options: Any) -> bool:
            monkeypatch.setattr(ingest_shards, "commit_file", real)
            run_ingest(tmp_path / f"out{other}", table=str(table), row_group_rows=other)
            return real(*arguments, **options)

        monkeypatch.setattr(ingest_shards, "commit_file", commit)
        return run_ingest(tmp_path / f"out{other}", table=str(table), row_group_rows=2)

    assert race_ingests(2).exit_code == 0
    with pytest.raises(ConfigError, match=r"00000\.parquet: another ingest wrote it in the meantime"):
        race_ingests(1)


def test_rows_added_at_the_end_only_rewrite_the_changed_shards(tmp_path: Path) -> None:
    table = write_files(tmp_path, make_source_rows(7))
    path = write_csv(tmp_path / "table.csv", table[:5])
    run_ingest(tmp_path / "out", table=str(path), shard_rows=2)
    write_csv(path, table)
    with pytest.raises(
        ConfigError, match=r"00002\.parquet: .* different input or with different options; set on_change=replace"
    ):
        run_ingest(tmp_path / "out", table=str(path), shard_rows=2)
    ended = run_ingest(tmp_path / "out", table=str(path), shard_rows=2, on_change="replace")
    assert [record.written for record in ended.shards] == [False, False, True, True]
    run_ingest(tmp_path / "anew", table=str(path), shard_rows=2)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "anew")


def test_a_changed_image_stops_the_ingest_or_rewrites_its_shard_and_later_ones(tmp_path: Path) -> None:
    rows = make_source_rows(4)
    table = write_csv(tmp_path / "table.csv", write_files(tmp_path, rows))
    run_ingest(tmp_path / "out", table=str(table), shard_rows=2)
    (tmp_path / "atlas" / f"{rows[3]['image_id']}.png").write_bytes(b"another")
    with pytest.raises(ConfigError, match="on_change=replace"):
        run_ingest(tmp_path / "out", table=str(table), shard_rows=2)
    ended = run_ingest(tmp_path / "out", table=str(table), shard_rows=2, on_change="replace")
    assert [record.written for record in ended.shards] == [False, True]
    assert read_shard_rows(tmp_path / "out", ended)[3]["image"] == b"another"


def test_an_interrupted_replacement_can_be_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write_files(tmp_path, make_source_rows(4))
    path = write_csv(tmp_path / "table.csv", [*table[:2], table[2], table[0]])
    assert run_ingest(tmp_path / "out", table=str(path), shard_rows=2).rows == 3
    write_csv(path, [table[1], table[3], table[2], table[0]])  # the last row is no longer a duplicate
    with monkeypatch.context() as patch, pytest.raises(PlumblineError, match="disk is full"):
        stop_after(1, patch)
        run_ingest(tmp_path / "out", table=str(path), shard_rows=2, on_change="replace")
    assert not (tmp_path / "out/manifest.json").exists()
    assert run_ingest(tmp_path / "out", table=str(path), shard_rows=2, on_change="replace").rows == 4
    run_ingest(tmp_path / "anew", table=str(path), shard_rows=2)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "anew")


def test_shards_whose_input_is_gone_are_reported_and_only_removed_on_request(tmp_path: Path) -> None:
    table = write_files(tmp_path, [*make_source_rows(2, "flint"), *make_source_rows(4)])
    path = write_csv(tmp_path / "table.csv", table)
    run_ingest(tmp_path / "out", table=str(path), shard_rows=2)
    before = read_files(tmp_path / "out")
    write_csv(path, table[:4])
    with pytest.raises(ConfigError, match=r"atlas/00001\.parquet: .* fewer rows .* before; set on_change=rep"):
        run_ingest(tmp_path / "out", table=str(path), shard_rows=2)
    assert read_files(tmp_path / "out") == before
    run_ingest(tmp_path / "out", table=str(path), shard_rows=2, on_change="replace")
    assert not (tmp_path / "out/atlas/00001.parquet").exists()
    write_csv(path, table[:2])
    with pytest.raises(ConfigError, match=r"atlas/00000\.parquet: .* fewer rows .* before; set on_change=rep"):
        run_ingest(tmp_path / "out", table=str(path), shard_rows=2)
    run_ingest(tmp_path / "out", table=str(path), shard_rows=2, on_change="replace")
    assert not (tmp_path / "out/atlas/00000.parquet").exists()
    run_ingest(tmp_path / "anew", table=str(path), shard_rows=2)
    assert read_files(tmp_path / "out") == read_files(tmp_path / "anew")


def test_a_file_that_no_ingest_wrote_is_reported_and_not_touched(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "table.csv", write_files(tmp_path, make_source_rows(2)))
    run_ingest(tmp_path / "out", table=str(path))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "out/atlas/mine.parquet")
    with pytest.raises(ConfigError, match=r"mine\.parquet: .* move it, or choose another output"):
        run_ingest(tmp_path / "out", table=str(path), on_change="replace")
    assert (tmp_path / "out/atlas/mine.parquet").exists()


def ingest_table_and_tars(place: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Ingest a table and tars, each with a rejected row; return the options of both ingests."""
    rows = write_files(folder / "atlas", make_source_rows(3))
    table = write_csv(folder / "atlas/t.csv", [*rows, {**rows[0], "file": "absent.png"}])
    write_tar(folder / "flint.tar", [*list_members(make_source_rows(5, "flint")), ("x.txt", b"no image")])
    first = {"table": str(table), "generator": "atlas"}
    second = {"tars": str(folder / "flint.tar"), "generator": "flint"}
    run_ingest(f"{place}/out", **first)
    run_ingest(f"{place}/out", **second)
    return first, second


def test_ingests_share_an_output_without_touching_each_others_files(place: str, tmp_path: Path) -> None:
    first, second = ingest_table_and_tars(place, tmp_path)
    both = read_files(f"{place}/out")
    alone = run_ingest(f"{place}/alone", **first)
    shard = f"/{alone.shards[0].path}"
    assert both[shard] == read_files(f"{place}/alone")[shard]
    ingests = read_manifest(f"{place}/out")["ingests"]
    assert {entry["source"]["generator"]: entry["rows_written"] for entry in ingests} == {"atlas": 3, "flint": 5}
    assert len(read_table(f"{place}/out/prompts.parquet")) == len({row["text"] for row in make_source_rows(5)}) + 3
    assert sorted(kind for _, kind in list_rejections(f"{place}/out")) == ["missing_image", "missing_image"]
    for options in (first, second, {**first, "on_change": "replace"}, {**second, "on_change": "replace"}):
        again = run_ingest(f"{place}/out", **options)
        assert not any(record.written for record in again.shards) and again.unfinished == []
        assert read_files(f"{place}/out") == both


def test_a_generator_of_another_ingest_is_refused_and_never_replaced(tmp_path: Path) -> None:
    first, _ = ingest_table_and_tars(str(tmp_path), tmp_path)
    before = read_files(tmp_path / "out")
    write_csv(tmp_path / "atlas/other.csv", write_files(tmp_path / "atlas", make_source_rows(2)))
    for other in ({"table": str(tmp_path / "atlas/other.csv")}, {**first, "generator": "flint"}):
        for on_change in ("fail", "replace"):
            with pytest.raises(ConfigError, match=r"(atlas|flint): contains images from another ingest \(ta"):
                run_ingest(tmp_path / "out", **{"generator": "atlas", **other}, on_change=on_change)
            assert read_files(tmp_path / "out") == before


def test_a_prompt_id_may_not_have_another_text_in_another_ingest(tmp_path: Path) -> None:
    for name, text in (("atlas", "a cat"), ("flint", "a dog")):
        [row] = write_files(tmp_path / name, make_source_rows(1, name))
        write_csv(tmp_path / f"{name}/t.csv", [{**row, "prompt_id": "7", "prompt": text}])
    run_ingest(tmp_path / "out", table=str(tmp_path / "atlas/t.csv"))
    before = read_files(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"'7' has a different text in atlas/00000\.parquet, which another ingest"):
        run_ingest(tmp_path / "out", table=str(tmp_path / "flint/t.csv"))
    assert read_files(tmp_path / "out") == before


def test_ingests_that_end_at_the_same_time_keep_each_others_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [write_csv(tmp_path / f"{name}.csv", write_files(tmp_path, make_source_rows(count, name)))
              for name, count in (("atlas", 2), ("flint", 4))]  # fmt: skip
    real = IngestRecords.publish

    def publish(records: IngestRecords, *arguments: Any) -> list[str]:
        """Let another ingest finish after this ingest has read the records, and before it writes the records."""
        monkeypatch.setattr(IngestRecords, "publish", real)
        run_ingest(tmp_path / "out", table=str(tables[1]))
        return real(records, *arguments)

    monkeypatch.setattr(IngestRecords, "publish", publish)
    assert run_ingest(tmp_path / "out", table=str(tables[0])).unfinished == []
    at_once = read_files(tmp_path / "out")
    for table in tables:
        run_ingest(tmp_path / "one_by_one", table=str(table))
    assert at_once == read_files(tmp_path / "one_by_one")


def test_another_interrupted_ingest_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = write_messy_input(tmp_path / "in", "table")
    with monkeypatch.context() as patch, pytest.raises(PlumblineError, match="disk is full"):
        stop_after(1, patch)
        run_ingest(tmp_path / "out", **options)
    [row] = write_files(tmp_path / "more", [{**make_source_rows(1)[0], "generator": "more"}])
    ended = run_ingest(tmp_path / "out", table=str(write_csv(tmp_path / "more/t.csv", [row])))
    assert ended.unfinished == ["atlas"] and read_manifest(tmp_path / "out")["unfinished"] == ["atlas"]
    run_ingest(tmp_path / "out", **options)
    assert read_manifest(tmp_path / "out")["unfinished"] == [] and len(read_manifest(tmp_path / "out")["ingests"]) == 2


def test_nothing_is_added_to_an_output_without_records(tmp_path: Path) -> None:
    _, second = ingest_table_and_tars(str(tmp_path), tmp_path)
    shutil.rmtree(tmp_path / "out/.ingest")
    before = read_files(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"copy \.ingest together with its output"):
        run_ingest(tmp_path / "out", **second)
    assert read_files(tmp_path / "out") == before


@pytest.mark.parametrize("file", ["atlas/00000.parquet", "manifest.json"])
def test_a_damaged_output_is_refused_by_name(tmp_path: Path, file: str) -> None:
    first, _ = ingest_table_and_tars(str(tmp_path), tmp_path)
    (tmp_path / "out" / file).write_bytes(b"PAR1 nothing of the kind PAR1")
    with pytest.raises(ConfigError, match=f"{file}: not written by an ingest, or damaged; move it"):
        run_ingest(tmp_path / "out", **first)


def test_a_flipped_bit_in_an_image_is_found_when_its_shard_is_read(tmp_path: Path) -> None:
    rows = make_source_rows(2)
    run_ingest(tmp_path / "out", table=str(write_csv(tmp_path / "t.csv", write_files(tmp_path, rows))))
    path = tmp_path / "out/atlas/00000.parquet"
    content = bytearray(path.read_bytes())
    content[content.index(rows[1]["image"]) + 50] ^= 1
    path.write_bytes(content)
    with pytest.raises(OSError, match="checksum"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def test_at_most_one_row_group_is_in_memory_and_row_groups_respect_their_limits(tmp_path: Path) -> None:
    rows = [{"image_id": str(i), "image": bytes(1000), "text": "a", "generator": "big"} for i in range(10)]
    table = write_csv(tmp_path / "table.csv", write_files(tmp_path, rows))
    seen: list[ShardRecord] = []
    config = IngestConfig(output=str(tmp_path / "out"), table=str(table), row_group_bytes=2500, shard_rows=6)
    ingest(config, seen.append)
    for record in seen:
        footer = pq.read_metadata(tmp_path / "out" / record.path)
        assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [2] * (record.rows // 2)


def test_columns_and_the_image_folder_can_be_configured(tmp_path: Path) -> None:
    [row] = write_files(tmp_path / "pictures", make_source_rows(1))
    named = {"where": row["file"], "what": "a cat", "who": "sdxl", "n": 5, "p": 9}
    columns = InputColumnsConfig(image="where", prompt="what", generator="who", image_id="n", prompt_id="p")
    table = write_lines(tmp_path / "t.jsonl", [named])
    ended = run_ingest(tmp_path / "out", table=str(table), images=str(tmp_path / "pictures"), columns=columns)
    [found] = read_shard_rows(tmp_path / "out", ended)
    assert (found["image_id"], found["prompt_id"], found["prompt"]) == ("5", "9", "a cat")
    assert (
        set(found) == {"image_id", "prompt_id", "image", "prompt", "settings"} and ended.shards[0].generator == "sdxl"
    )


@pytest.mark.parametrize(
    "name, content, options, problem",
    [
        ("t.csv", "a,b\n", {}, "expected a column of image files"),
        ("t.csv", "file,b\n", {}, "expected a column of prompts"),
        ("t.csv", "file,prompt\n", {}, "no column contains the generator; set generator=NAME"),
        ("t.csv", "file,prompt,image\n", {"generator": "a"}, "'image' is reserved for a column of the shards"),
        ("t.csv", "file,file\n", {}, "2 columns are called 'file'"),
        ("t.csv", "", {}, "the file is empty"),
        ("t.csv", "file,prompt\n".encode("utf-16"), {}, "UTF-16; save it as UTF-8"),
        ("t.csv", "file,prompt\n", {"generator": "a"}, "expected images, found none"),
        (
            "t.csv",
            "file,prompt\n",
            {"columns": InputColumnsConfig(prompt="words")},
            "no column 'words' in .*; found file",
        ),
        ("t.xls", "", {}, r"expected a file that ends in \.csv"),
        ("no/t.csv", None, {}, "not found"),
        ("t.csv", "file,prompt\n", {"generator": "a", "images": "/nowhere"}, "images /nowhere: not found"),
    ],
)
def test_an_unusable_table_is_refused_in_one_line(
    tmp_path: Path, name: str, content: str | bytes | None, options: dict[str, Any], problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match=problem):
        run_ingest(tmp_path / "out", table=str(tmp_path / name), **options)
    assert not (tmp_path / "out").exists()


DOTTED_NAMES: dict[str, tuple[list[str], list[str], dict[str, str], dict[str, str]]] = {
    "a setting in every name": (
        ["cfg7.5_0000.png", "cfg7.5_0000.txt", "cfg7.5_0001.png", "cfg7.5_0001.txt"],
        [],
        {"cfg7.5_0000.png": "dotted_name", "cfg7.5_0001.png": "dotted_name"},
        {},
    ),
    "a version in one name": (
        ["sdxl_0.png", "sdxl_0.txt", "sdxl_0.v2.png", "sdxl_1.png", "sdxl_1.txt"],
        ["sdxl_0", "sdxl_1"],
        {"sdxl_0.v2.png": "dotted_name"},
        {},
    ),
    "further images of a sample": (
        ["0.png", "0.depth.png", "0.edge_map.jpg", "0.edited.png", "0.psd", "0.txt"],
        ["0"],
        {},
        dict.fromkeys(("0.depth.png", "0.edge_map.jpg", "0.edited.png", "0.psd"), "another image of its sample"),
    ),
    "a folder with a dot": (["cfg7.5/0.png", "cfg7.5/0.txt"], ["cfg7.5/0"], {}, {}),
    "one name twice": (["0.png", "0.png", "0.txt"], [], {"0.png": "several_images"}, {}),
    "an image in a format that is not decoded": (["0.heic", "0.txt"], [], {"0": "foreign_format"}, {}),
}


@pytest.mark.parametrize("names, ids, rejected, skipped", DOTTED_NAMES.values(), ids=DOTTED_NAMES)
def test_every_image_of_a_tar_is_ingested_or_gets_its_own_reason(
    names: list[str], ids: list[str], rejected: dict[str, str], skipped: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "t.tar").write_bytes(make_tar([(name, b"content of " + name.encode()) for name in names]))
    for _ in range(2):
        ended = run_ingest(tmp_path / "out", tars=str(tmp_path / "t.tar"), generator="flux")
        rows = {row["image_id"].removeprefix("t/"): row["prompt"] for row in read_shard_rows(tmp_path / "out", ended)}
        assert rows == {name: f"content of {name}.txt" for name in ids}
        place = f"{tmp_path}/t.tar/"
        assert {one.file.removeprefix(place): one.kind for one in ended.rejected} == rejected
        assert {one.file.removeprefix(place): one.message.partition(",")[0] for one in ended.skipped} == skipped
        assert ended.n_found == sum(not name.endswith("txt") for name in names)
        assert all("dot" in one.message for one in ended.rejected if one.kind == "dotted_name")


def test_a_tar_whose_name_is_not_utf8_is_read(tmp_path: Path) -> None:
    content = make_tar([("0.png", b"x"), ("0.txt", b"a cat"), ("1.png", b"x")])
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.tar")).write_bytes(content)
    for _ in range(2):
        ended = run_ingest(tmp_path / "out", tars=str(tmp_path), generator="flux")
        assert [row["image_id"] for row in read_shard_rows(tmp_path / "out", ended)] == [r"caf\xe9/0"]
        assert [one.file for one in ended.rejected] == [rf"{tmp_path}/caf\xe9.tar/1"]

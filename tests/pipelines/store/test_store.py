"""The store behaves the same on a folder and on S3: create-only commits, drafts, and clearly reported damage."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.filesystems import disk, open_filesystem, s3
from plumbline.pipelines.base.storage import StorageConfig, WriteError
from plumbline.pipelines.maintenance.gc_config import GcConfig
from plumbline.pipelines.store.cells import Cell
from plumbline.pipelines.store.checksums import DamagedError
from plumbline.pipelines.store.store import (
    BrokenCellError,
    Store,
    decode_cell,
    encode_cell,
    get_draft_path,
    open_store,
)
from tests.commands import open_store_at
from tests.faults.hook import DISK_FULL_FILE, add_disk_full_fault
from tests.faults.proxy import FaultProxy, run_proxy
from tests.s3 import S3Server

CELL_FOLDER = "scores/12345678"
CELL = Cell(
    node="n", stage="scores", metric="m", key="k" * 64, path=f"{CELL_FOLDER}/atlas/0-kkkkkkkk.parquet", inputs={}
)


def forget_connections() -> None:
    """Clear the cached filesystems, which keep the credentials that they were created with."""
    open_filesystem.cache_clear()
    fsspec.get_filesystem_class("s3").clear_instance_cache()


def make_scores(*values: float | None, retryable: bool = False) -> pa.Table:
    error = {"kind": "x", "message": "y", "retryable": retryable}
    return rows.table(
        [{"image_id": str(n), "score": v, "error": error if v is None else None} for n, v in enumerate(values)],
        schemas.SCORES,
    )


def test_a_cell_is_committed_once_and_the_first_writer_wins(store: Store) -> None:
    assert store.list_files(CELL_FOLDER).keys() == set()
    assert store.save(CELL, make_scores(0.5)).state == "committed"
    assert store.save(CELL, make_scores(0.9)).state == "committed"
    assert store.read(CELL.path, key=CELL.key).column("score").to_pylist() == [0.5]
    assert store.list_files(CELL_FOLDER).keys() == {CELL.path}


def test_one_of_many_racing_writers_wins_and_readers_see_its_complete_cell(store: Store) -> None:
    place = store.place
    contents = [bytes([n]) * 100_000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda data: (place / "race").create(data), contents))
    assert sum(won) == 1
    assert (place / "race").read() == contents[won.index(True)]
    assert [path for path, _ in place.files()] == ["race"], "no leftovers"


@pytest.mark.parametrize("fault", ["lost-500", "lost-reset"])
def test_a_commit_whose_answer_is_lost_is_recognised_as_ours(fault: str, bucket: str, s3_server: S3Server) -> None:
    with run_proxy(FaultProxy(s3_server, 1, share=0.4, faults=[fault])) as endpoint:
        place = StorageConfig(endpoint_url=endpoint).locate(bucket)
        cells = [place / f"cells/{n}" for n in range(3)]
        assert all(cell.create(b"ours") for cell in cells)
        assert not any(cell.create(b"a rival's") for cell in cells)
        assert {cell.read() for cell in cells} == {b"ours"}


def test_a_full_disk_is_reported_with_the_remedy_and_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "write_new_file", add_disk_full_fault(disk.write_new_file))
    store = open_store_at(tmp_path)
    (tmp_path / DISK_FULL_FILE).write_text("0")
    with pytest.raises(WriteError, match=r"0-kkkkkkkk\.parquet: cannot be written .*the disk is full: free some space"):
        store.save(CELL, make_scores(0.5))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert store.save(CELL, make_scores(0.5)).state == "committed"


def test_a_permanent_error_is_committed_and_a_retryable_error_is_only_a_draft(store: Store) -> None:
    assert store.save(CELL, make_scores(0.5, None)).state == "committed"
    other = Cell(
        node="n", stage="scores", metric="m", key="j" * 64, path="scores/12345678/atlas/0-jj.parquet", inputs={}
    )
    outcome = store.save(other, make_scores(0.5, None, retryable=True))
    assert (outcome.state, outcome.rows, outcome.errors) == ("draft", 2, 1)
    assert store.list_files(CELL_FOLDER).keys() == {CELL.path, get_draft_path(other.path)}
    assert store.read(other.path, key=other.key, draft=True).column("score").to_pylist() == [0.5, None]
    assert store.save(other, make_scores(0.5, 0.6)).state == "committed"
    assert other.path in store.list_files(CELL_FOLDER)


def test_a_damaged_cell_and_a_cell_of_another_key_are_refused_by_name(store: Store) -> None:
    store.save(CELL, make_scores(0.5))
    with pytest.raises(BrokenCellError, match=r"0-kkkkkkkk\.parquet: the cell has a different key; run again"):
        store.read(CELL.path, key="another")
    place = store.place
    neighbour = "scores/12345678/atlas/1-jjjjjjjj.parquet"
    for path in (neighbour, get_draft_path(neighbour)):
        (place / path).write((place / CELL.path).read())
        with pytest.raises(
            BrokenCellError, match=r"1-jjjjjjjj\..*parquet: .* \(the file contains a different cell\); run .* again"
        ):
            store.read_cell(path)
    (place / CELL.path).write(b"PAR1 cut short")
    with pytest.raises(BrokenCellError, match=r"0-kkkkkkkk\.parquet: the cell is damaged"):
        store.read(CELL.path, key=CELL.key)


def test_a_cell_opens_in_any_parquet_reader_with_its_provenance(tmp_path: Path) -> None:
    store = open_store_at(tmp_path)
    store.save(CELL, make_scores(0.5))
    assert pq.read_table(tmp_path / CELL.path).to_pandas()["score"].tolist() == [0.5]
    assert CELL.key in pq.read_metadata(tmp_path / CELL.path).metadata[b"plumbline"].decode()


def test_a_file_digest_is_remembered_and_follows_the_file(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = store.digest_file(file, remember=False)
    assert not (store.place / "digests").exists()
    assert store.digest_file(file, remember=True) == store.digest_file(file, remember=True) == first
    assert len(store.files("digests")) == 1
    file.write_bytes(b"other")
    assert store.digest_file(file, remember=True) != first


def test_a_store_that_cannot_be_written_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"store .*file/store: cannot be reached"):
        open_store_at(tmp_path / "file" / "store").check()


@pytest.mark.parametrize("url", ["", " ", "s3://", "s3:///prefix", "s3:/bucket", "file://", "~nobody-here/x", "a\0b"])
def test_an_invalid_address_is_refused_and_nothing_is_written(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^store: .*(; write|; (add it|enter one), or set the variable)"):
        open_store(GcConfig(store=url))
    assert not list(tmp_path.iterdir())


def test_a_store_that_ray_would_delete_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runtime_resources/working_dir_files/_ray_pkg_0123"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=r"working folder of a Ray job, which Ray deletes; choose a permanent"):
        open_store(GcConfig(store="store"))
    assert open_store(GcConfig(store=f"{tmp_path}/store")).place.url == f"{tmp_path}/store"


@pytest.mark.parametrize("name, value", [("AWS_ENDPOINT_URL", "foo"), ("AWS_PROFILE", "nobodys")])
def test_settings_that_the_s3_client_refuses_are_reported_in_one_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_connections()
    for key, secret in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", name: value}.items():
        monkeypatch.setenv(key, secret)
    with pytest.raises(ConfigError, match=rf"store: s3://: .*{value}.*; correct AWS_ENDPOINT_URL"):
        open_store(GcConfig(store="s3://bucket/x"))
    forget_connections()


def test_a_cycle_of_symbolic_links_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match=r"loop/store: its symbolic links form a loop"):
        open_store_at(f"{tmp_path}/loop/store").check()


def test_refusals_by_s3_are_reported_with_the_remedy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_connections()
    with pytest.raises(ConfigError, match="no credentials found; set AWS_ACCESS_KEY_ID"):
        open_store_at("s3://anywhere/x").check()
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    wrong = StorageConfig(key="testkey", secret="wrong", endpoint_url=s3_server.endpoint)
    with pytest.raises(ConfigError, match="access denied") as refusal:
        Store(wrong.locate("s3://anywhere/x")).check()
    assert "wrong" not in str(refusal.value) and "wrong" not in repr(wrong)
    with pytest.raises(ConfigError, match=r"no-such-bucket/x: not found"):
        open_store_at("s3://no-such-bucket/x").check()
    monkeypatch.setattr(s3, "MAX_RETRIES", 1)
    nobody = StorageConfig(endpoint_url="http://127.0.0.1:9", key="a", secret="b")
    with pytest.raises(ConfigError, match=r"cannot be reached.*check AWS_ENDPOINT_URL or storage\.endpoint_url"):
        Store(nobody.locate("s3://anywhere/x")).check()
    with pytest.raises(ConfigError, match=r"ftps://host: Protocol not known: ftps; use .* s3://, gs:// or az://, hf"):
        open_store_at("ftps://host/x").check()


def test_a_table_may_be_a_folder_of_parts(store: Store) -> None:
    schema = pa.schema([("name", pa.string()), ("n", pa.int64())])
    parts = [pa.table({"name": ["a"] * size, "n": list(range(size))}, schema=schema) for size in (5, 0, 3)]
    for number, part in enumerate(parts):
        store.write_table(f"runs/r/scores.parquet/{number}.parquet", part)
    assert store.read_table("runs/r/scores.parquet") == pa.concat_tables(parts)
    encoded = store.read_file("runs/r/scores.parquet/2.parquet", ["name"], encoded=["name"])
    assert encoded.column("name").chunk(0).dictionary.to_pylist() == ["a"]
    assert encoded.column("name").to_pylist() == ["a"] * 3


def test_a_part_is_only_copied_if_it_is_unchanged(store: Store) -> None:
    first, part, other = (f"runs/{run}/scores.parquet/0.parquet" for run in "abc")
    counted = pa.table({"n": [1]})
    store.write_table(first, make_scores(0.5), counted)
    adopted = store.copy_table(first, part, ["score"])
    assert adopted == (make_scores(0.5).select(["score"]), counted)
    store.remove(first)
    assert store.files("runs/a") == [] and store.read_table("runs/b/scores.parquet") == make_scores(0.5)
    assert store.copy_table(first, other, ["score"]) is None, "it is gone"
    store.write_table(first, make_scores(0.5))
    assert store.copy_table(first, other, ["score"]) is None, "it was not counted"
    content = bytearray((store.place / part).read())
    content[len(content) // 2] ^= 1
    (store.place / part).write(bytes(content))
    assert store.copy_table(part, other, ["score"]) is None and not store.is_undamaged(part)
    assert store.files("runs/c") == []


def make_stage_tables() -> dict[str, pa.Table]:
    """Return a table for each stage, with a few rows and a value in every column."""
    error = {"kind": "x", "message": "y", "retryable": False}
    ids = {"image_id": "i", "prompt_id": "p", "generator": "g"}
    asked = {"prompt_id": "p", "prompt": "two cats", "question_id": "q", "text": "how many?", "choices": ["1", "2"]}
    answer = {"question_id": "q", "token_logprobs": [[-0.5], [-1.5]]}
    element = {"question_id": "q", "text": "how many?", "wanted": "2", "given": "1", "score": 0.25}
    scored = {**ids, "metric": "m", "score": 0.25, "n_questions": 1, "truncated": False, "elements": [element]}
    return {
        "questions": rows.table([asked, {**asked, "error": error}], schemas.QUESTIONS),
        "entailment": rows.table([{"prompt_id": "p", "question_id": "q", "p_entail": 0.75}] * 3, schemas.ENTAILMENTS),
        "answers": rows.table([{**ids, "answers": [answer], "basis": "b"}, {**ids, "error": error}], schemas.ANSWERS),
        "similarities": rows.table(
            [{**ids, "similarity": n / 7, "basis": "b"} for n in range(7)], schemas.SIMILARITIES
        ),
        "scores": rows.table([scored] * 5, schemas.ELEMENT_SCORES),
    }


@pytest.mark.parametrize("stage", make_stage_tables())
def test_no_flipped_bit_of_a_cell_is_ever_read_as_another_value(stage: str) -> None:
    """For each stage, 2,000 single bits and 200 pairs of bits are flipped throughout the file."""
    table, drawn = make_stage_tables()[stage], random.Random(0)
    data = encode_cell(table, {"key": "k" * 64, "inputs": ["a", "b"]})
    assert decode_cell(data).table == table
    for number in range(2_200):
        harmed = bytearray(data)
        for _ in range(1 if number < 2_000 else 2):
            place = drawn.randrange(8 * len(data))
            harmed[place // 8] ^= 1 << place % 8
        if harmed != data:
            with pytest.raises(DamagedError):
                decode_cell(bytes(harmed))


@given(st.binary(max_size=400), st.integers(0, 3000))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_other_bytes_and_truncated_cells_count_as_damaged(junk: bytes, kept: int) -> None:
    data = encode_cell(make_scores(0.5, None), {"key": "k" * 64})
    for harmed in (junk, data[: min(kept, len(data) - 1)], data + junk + b"x", junk + b"x" + data):
        with pytest.raises(DamagedError):
            decode_cell(harmed)


def test_the_same_rows_give_the_same_bytes() -> None:
    """A cell that is computed twice therefore has the same bytes, whichever process commits it first."""
    assert encode_cell(make_scores(0.5), {"key": "k"}) == encode_cell(make_scores(0.5), {"key": "k"})


def test_a_renewed_cell_replaces_the_existing_one(store: Store) -> None:
    store.save(CELL, make_scores(0.5))
    store.save(replace(CELL, renew=True), make_scores(0.9))
    assert store.read(CELL.path, key=CELL.key).column("score").to_pylist() == [0.9]

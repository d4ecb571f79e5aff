"""Any number of workers produces the same bytes, even if some die; a small or unchanged input does not need Ray."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.ingest import draft_workers
from plumbline.pipelines.ingest.ingest import ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig, WorkersConfig
from plumbline.pipelines.ingest.shards import ShardRecord
from tests.pipelines.ingest.test_ingest import (
    list_members,
    list_rejections,
    make_source_rows,
    read_files,
    run_ingest,
    write_csv,
    write_files,
    write_messy_input,
    write_tar,
)

ROOT = Path(__file__).parents[3]
ONE_CPU, TWO_CPUS = WorkersConfig(num_cpus=1), WorkersConfig(num_cpus=2)


@pytest.fixture
def always_use_ray(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make even the smallest input start Ray."""
    monkeypatch.setattr(draft_workers, "RAY_START_DELAY", -1.0)


def write_repeated_ids(folder: Path) -> dict[str, Any]:
    """Write four tars that repeat ids, some with a different prompt text; return the options for an ingest."""
    rows = [{**row, "prompt_id": f"p{index % 7}"} for index, row in enumerate(make_source_rows(20))]
    named = [{**row, "text": f"a text of {row['prompt_id']}"} for row in rows]
    wrong = [{**row, "image_id": f"other-{row['image_id']}", "text": "another text"} for row in named[:3]]
    for index, part in enumerate([named[:8], named[4:12], [*wrong, *named[12:16]], named]):
        members = [(name, content.replace(b'"seed"', b'"image_id": "' + name.partition(".")[0].encode() + b'", "seed"'))
                   for name, content in list_members(part)]  # fmt: skip
        write_tar(folder / f"{index}.tar", members)
    return {"tars": str(folder), "shard_rows": 3, "row_group_rows": 2, "max_failed": 1.0}


@pytest.mark.parametrize(
    "kind, place", [("tars", "s3"), pytest.param("table", "folder", marks=pytest.mark.slow)], indirect=["place"]
)
def test_two_workers_write_the_same_as_one(kind: str, place: str, tmp_path: Path, always_use_ray: None) -> None:
    options = write_messy_input(tmp_path / "in", kind)
    one = run_ingest(f"{place}/one", **options, cluster=ONE_CPU)
    two = run_ingest(f"{place}/two", **options, cluster=TWO_CPUS)
    assert read_files(f"{place}/two") == read_files(f"{place}/one") and len(one.shards) > 4
    assert (two.rejected, sorted(two.shards)) == (one.rejected, sorted(one.shards))


def test_ids_of_an_earlier_tar_are_refused_in_every_worker(tmp_path: Path, always_use_ray: None) -> None:
    options = write_repeated_ids(tmp_path / "in")
    one = run_ingest(tmp_path / "one", **options, cluster=ONE_CPU)
    assert one.rows == 20 and {kind for _, kind in list_rejections(tmp_path / "one")} == {
        "duplicate_id",
        "other_prompt",
    }
    run_ingest(tmp_path / "two", **options, cluster=TWO_CPUS)
    assert read_files(tmp_path / "two") == read_files(tmp_path / "one")
    assert not any(record.written for record in run_ingest(tmp_path / "two", **options).shards)


def list_drafters() -> list[int]:
    """Return the ids of the processes that draft shards in this test's Ray session."""
    import ray

    session = ray._private.worker._global_node.get_session_dir_path()  # type: ignore[attr-defined]
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and is_drafter(entry, session)]


def is_drafter(process: Path, session: str) -> bool:
    try:
        files = [str(file.readlink()) for file in (process / "fd").iterdir()]
        return b"ray::Drafter" in (process / "cmdline").read_bytes() and any(session in file for file in files)
    except OSError:  # it has ended
        return False


@pytest.mark.slow
def test_units_of_a_worker_that_dies_are_tried_again(tmp_path: Path, always_use_ray: None) -> None:
    options = write_messy_input(tmp_path / "in", "table") | {"shard_rows": 2}
    run_ingest(tmp_path / "one", **options, cluster=ONE_CPU)
    killed: list[int] = []

    def kill_one(record: ShardRecord) -> None:
        if not killed:
            killed.append(list_drafters()[0])
            os.kill(killed[0], signal.SIGKILL)

    ended = ingest(IngestConfig(output=str(tmp_path / "two"), **options, cluster=TWO_CPUS), kill_one)
    assert killed and ended.rows == 18
    assert read_files(tmp_path / "two") == read_files(tmp_path / "one")


@pytest.mark.slow
def test_units_of_rejected_rows_are_tried_again_if_their_workers_die(tmp_path: Path, always_use_ray: None) -> None:
    for number, row in enumerate(make_source_rows(7)):
        members = list_members([row])
        write_tar(tmp_path / f"in/{number}.tar", members if number < 3 else members[1:])
    killed: list[int] = []

    def kill_all(record: ShardRecord) -> None:
        if not killed:
            killed.extend(list_drafters())
            for process in killed:
                os.kill(process, signal.SIGKILL)

    options = {"tars": f"{tmp_path}/in", "generator": "flux", "max_failed": 1.0}
    ended = ingest(IngestConfig(output=str(tmp_path / "two"), **options, cluster=TWO_CPUS), kill_all)
    assert killed and (ended.rows, ended.kinds) == (3, {"missing_image": 4})
    run_ingest(tmp_path / "one", **options, cluster=ONE_CPU)
    assert read_files(tmp_path / "two") == read_files(tmp_path / "one")


KILLED_INGEST_SCRIPT = """
import os, signal, sys
from plumbline.pipelines.ingest import draft_workers
from plumbline.pipelines.ingest.ingest_config import IngestConfig, WorkersConfig
from plumbline.pipelines.ingest.ingest import ingest
draft_workers.RAY_START_DELAY = -1.0
committed = []
def report(record):
    committed.append(record)
    if len(committed) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
cluster = WorkersConfig(num_cpus=2)
ingest(IngestConfig(output=sys.argv[1], tars=sys.argv[2], shard_rows=2, cluster=cluster), report)
"""


@pytest.mark.slow
def test_an_ingest_whose_driver_was_killed_can_be_continued(tmp_path: Path) -> None:
    options = write_messy_input(tmp_path / "in", "tars")
    run_ingest(tmp_path / "one", **options)
    command = [sys.executable, "-c", KILLED_INGEST_SCRIPT, f"{tmp_path}/two", options["tars"]]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert run_ingest(tmp_path / "two", **options).exit_code == 1
    assert read_files(tmp_path / "two") == read_files(tmp_path / "one")


def test_an_error_in_a_worker_is_reported_in_one_line_and_leaves_no_draft(tmp_path: Path, always_use_ray: None) -> None:
    table = write_csv(tmp_path / "table.csv", write_files(tmp_path, make_source_rows(8)))
    options = {"table": str(table), "shard_rows": 2, "cluster": TWO_CPUS}
    run_ingest(tmp_path / "out", **{**options, "cluster": ONE_CPU})
    (tmp_path / "out/atlas/00002.parquet").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"00002\.parquet: not written by an ingest, or damaged; move it"):
        run_ingest(tmp_path / "out", **options)
    (tmp_path / "out/atlas/00002.parquet").unlink()
    with pytest.raises(ConfigError, match=r"00002\.parquet: this shard was made from|on_change=replace"):
        run_ingest(tmp_path / "out", **options, row_group_rows=1)
    assert sorted(path.name for path in (tmp_path / "out/atlas").iterdir()) == [
        "00000.parquet", "00001.parquet", "00003.parquet"
    ]  # fmt: skip
    again = run_ingest(tmp_path / "out", **{**options, "cluster": ONE_CPU})
    assert [record.written for record in again.shards] == [False, False, True, False]


WITHOUT_RAY_SCRIPT = """
import sys
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.ingest import ingest
ended = ingest(IngestConfig(output=sys.argv[1], table=sys.argv[2], shard_rows=2), lambda record: None)
assert not {"ray", "torch", "transformers"} & set(sys.modules), "imported"
print(sum(record.written for record in ended.shards))
"""


def test_a_small_ingest_and_an_unchanged_one_import_no_ray(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "table.csv", write_files(tmp_path, make_source_rows(6)))
    command = [sys.executable, "-c", WITHOUT_RAY_SCRIPT, f"{tmp_path}/out", str(table)]
    for written in ("3", "0"):
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        assert done.stdout.strip() == written

"""Network faults, killed processes, concurrent sweeps and full disks do not change the tables of a sweep."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from plumbline.pipelines.base.filesystems import disk
from plumbline.pipelines.base.storage import WriteError
from plumbline.pipelines.store.runs import list_run_ids
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import plan_bench, read_image_rows, read_prompt_rows, run_bench, run_plan, write_rows
from tests.commands import open_store_at
from tests.faults import driving
from tests.faults.driving import MAX_WAIT_SECONDS, Driver, list_sweep_arguments, wait_until
from tests.faults.hook import BAIT_MARK, DISK_FULL_FILE, Bait, add_disk_full_fault
from tests.faults.outcomes import assert_same_tables, find_leftovers
from tests.faults.proxy import FaultProxy, run_proxy
from tests.s3 import S3Server

GENERATORS = ("atlas", "flint")
N_IMAGES, SHARD_ROWS = 12, 2
N_CELLS = 2 * len(GENERATORS) * N_IMAGES // SHARD_ROWS
OVERRIDES = ("metric=[edge_density]", f"shard_rows={SHARD_ROWS}")
"""Options of sweeps whose workers import no libraries of a model."""
RAY_OPTION = "cluster=local"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
Etags = Mapping[str, object]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]
"""Each seed draws different faults, times or targets; all but the first are only run by `make slow`."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a benchmark of 24 images in 12 shards, and return its folder."""
    return write_bench(tmp_path_factory.mktemp("bench"))


def write_bench(folder: Path, baited: Bait | None = None) -> Path:
    """Write the benchmark and return its folder; `baited` is an image that blocks the process that decodes it."""
    write_rows(folder / "prompts.parquet", read_prompt_rows(N_IMAGES))
    for generator in GENERATORS:
        rows = read_image_rows(generator, N_IMAGES)
        if baited is not None and baited.generator == generator:
            rows[baited.row]["image"] += BAIT_MARK + str(baited.note).encode()
        write_rows(folder / "images" / generator / "00000.parquet", rows, row_group=SHARD_ROWS)
    return folder


@pytest.fixture(params=["cluster=here", pytest.param(RAY_OPTION, marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest) -> str:
    """Return the option that runs a sweep in this process or on Ray; each test runs once with each."""
    if request.param == RAY_OPTION:
        request.getfixturevalue("ray_cluster")
    return str(request.param)


@pytest.fixture(scope="module")
def undisturbed(bench: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedSweep:
    """Run a sweep over the benchmark without any fault; the tests compare their sweeps with this one."""
    done = run(bench, str(tmp_path_factory.mktemp("undisturbed")))
    assert (done.computed, done.exit_code) == (N_CELLS, 0)
    return done


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.slow), "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    url = str(tmp_path / "store") if request.param == "folder" else request.getfixturevalue("bucket")
    return open_store_at(url)


def run(bench: Path, store: str, *overrides: str) -> FinishedSweep:
    return run_bench(bench, store, *OVERRIDES, *overrides)


def read_etags(store: Store) -> Etags:
    """Return the identity of each cell's file, by path: S3's ETag and time, or inode and modification time."""
    location = store.place
    with suppress(FileNotFoundError):
        found = location.fs.find(location.path, detail=True)
        return {path: _identify_file(entry) for path, entry in found.items() if _is_cell(path)}
    return {}


def _is_cell(path: str) -> bool:
    stage, *_, name = path.split("/")[-4:]
    return stage in ("image_statistics", "scores") and name.endswith(".parquet") and not name.startswith(".")


def _identify_file(entry: Mapping[str, object]) -> object:
    return (entry["ETag"], entry["LastModified"]) if "ETag" in entry else (entry["ino"], entry["mtime"])


@contextmanager
def run_driver(bench: Path, store: Store, cluster: str = RAY_OPTION) -> Iterator[Driver]:
    arguments = list_sweep_arguments(bench, store.place.url, "cluster.num_cpus=2", *OVERRIDES, cluster)
    with driving.run_driver(arguments, bench, os.environ) as started:
        yield started


@pytest.mark.parametrize("seed", SEEDS)
def test_failing_every_fifth_call_changes_no_score(
    seed: int, bench: Path, bucket: str, cluster: str, s3_server: S3Server, undisturbed: FinishedSweep
) -> None:
    proxy = FaultProxy(s3_server, seed)
    with run_proxy(proxy) as endpoint:
        done = run(bench, bucket, cluster, f"storage.endpoint_url={endpoint}")
    assert (done.computed, done.exit_code) == (N_CELLS, 0)
    assert sum(proxy.counts.values()) - proxy.counts["none"] > N_CELLS / 2
    assert_same_tables(done.folder, undisturbed.folder)
    assert len(read_etags(open_store_at(bucket))) == N_CELLS


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_driver_loses_no_committed_cell(
    seed: int, bench: Path, store: Store, cluster: str, undisturbed: FinishedSweep
) -> None:
    """The driver is killed one to three times, later in the sweep each time."""
    committed: Etags = {}
    for count in sorted(random.Random(seed).sample(range(1, N_CELLS), 1 + seed % 3)):
        with run_driver(bench, store, cluster) as started:
            assert wait_until(lambda count=count: len(read_etags(store)) >= count or started.has_ended())
            started.kill()
            assert started.process.returncode == -signal.SIGKILL, started.printed.read_text()
        assert committed.items() <= read_etags(store).items(), "a committed cell was computed again"
        committed = read_etags(store)
    done = run(bench, store.place.url, cluster)
    assert (done.computed, done.exit_code) == (N_CELLS - len(committed), 0)
    assert committed.items() <= read_etags(store).items(), "a committed cell was computed again"
    assert_same_tables(done.folder, undisturbed.folder)


@pytest.mark.slow
def test_the_local_ray_of_a_killed_driver_ends_by_itself(bench: Path, tmp_path: Path) -> None:
    store = open_store_at(tmp_path / "store")
    with run_driver(bench, store) as started:
        assert wait_until(lambda: len(read_etags(store)) > 0 or started.has_ended())
        started.kill()
        assert len(started.find_processes()) > 0, started.printed.read_text()
        assert wait_until(lambda: not started.find_processes())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("seed", range(10))
def test_a_killed_worker_changes_no_score(seed: int, tmp_path: Path, undisturbed: FinishedSweep) -> None:
    choice = random.Random(seed)
    bait = Bait(choice.choice(GENERATORS), choice.randrange(N_IMAGES), tmp_path / "pid")
    bench = write_bench(tmp_path / "bench", bait)
    with ThreadPoolExecutor(1) as pool:
        running: Future[FinishedSweep] = pool.submit(run, bench, str(tmp_path / "store"), RAY_OPTION)
        assert wait_until(lambda: bait.note.exists() or running.done())
        os.kill(int(bait.note.read_text()), signal.SIGKILL)
        done = running.result()
    assert (done.computed, done.exit_code) == (N_CELLS, 0)
    assert_same_tables(done.folder, undisturbed.folder, rtol=1e-5)


@pytest.mark.slow
def test_two_concurrent_sweeps_on_one_store_give_the_same_tables(
    bench: Path, bucket: str, undisturbed: FinishedSweep
) -> None:
    store = open_store_at(bucket)
    with run_driver(bench, store) as one, run_driver(bench, store) as other:
        codes = [started.process.wait(MAX_WAIT_SECONDS) for started in (one, other)]
        assert codes == [0, 0], one.printed.read_text() + other.printed.read_text()
    assert len(list_run_ids(store)) == 2
    for run_id in list_run_ids(store):
        assert_same_tables(f"{store.place.url}/runs/{run_id}", undisturbed.folder)


def test_a_sweep_that_loses_every_race_leaves_the_winners_cells(
    bench: Path, store: Store, cluster: str, undisturbed: FinishedSweep
) -> None:
    planned = [plan_bench(bench, store.place.url, *OVERRIDES, cluster) for _ in range(2)]
    first, won = run_plan(planned[0]), read_etags(store)
    second = run_plan(planned[1])
    assert (first.computed, second.computed) == (N_CELLS, N_CELLS)
    assert read_etags(store) == won
    assert_same_tables(second.folder, undisturbed.folder)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_write_to_a_full_disk_only_fails_its_cell(
    seed: int, bench: Path, tmp_path: Path, cluster: str, undisturbed: FinishedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "write_new_file", add_disk_full_fault(disk.write_new_file))  # Ray's workers inherit this
    store = tmp_path / "store"
    store.mkdir()
    (store / DISK_FULL_FILE).write_text(str(random.Random(seed).randrange(N_CELLS // 2)))
    done = run(bench, str(store), cluster)
    messages = {error["message"] for error in done.results.read_errors().to_pylist()}
    assert done.exit_code == 1 and len(messages) == 1
    (message,) = messages
    assert str(store) in message and "the disk is full: free some space and run again" in message
    assert find_leftovers(store) == []
    again = run(bench, str(store))
    assert (done.computed + again.computed, again.exit_code) == (N_CELLS, 0) and again.computed <= 2
    assert_same_tables(again.folder, undisturbed.folder)


def test_a_sweep_on_a_disk_that_fills_up_continues_when_there_is_space(
    bench: Path, tmp_path: Path, cluster: str, undisturbed: FinishedSweep
) -> None:
    with mount_small_disk(tmp_path / "disk", count_pages(Path(undisturbed.folder).parent.parent) // 2) as disk:
        with suppress(WriteError):  # raised if there is no space for the run's tables either
            assert run(bench, str(disk), cluster).exit_code == 1
        assert find_leftovers(disk) == []
        committed = read_etags(open_store_at(disk))
        assert 0 < len(committed) < N_CELLS
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        again = run(bench, str(disk))
        assert (again.computed, again.exit_code) == (N_CELLS - len(committed), 0)
        assert_same_tables(again.folder, undisturbed.folder)


def count_pages(store: Path) -> int:
    """Return the number of memory pages that a store's files would occupy."""
    return sum(-(-path.stat().st_size // PAGE_BYTES) for path in store.rglob("*") if path.is_file())


@contextmanager
def mount_small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a disk of this many pages and yield its folder; skip the test if the system does not allow mounting."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size * PAGE_BYTES}", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)

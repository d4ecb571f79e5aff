"""Sweeps run on several machines, even if some join late, are lost, or cannot see the driver's files."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pandas as pd
import pytest

from plumbline.pipelines.store.runs import find_newest_run
from plumbline.pipelines.store.store import Store
from tests.bench_of import read_image_rows, read_prompt_rows, run_bench, write_rows
from tests.commands import open_store_at
from tests.faults.driving import (
    Cluster,
    Driver,
    find_working_nodes,
    kill_process,
    list_actors,
    list_workers,
    wait_until,
)
from tests.faults.outcomes import read_scores
from tests.pipelines.ingest.test_ingest import make_source_rows, write_csv, write_files
from tests.ray_head import make_head_environment, run_head
from tests.s3 import S3Server

ROOT = Path(__file__).parent.parent.parent
N_IMAGES, SHARD_ROWS = 24, 2
N_MANY_IMAGES = 128
"""Number of images, large enough that some are left when the first worker is stopped."""
OVERRIDES = ("metric=[edge_density]", f"shard_rows={SHARD_ROWS}")
"""Options of sweeps whose workers import no libraries of a model."""
WORKER_LABEL = "--labels=kind=worker"
WORKER_POOLS = ("+cluster.pools.image_statistics.labels={kind:worker}", "+cluster.pools.scores.labels={kind:worker}")
"""Options that place two pools on machines with the label kind=worker, which the head lacks."""
SECRET = "a-word-that-no-log-may-have"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster whose head has no credentials and keeps its logs in a separate folder."""
    folder = tmp_path_factory.mktemp("cluster")
    logs = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Ray puts sockets here, and their paths must be short
    with run_head(folder / "head.log", "--num-cpus=1", f"--temp-dir={logs}") as head:
        yield Cluster(head, logs, folder)
    shutil.rmtree(logs, ignore_errors=True)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    write_rows(folder / "prompts.parquet", read_prompt_rows(N_IMAGES))
    write_rows(folder / "images/atlas/00000.parquet", read_image_rows("atlas", N_IMAGES), row_group=SHARD_ROWS)
    return folder


@pytest.fixture
def undisturbed(bench: Path, tmp_path: Path) -> pd.DataFrame:
    """Return the scores of an undisturbed run in this process."""
    store = str(tmp_path / "undisturbed")
    run_bench(bench, store, *OVERRIDES)
    return read_newest_scores(open_store_at(store))


def read_newest_scores(store: Store) -> pd.DataFrame:
    return read_scores(f"{store.place.url}/runs/{find_newest_run(store)}")


def count_committed(store: Store) -> int:
    return len(list((store.place / "image_statistics").files()))


@contextmanager
def run_sweep(cluster: Cluster, bench: Path, store: str, *overrides: str) -> Iterator[Driver]:
    with cluster.sweep(bench, store, *OVERRIDES, *overrides, environment={"HF_TOKEN": SECRET}) as job:
        yield job


@pytest.mark.slow
def test_a_sweep_waits_for_late_machines_and_loses_no_scores_if_a_machine_is_lost(
    cluster: Cluster, bench: Path, bucket: str, s3_server: S3Server, undisturbed: pd.DataFrame
) -> None:
    """The logs of the machines contain none of the credentials that the driver passes to them."""
    store = open_store_at(bucket)
    with run_sweep(cluster, bench, bucket, *WORKER_POOLS) as job, ExitStack() as stack:
        assert wait_until(
            lambda: "for machines to join: stage image_statistics" in job.printed.read_text() or job.has_ended()
        )
        nodes = [stack.enter_context(cluster.node(WORKER_LABEL)) for _ in range(2)]
        assert wait_until(lambda: count_committed(store) > 2 or job.has_ended())
        assert not job.has_ended(), job.printed.read_text()
        lost, *_ = find_working_nodes(nodes)
        lost.kill()
        assert job.process.wait(240) == 0, job.printed.read_text()
    pd.testing.assert_frame_equal(read_newest_scores(store), undisturbed, rtol=1e-5)
    assert find_secret(cluster.logs, SECRET) == find_secret(cluster.logs, s3_server.secret) == []


@pytest.mark.slow
def test_a_raylet_that_dies_while_workers_start_loses_nothing_and_leaves_no_traceback(
    cluster: Cluster, bench: Path, tmp_path: Path, undisturbed: pd.DataFrame
) -> None:
    store = open_store_at(tmp_path / "store")
    with cluster.node(WORKER_LABEL) as node, run_sweep(cluster, bench, store.place.url, *WORKER_POOLS) as job:
        assert wait_until(lambda: bool(list_workers(node)) or job.has_ended())
        for pid in list_actors(node, "raylet/raylet"):
            kill_process(pid)
        with cluster.node(WORKER_LABEL):
            assert job.process.wait(240) == 0, job.printed.read_text()
    assert "Traceback" not in job.printed.read_text() and "retries remaining" not in job.printed.read_text()
    pd.testing.assert_frame_equal(read_newest_scores(store), undisturbed, rtol=1e-5)


def find_secret(folder: Path, secret: str) -> list[str]:
    found = subprocess.run(["grep", "-rlas", "--devices=skip", secret, folder], capture_output=True, text=True)
    return found.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="hiding a folder from a process needs root")
@pytest.mark.parametrize("hidden", ["store", "source"])
def test_a_machine_that_does_not_see_the_drivers_folder_is_refused_in_one_line(
    hidden: str, cluster: Cluster, bench: Path, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    without = tmp_path / "store" if hidden == "store" else bench / "images"
    with (
        cluster.node(WORKER_LABEL, without=without),
        run_sweep(cluster, bench, str(tmp_path / "store"), *WORKER_POOLS) as job,
    ):
        assert job.process.wait(120) == 1
    (error,) = [line for line in job.printed.read_text().splitlines() if line.startswith("error:")]
    assert f"does not see the {hidden} {without}" in error
    assert list((tmp_path / "store").glob("image_statistics/**/*.parquet")) == []


INGEST_SCRIPT = """
import sys
from plumbline.pipelines.ingest import draft_workers
from plumbline.jobs.ingest import COMMAND, main
from plumbline.jobs.command import run_job
draft_workers.RAY_START_DELAY = -1.0
sys.exit(run_job(COMMAND, main))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="hiding a folder from a process needs root")
@pytest.mark.parametrize("hidden", ["images", "output"])
def test_an_ingest_uses_no_machine_that_does_not_see_the_images_or_the_output(
    hidden: str, cluster: Cluster, tmp_path: Path
) -> None:
    for folder in ("images", "output"):
        (tmp_path / folder).mkdir()
    rows = write_files(tmp_path / "images", make_source_rows(4))
    write_csv(tmp_path / "table.csv", rows)
    arguments = [f"table={tmp_path}/table.csv", f"images={tmp_path}/images", f"output={tmp_path}/output"]
    with cluster.node(WORKER_LABEL, without=tmp_path / hidden):
        done = subprocess.run(
            [sys.executable, "-c", INGEST_SCRIPT, *arguments, "shard_rows=1",
             f"cluster.address={cluster.head.address}"],
            cwd=ROOT, env=make_head_environment(), check=False, capture_output=True, text=True,
        )  # fmt: skip
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    what = "source" if hidden == "images" else hidden
    assert f"does not see the {what} {tmp_path / hidden}" in error
    assert list((tmp_path / "output").glob("**/*.parquet")) == []


@pytest.mark.slow
def test_a_run_that_lost_all_workers_continues_when_a_machine_joins(
    cluster: Cluster, bench: Path, bucket: str, undisturbed: pd.DataFrame
) -> None:
    """The run also continues if the process of the progress log is killed."""
    store = open_store_at(bucket)
    with cluster.node(WORKER_LABEL) as lost, run_sweep(cluster, bench, bucket, *WORKER_POOLS) as job:
        assert wait_until(lambda: count_committed(store) > 2 or job.has_ended())
        (log,) = list_actors(cluster.head.node, "ProgressLog")
        os.kill(log, signal.SIGKILL)
        known = count_committed(store)
        assert wait_until(lambda: count_committed(store) > known or job.has_ended())
        lost.kill()
        assert wait_until(lambda: "for machines to join" in job.printed.read_text() or job.has_ended())
        with cluster.node(WORKER_LABEL):
            assert job.process.wait(240) == 0, job.printed.read_text()
    pd.testing.assert_frame_equal(read_newest_scores(store), undisturbed, rtol=1e-5)


@pytest.mark.slow
def test_a_sweep_waits_for_missing_machines_up_to_the_limit(cluster: Cluster, bench: Path, tmp_path: Path) -> None:
    with run_sweep(cluster, bench, str(tmp_path / "store"), *WORKER_POOLS, "cluster.wait_seconds=3") as job:
        assert job.process.wait(120) == 1
    lines = job.printed.read_text()
    assert "waiting up to 3 s for machines to join: stage image_statistics" in lines
    assert "error: stage image_statistics: 1 actor(s)" in lines and "with kind=worker cannot be placed" in lines


HOLDER_SCRIPT = """
import sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
class Holder:
    def ready(self):
        return True
holder = ray.remote(num_cpus=2, label_selector={"kind": "room"})(Holder).remote()
ray.get(holder.ready.remote())
print("holds", flush=True)
sys.stdin.read()
"""
SHARED_POOLS = (
    "+cluster.pools.image_statistics={num_cpus:2.75,labels:{kind:room}}",
    "+cluster.pools.scores={num_cpus:1,labels:{kind:room}}",
)
"""Options for two pools that fit on a machine with four CPUs, but only for one sweep at a time.

While another driver holds some of the CPUs, only the second pool fits. If two waiting sweeps each reserved their second
pool, neither could ever start its first pool.
"""


@pytest.mark.slow
def test_two_sweeps_that_need_the_same_resources_both_end_and_report_their_wait(
    cluster: Cluster, bench: Path, tmp_path: Path
) -> None:
    def is_waiting(job: Driver) -> bool:
        return (
            "waiting for room on the cluster for image_statistics, scores" in job.printed.read_text() or job.has_ended()
        )

    def name_store(name: str) -> str:
        return str(tmp_path / name)

    with (
        cluster.node("--num-cpus=4", "--labels=kind=room"),
        subprocess.Popen(
            [sys.executable, "-c", HOLDER_SCRIPT, cluster.head.address],
            cwd=ROOT, env=make_head_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as holder,
        run_sweep(cluster, bench, name_store("first"), *SHARED_POOLS) as first,
    ):  # fmt: skip
        assert holder.stdout is not None and holder.stdin is not None and holder.stdout.readline() == "holds\n"
        assert wait_until(lambda: is_waiting(first))
        with run_sweep(cluster, bench, name_store("second"), *SHARED_POOLS) as second:
            assert wait_until(lambda: is_waiting(second))
            holder.stdin.close()
            codes = [job.process.wait(240) for job in (first, second)]
            assert codes == [0, 0], first.printed.read_text() + second.printed.read_text()
    (said,) = [line for line in second.printed.read_text().splitlines() if line.startswith("waiting for room")]
    assert f"(process {holder.pid})" in said and f"store {name_store('first')}), " in said and "; small (run " in said


@pytest.mark.slow
def test_a_machine_that_joins_a_running_sweep_is_used(cluster: Cluster, tmp_path: Path) -> None:
    """The worker on the first machine is stopped, so only a worker on the second can continue."""
    write_rows(tmp_path / "prompts.parquet", read_prompt_rows(N_MANY_IMAGES))
    write_rows(tmp_path / "images/atlas/00000.parquet", read_image_rows("atlas", N_MANY_IMAGES), row_group=SHARD_ROWS)
    store = open_store_at(tmp_path / "store")
    pools = ("+cluster.pools.image_statistics={num_cpus:1,max_size:2,labels:{kind:worker}}",)
    with cluster.node(WORKER_LABEL) as node, run_sweep(cluster, tmp_path, store.place.url, *pools) as job:
        assert wait_until(lambda: count_committed(store) > 0 or job.has_ended())
        (worker,) = list_workers(node)
        os.kill(worker, signal.SIGSTOP)
        before = count_committed(store)
        with cluster.node(WORKER_LABEL) as joined:
            assert wait_until(lambda: len(list_workers(joined)) > 0 or job.has_ended())
            assert wait_until(lambda: count_committed(store) > before or job.has_ended())
            os.kill(worker, signal.SIGCONT)
            assert job.process.wait(240) == 0, job.printed.read_text()
    assert count_committed(store) == N_MANY_IMAGES // SHARD_ROWS > before

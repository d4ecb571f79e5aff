"""`ray job submit`: the sweep as a job of a Ray head node, with its log the job's and its exit code passed on."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench_of import write_benchmark
from tests.s3 import free_ports

ROOT = Path(__file__).parent.parent.parent
RAY = Path(sys.executable).parent / "ray"


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a head node's job server."""
    log = tmp_path_factory.mktemp("head") / "log"
    port, dashboard, agent, client = free_ports(4)
    with log.open("w") as stream:
        process = subprocess.Popen(
            [RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--num-cpus=4", f"--port={port}",
             "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}",
             f"--ray-client-server-port={client}"],
            stdout=stream, stderr=stream, start_new_session=True, env=environment(),
        )  # fmt: skip
    waiting = threading.Event()
    try:
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            waiting.wait(0.25)
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def environment() -> dict[str, str]:
    path = f"{RAY.parent}:{os.environ['PATH']}"
    local = {"RAY_AUTH_MODE": "disabled", "NO_PROXY": "127.0.0.1,localhost", "RAY_raylet_start_wait_time_s": "180"}
    local["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"  # Ray Data leaves a detached actor, which would be waited for
    return {**os.environ, **local, "PATH": path}


def submit(head: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RAY, "job", "submit", f"--address={head}", "--working-dir=.", "--", *command],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=400,
    )  # fmt: skip


def test_a_submitted_sweep_runs_on_the_cluster_and_its_log_is_the_jobs(head: str, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench")
    sweep = ["python", "-m", "jobs.sweep", "sweep=shapes", f"store={tmp_path}/store", "metric=[clipscore]"]
    sweep += [f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images"]
    done = submit(head, *sweep)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "clipscore: overall" in done.stdout and "\x1b[2K" not in done.stdout
    assert list((tmp_path / "store").glob("runs/*/scores.parquet"))

    failed = submit(head, *sweep, "benchmark.generators=[nobody]")
    assert failed.returncode != 0
    assert "error: benchmark.generators: no folder 'nobody'" in failed.stdout

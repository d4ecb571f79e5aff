"""A given Ray cluster is used and left running; without one a local Ray is started and ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.running import session
from plumbline.pipelines.running.errors import RunnerError
from tests.bench_of import write_benchmark
from tests.ray_head import RESOURCE, RayHead, head_environment
from tests.s3 import free_ports

ROOT = Path(__file__).parents[3]


def test_a_given_cluster_does_the_work_and_goes_on_living(ray_head: RayHead, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    code = (
        "import ray; from tests.bench_of import sweep_config\n"
        "from plumbline.pipelines.sweeps.planning import plan_sweep\n"
        "from plumbline.pipelines.sweeps.sweep import run_sweep\n"
        "seen = []\n"
        f"config = sweep_config({str(folder)!r}, {str(tmp_path / 'store')!r}, 'metric=[clipscore]', 'cluster=local')\n"
        f"done = run_sweep(plan_sweep(config), lambda _: seen.append(ray.cluster_resources().get({RESOURCE!r})))\n"
        "assert not ray.is_initialized(); print(done.computed, done.exit_code, set(seen))"
    )
    environment = {**head_environment(), "RAY_ADDRESS": ray_head.address}
    for computed in (4, 0):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment)
        expected = {1.0} if computed else set()
        assert done.stdout.strip() == f"{computed} 0 {expected}", done.stdout + done.stderr


def test_a_local_ray_that_starts_too_slowly_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_slow(**options: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(session.ray, "init", too_slow)
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = ClusterConfig(pools={})
    with (
        pytest.raises(RunnerError, match=r"^Ray could not be started .*timed out.* set RAY_raylet_start_wait"),
        session.ray_session(cluster),
    ):
        raise AssertionError("there is no Ray")


@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getpid(), 9)", "sys.exit(1)", "raise KeyboardInterrupt"])
def test_a_process_that_is_ended_without_a_word_has_its_last_line_said(end: str) -> None:
    imported = "import os, sys; from plumbline.pipelines.running.session import say_if_killed"
    code = f"{imported}\nwith say_if_killed('error: gone'):\n    {end}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode != 0
    assert ("error: gone" in done.stderr) == end.startswith("os.")


WATCHED = """
import socket, threading
from pathlib import Path
from plumbline.pipelines.running.session import watched
path = Path("raylet")
raylet = socket.socket(socket.AF_UNIX)
raylet.bind(str(path))
raylet.listen()
with watched(path, pause=0.01):
    threading.Event().wait(0.5)
    print("goes on", flush=True)
    {then}
"""


@pytest.mark.parametrize("loss", ["raylet.close()", "raylet.close(); path.unlink()"])
def test_a_driver_whose_raylet_is_gone_ends_though_ray_would_wait_for_ever(loss: str, tmp_path: Path) -> None:
    code = WATCHED.format(then=f"{loss}; threading.Event().wait()")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert (done.returncode, done.stdout) == (1, "goes on\n")


def test_a_driver_whose_raylet_is_there_is_left_alone(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WATCHED.format(then="pass")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert (done.returncode, done.stdout) == (0, "goes on\n")


def test_an_address_where_nothing_is_fails_in_one_line(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    done = subprocess.run(
        [sys.executable, "-m", "jobs.sweep", "sweep=shapes", f"store={tmp_path}/store", f"cluster.address={nobody}",
         f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith(f"error: Ray at '{nobody}': cannot be reached")

"""A run ends with a message if Ray cannot start, cannot be reached or is lost (tests/jobs covers external clusters)."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
import torch

from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.running import session
from plumbline.pipelines.running.errors import RunnerError
from tests.bench_of import Bench, write_benchmark
from tests.environment import ROOT
from tests.ray_head import make_head_environment, run_head
from tests.s3 import find_free_ports


def test_a_local_ray_that_starts_too_slowly_is_reported_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_start(**options: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(session.ray, "init", fail_to_start)
    monkeypatch.setattr(session.ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = ClusterConfig(pools={})
    with (
        pytest.raises(RunnerError, match=r"^Ray could not be started .*timed out.* set RAY_raylet_start_wait"),
        session.open_ray_session(cluster),
    ):
        raise AssertionError("the session was opened although Ray did not start")


CHILDREN_SCRIPT = """
import os, socket, sys, threading
from pathlib import Path
from plumbline.pipelines.running.session import print_if_killed, exit_if_abandoned

def run(case):
{body}

for case in sys.argv[1:]:
    if not (child := os.fork()):
        run(case)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), case, flush=True)
"""


def run_in_children(body: str, folder: Path, *cases: str) -> "subprocess.CompletedProcess[str]":
    """Run a process that forks a child for each case to run the code in `body`; return the finished process."""
    command = [sys.executable, "-c", CHILDREN_SCRIPT.format(body=indent(body, "    ")), *cases]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=240)


def test_the_last_line_of_a_process_that_ends_abruptly_is_reported(tmp_path: Path) -> None:
    ends = ["os._exit(1)", "os.kill(os.getpid(), 9)", "sys.exit(1)", "raise KeyboardInterrupt"]
    done = run_in_children("with print_if_killed(f'gone by {case}'):\n    exec(case)", tmp_path, *ends)
    said = [line for line in done.stderr.splitlines() if line.startswith("gone by")]
    assert said == [f"gone by {end}" for end in ends[:2]] and len(done.stdout.splitlines()) == len(ends), done.stderr


WATCHED_SCRIPT = """
path = Path(f"raylet-{os.getpid()}")
raylet = socket.socket(socket.AF_UNIX)
raylet.bind(str(path))
raylet.listen()
with exit_if_abandoned(path, pause=0.01):
    threading.Event().wait(0.5)
    print("goes on", flush=True)
    exec(case)
"""
LOST_RAYLET_CODE = "; threading.Event().wait()"


def test_a_driver_whose_raylet_is_gone_ends_although_ray_would_wait_for_ever(tmp_path: Path) -> None:
    cases = ["pass", f"raylet.close(){LOST_RAYLET_CODE}", f"raylet.close(); path.unlink(){LOST_RAYLET_CODE}"]
    done = run_in_children(WATCHED_SCRIPT, tmp_path, *cases)
    ended = [f"{code} {case}" for code, case in zip((0, 1, 1), cases, strict=True)]
    assert done.stdout.splitlines() == [line for end in ended for line in ("goes on", end)], done.stderr


def test_an_address_without_a_cluster_fails_in_one_line(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"])
    nobody = f"127.0.0.1:{find_free_ports(1)[0]}"
    done = subprocess.run(
        [sys.executable, "-m", "jobs.sweep", "sweep=shapes", f"store={tmp_path}/store", f"cluster.address={nobody}",
         f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith(f"error: Ray at '{nobody}': cannot be reached")


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("TMPDIR", "{folder}/" + "long/" * 20, "too long for a socket: set TMPDIR to a short path"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (
                    "RAY_ADDRESS",
                    "http://127.0.0.1:8265",
                    "RAY_ADDRESS=http://127.0.0.1:8265 is the address of a job server",
                ),
                ("HOME", "{folder}/file/home", "set each to a folder that can be written"),
            )
        ),
    ],
)
def test_a_variable_that_keeps_ray_from_starting_is_named(
    variable: str, value: str, remedy: str, tmp_path: Path
) -> None:
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=2)
    (tmp_path / "file").write_text("no folder")
    (tmp_path / ("long/" * 20)).mkdir(parents=True)
    environment = {name: text for name, text in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_TMPDIR")}
    done = subprocess.run(
        [sys.executable, "-m", "jobs.sweep", "sweep=own_images", "models=shapes", "metric=[edge_density]",
         "cluster=local", f"store={tmp_path}/store", "benchmark.name=small",
         f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images"],
        capture_output=True, text=True, cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), variable: value.format(folder=tmp_path)},
    )  # fmt: skip
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode == 1 and remedy in line and "short of memory" not in line


def test_a_pool_with_gpus_starts_and_reports_that_torch_sees_no_gpu(tmp_path: Path) -> None:
    """The cluster claims two GPUs, so that the workers start; then torch finds none on most machines."""
    bench = Bench(tmp_path, "metric=[clipscore]", "cluster=local", generators=["atlas"], count=2)
    with run_head(tmp_path / "ray.log", "--num-cpus=4", "--num-gpus=2") as head:
        words = bench.list_arguments(f"cluster.address={head.address}", "cluster.pools.similarities.num_gpus=1")
        done = subprocess.run(
            [sys.executable, "-m", "jobs.sweep", *words],
            capture_output=True, text=True, cwd=ROOT, env=make_head_environment(),
        )  # fmt: skip
    if torch.cuda.is_available():
        assert done.returncode == 0, done.stderr
    else:
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        assert done.returncode == 1 and "the pool has num_gpus > 0 but torch sees no CUDA device" in line

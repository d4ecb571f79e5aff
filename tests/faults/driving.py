"""Runs sweeps that tests can disturb, in separate processes with their own Ray or on a cluster of several nodes."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.bench_of import UNJUDGED_OPTIONS
from tests.ray_head import RayHead, RayNode, find_marked_processes, make_head_environment, run_node

ROOT = Path(__file__).parent.parent.parent
POLL_SECONDS = 0.05
MAX_WAIT_SECONDS = 240
ORPHAN_SECONDS = 10
MARK_VARIABLE = "PLUMBLINE_TEST_MARK"
"""Environment variable that marks a driver and all the processes that it starts."""


def wait_until(met: Callable[[], bool], seconds: float = MAX_WAIT_SECONDS) -> bool:
    """Wait until a condition is met; return False if this takes too long."""
    waiting = threading.Event()
    ends = time.monotonic() + seconds
    while not (now := met()) and time.monotonic() < ends:
        waiting.wait(POLL_SECONDS)
    return now


def kill_process(pid: int) -> bool:
    """Kill a process; return False if it has already ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def list_sweep_arguments(bench: Path | str, store: str, *overrides: str) -> list[str]:
    """Return the command-line arguments of a sweep on Ray over a small benchmark."""
    return [
        *UNJUDGED_OPTIONS, "benchmark.name=small", f"benchmark.prompts={bench}/prompts.parquet",
        f"benchmark.images={bench}/images", f"store={store}", "cluster=local", *overrides,
    ]  # fmt: skip


class Driver:
    """A sweep in a separate process, including all the processes that it starts."""

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self.printed = folder / f"{self.mark}.printed"
        with self.printed.open("wb") as printed:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jobs.sweep", *arguments],
                cwd=ROOT,
                env={**environment, MARK_VARIABLE: self.mark},
                stdout=printed,
                stderr=printed,
            )

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kill only the driver, as the system does when it runs out of memory."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def find_processes(self) -> list[int]:
        """Return the ids of the sweep's running processes, recognised by the mark in their environment."""
        return list(find_marked_processes(MARK_VARIABLE, self.mark))

    def end(self) -> None:
        wait_until(lambda: not self.find_processes(), ORPHAN_SECONDS)
        for pid in self.find_processes():
            kill_process(pid)
        assert wait_until(lambda: not self.find_processes())


@contextmanager
def run_driver(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[Driver]:
    """Start a sweep whose output goes to a file in the folder; at the end, stop everything that it started."""
    started = Driver(arguments, folder, environment)
    try:
        yield started
    finally:
        if not started.has_ended():
            started.kill()
        started.end()


class Cluster(NamedTuple):
    """A Ray cluster: its head, the folder with the head's logs, and the folder for the output of nodes and drivers."""

    head: RayHead
    logs: Path
    folder: Path

    @contextmanager
    def node(self, *flags: str, without: Path | None = None) -> Iterator[RayNode]:
        log = self.folder / f"{len(list(self.folder.iterdir()))}.log"
        with run_node(self.head, log, "--num-cpus=1", *flags, without=without) as node:
            yield node

    @contextmanager
    def sweep(
        self, bench: Path | str, store: str, *overrides: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[Driver]:
        """Start a sweep on this cluster; `environment` contains additional variables for the driver."""
        arguments = list_sweep_arguments(bench, store, f"cluster.address={self.head.address}", *overrides)
        with run_driver(arguments, self.folder, make_head_environment() | dict(environment or {})) as started:
            yield started


def find_working_nodes(nodes: Sequence[RayNode]) -> list[RayNode]:
    return [node for node in nodes if list_workers(node)]


def list_workers(node: RayNode) -> list[int]:
    """Return the ids of a node's processes that are actors of a stage, which Ray Data calls MapWorker."""
    return list_actors(node, "MapWorker")


def list_actors(node: RayNode, kind: str) -> list[int]:
    """Return the ids of a node's processes that are actors of the class `kind`."""
    return [pid for pid, command in node.find_processes().items() if kind in command]

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

from tests.bench_of import UNJUDGED
from tests.ray_head import RayHead, RayNode, head_environment, marked, run_node

ROOT = Path(__file__).parent.parent.parent
POLL_SECONDS = 0.05
MAX_WAIT_SECONDS = 240
ORPHAN_SECONDS = 10
MARK = "PLUMBLINE_TEST_MARK"
"""Environment variable that marks a driver and all the processes that it starts."""


def until(met: Callable[[], bool], seconds: float = MAX_WAIT_SECONDS) -> bool:
    """Wait until a condition is met; return False if this takes too long."""
    waiting = threading.Event()
    ends = time.monotonic() + seconds
    while not (now := met()) and time.monotonic() < ends:
        waiting.wait(POLL_SECONDS)
    return now


def killed(pid: int) -> bool:
    """Send SIGKILL to a process; return False if it has already ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def small_sweep(bench: Path | str, store: str, *overrides: str) -> list[str]:
    """Return the command-line arguments of a sweep over a small benchmark, on Ray."""
    return [
        *UNJUDGED, "benchmark.name=small", f"benchmark.prompts={bench}/prompts.parquet",
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
                env={**environment, MARK: self.mark},
                stdout=printed,
                stderr=printed,
            )

    def ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kill only the driver, as the system does when it runs out of memory."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def processes(self) -> list[int]:
        """Return the sweep's running processes, recognised by the mark in their environment."""
        return list(marked(MARK, self.mark))

    def end(self) -> None:
        """Wait for the remaining processes to end, and kill those that do not end in time."""
        until(lambda: not self.processes(), ORPHAN_SECONDS)
        for pid in self.processes():
            killed(pid)
        assert until(lambda: not self.processes())


@contextmanager
def driver(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[Driver]:
    """Start a sweep that prints to a file in the folder; at the end, stop everything that it started."""
    started = Driver(arguments, folder, environment)
    try:
        yield started
    finally:
        if not started.ended():
            started.kill()
        started.end()


class Cluster(NamedTuple):
    """A Ray cluster: its head, and the folder with the head's logs."""

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
        """Start the job on this cluster, in a process whose environment contains what workers need."""
        arguments = small_sweep(bench, store, f"cluster.address={self.head.address}", *overrides)
        with driver(arguments, self.folder, head_environment() | dict(environment or {})) as started:
            yield started


def working(nodes: Sequence[RayNode]) -> list[RayNode]:
    """Return the nodes on which an actor of a stage is running."""
    return [node for node in nodes if workers_on(node)]


def workers_on(node: RayNode) -> list[int]:
    """Return the processes on a node that are actors of a stage, recognised by the name that Ray Data gives them."""
    return actors(node, "MapWorker")


def actors(node: RayNode, kind: str) -> list[int]:
    """Return the processes on a node whose command contains this class of actors."""
    return [pid for pid, command in node.processes().items() if kind in command]

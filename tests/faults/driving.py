"""Sweeps in processes of their own, with a Ray of their own or on a cluster of several nodes, to be hurt."""

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
PATIENCE_SECONDS = 240
ORPHAN_SECONDS = 10
MARK = "PLUMBLINE_TEST_MARK"
"""An environment variable that a driver and all that it starts carry."""


def until(met: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether a condition came to be met in time."""
    waiting = threading.Event()
    ends = time.monotonic() + seconds
    while not (now := met()) and time.monotonic() < ends:
        waiting.wait(POLL_SECONDS)
    return now


def killed(pid: int) -> bool:
    """Sends a process SIGKILL; False where it has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def small_sweep(bench: Path | str, store: str, *overrides: str) -> list[str]:
    """The arguments of a sweep over a small benchmark, on Ray."""
    return [
        *UNJUDGED, "benchmark.name=small", f"benchmark.prompts={bench}/prompts.parquet",
        f"benchmark.images={bench}/images", f"store={store}", "cluster=local", *overrides,
    ]  # fmt: skip


class Driver:
    """A sweep in a process of its own, and all the processes that it starts."""

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
        """Ends the driver, and it alone, as the system would that has no memory left."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def processes(self) -> list[int]:
        """Its processes that still run, known by the mark in their environment."""
        return list(marked(MARK, self.mark))

    def end(self) -> None:
        """Waits for what is left of it to end, and kills what does not."""
        until(lambda: not self.processes(), ORPHAN_SECONDS)
        for pid in self.processes():
            killed(pid)
        assert until(lambda: not self.processes())


@contextmanager
def driver(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[Driver]:
    """Starts a sweep that prints to a file of the folder; nothing of it is left afterwards."""
    started = Driver(arguments, folder, environment)
    try:
        yield started
    finally:
        if not started.ended():
            started.kill()
        started.end()


class Cluster(NamedTuple):
    """A head, and where its logs are."""

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
        """The job on this cluster, in a process that has what workers need in its environment."""
        arguments = small_sweep(bench, store, f"cluster.address={self.head.address}", *overrides)
        with driver(arguments, self.folder, head_environment() | dict(environment or {})) as started:
            yield started


def working(nodes: Sequence[RayNode]) -> list[RayNode]:
    """The nodes on which an actor of a stage is."""
    return [node for node in nodes if workers_on(node)]


def workers_on(node: RayNode) -> list[int]:
    """The processes on a node that are actors of a stage, as Ray Data calls them."""
    return actors(node, "MapWorker")


def actors(node: RayNode, kind: str) -> list[int]:
    """The processes on a node that are actors of a class."""
    return [pid for pid, command in node.processes().items() if kind in command]

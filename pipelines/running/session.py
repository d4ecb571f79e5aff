"""The Ray that a run works on: somebody's cluster, or one of our own that ends with the run."""

import errno
import logging
import os
import signal
import socket
import subprocess
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.running.errors import KEPT, RunnerError, one_line

LAST_WORDS = (
    f"error: this process was ended, by Ray because its own processes died (raylet or GCS), or by the system; {KEPT}"
)
WATCH_SECONDS = 5.0
"""Between two looks whether the raylet is there."""
MOST_SILENT = 3
"""Looks at which it may be missing; the last one ends the process."""
START_SECONDS = "180"
"""That Ray's processes may take to start; RAY_raylet_start_wait_time_s sets another number."""
NOT_STARTED = (
    "Ray could not be started on this machine ({error}); it may be busy, or short of memory or disk: run again, and "
    f"where it starts too slowly set RAY_raylet_start_wait_time_s above {START_SECONDS}"
)


@contextmanager
def ray_session(cluster: ClusterConfig) -> Iterator[ClusterConfig]:
    """The given cluster, or else a local Ray of our own, which is shut down at the end and will not grow."""
    if cluster.executor == "here":
        raise RunnerError("cluster=here: this job works on Ray alone; leave it out, or name a cluster")
    if ray.is_initialized():
        yield cluster
        return
    with last_words(LAST_WORDS):
        address = cluster.address or os.environ.get("RAY_ADDRESS") or "local"
        _connect(address, cluster)
        with watched(_raylet_socket()):
            try:
                yield cluster if address != "local" else replace(cluster, wait_seconds=0)
            finally:
                ray.shutdown()


def _raylet_socket() -> Path | None:
    """Where this machine's raylet listens; None for a client of Ray's, which has none."""
    own = ray.get_runtime_context().get_node_id()
    found = [Path(node["RayletSocketName"]) for node in ray.nodes() if node["NodeID"] == own]
    return found[0] if found and found[0].is_socket() else None


@contextmanager
def watched(listener: Path | None, pause: float = WATCH_SECONDS) -> Iterator[None]:
    """Ends this process where nobody listens at a Unix socket any more, within the body.

    Ray's core does so by itself, but not where another cluster has taken the lost one's address: then its driver waits
    for ever for what the new one does not know.
    """
    if listener is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        silent = 0
        while silent < MOST_SILENT and not ended.wait(pause):
            silent = 0 if _listens(listener) else silent + 1
        if not ended.is_set():
            os._exit(1)

    watcher = threading.Thread(target=watch, name="watcher of the raylet", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(str(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


@contextmanager
def last_words(line: str) -> Iterator[None]:
    """Has a line said on stderr should this process end within the body without a chance to say anything.

    Ray's core ends its driver so, where the raylet or the GCS died, and the system a process that takes all memory. The
    line is said by a shell that waits for a word at a pipe, and finds the pipe closed instead.
    """
    reading, writing = os.pipe()
    guard = subprocess.Popen(["/bin/sh", "-c", 'read -r word || echo "$0" >&2', line], stdin=reading)
    os.close(reading)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # the guard may have been told to end, as its whole group was
            os.write(writing, b"\n")
        os.close(writing)
        guard.wait()


def _connect(address: str, cluster: ClusterConfig) -> None:
    local: dict[str, Any] = {"num_cpus": cluster.num_cpus, "include_dashboard": False} if address == "local" else {}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", START_SECONDS)
    try:
        _check_port(address)
        with _quiet_backend(), _own_signals():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except Exception as error:  # Ray raises a bare Exception where its processes do not start in time
        if address == "local":
            raise RunnerError(NOT_STARTED.format(error=one_line(error))) from error
        token = "AuthToken" in "".join(traceback.format_exception(error))
        remedy = "set RAY_AUTH_MODE=token and the cluster's token" if token else "check cluster.address or RAY_ADDRESS"
        raise RunnerError(f"Ray at {address!r}: cannot be reached ({one_line(error)}); {remedy}") from error


def _check_port(address: str) -> None:
    """Raises OSError at once where nothing listens at host:port; Ray itself goes on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps what the caller does on SIGTERM, which Ray would replace."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def _quiet_backend() -> Iterator[None]:
    """Keeps Ray's C++ core from writing to the terminal, where it warns of every restartable actor.

    It announces even being told so; its errors still arrive as exceptions, and RAY_BACKEND_LOG_LEVEL overrides.
    """
    if "RAY_BACKEND_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["RAY_BACKEND_LOG_LEVEL"] = "fatal"
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)

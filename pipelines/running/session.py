"""The Ray session of a run: the configured cluster, or a local Ray that ends with the run."""

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

from plumbline.operators.base.errors import hide_secrets
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.running.errors import RESUME_HINT, RunnerError, format_error

KILLED_MESSAGE = (
    "error: Ray killed this process after losing its own raylet or GCS, or the operating system killed it; "
    f"{RESUME_HINT}"
)
WATCH_INTERVAL = 5.0
MAX_FAILED_CHECKS = 3
"""Number of consecutive checks that may find no raylet before the process ends."""
START_TIMEOUT = "180"
"""Seconds allowed for starting Ray's processes; RAY_raylet_start_wait_time_s overrides this."""
NOT_STARTED_MESSAGE = "Ray could not be started on this machine ({error}); {remedy}"
SLOW_START_REMEDY = (
    "it may be busy, or short of memory or disk: run again, and if it starts too slowly set "
    f"RAY_raylet_start_wait_time_s above {START_TIMEOUT}"
)
LONG_PATH_REMEDY = "the path of its temporary files is too long for a socket: set TMPDIR to a short path, such as /tmp"
UNWRITABLE_REMEDY = (
    "Ray writes a token below HOME and its session below TMPDIR: set each to a folder that can be written"
)
UNWRITABLE_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
JOB_SERVER_PROBLEM = (
    "is the address of a job server, for `ray job submit`; unset it to start a local Ray, or name the cluster itself: "
    "ray://HOST:10001 from outside, HOST:6379 on its machines"
)


@contextmanager
def open_ray_session(cluster: ClusterConfig) -> Iterator[ClusterConfig]:
    """Connect to the configured cluster, or start a local Ray of fixed size that is shut down at the end.

    An existing connection of this process is used and stays open. Yields the configuration; with a local Ray, its
    `wait_seconds` is 0. Raises RunnerError for `cluster=here`, or if Ray cannot be reached or started.
    """
    if cluster.executor == "here":
        raise RunnerError("cluster=here: this job runs only on Ray; leave cluster out, or name a cluster")
    if ray.is_initialized():
        yield cluster
        return
    with print_if_killed(KILLED_MESSAGE):
        address = cluster.address or os.environ.get("RAY_ADDRESS") or "local"
        _connect_to_ray(address, cluster)
        own = ray.get_runtime_context().get_node_id()
        sockets = [Path(node["RayletSocketName"]) for node in ray.nodes() if node["NodeID"] == own]
        raylet = sockets[0] if sockets and sockets[0].is_socket() else None  # a Ray client has no raylet
        with exit_if_abandoned(raylet):
            try:
                yield cluster if address != "local" else replace(cluster, wait_seconds=0)
            finally:
                ray.shutdown()


@contextmanager
def exit_if_abandoned(listener: Path | None, pause: float = WATCH_INTERVAL) -> Iterator[None]:
    """Watch a Unix socket while the context lasts, and end this process if nothing listens on it anymore.

    Ray's core normally ends the process itself, but not if another cluster has taken over the address of the lost one:
    then the driver would wait forever for objects that the new cluster does not have.
    """
    if listener is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        silent = 0
        while silent < MAX_FAILED_CHECKS and not ended.wait(pause):
            with socket.socket(socket.AF_UNIX) as caller:
                error = caller.connect_ex(str(listener))
            silent = silent + 1 if error in (errno.ECONNREFUSED, errno.ENOENT) else 0
        if not ended.is_set():
            os._exit(1)

    watcher = threading.Thread(target=watch, name="watcher of the raylet", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@contextmanager
def print_if_killed(line: str) -> Iterator[None]:
    """Print a line on stderr if this process is killed within the context.

    Ray's core kills its driver when the raylet or the GCS dies, and the system kills a process that runs out of memory.
    A shell reads from a pipe and prints the line if the pipe closes before anything was written to it.
    """
    reading, writing = os.pipe()
    guard = subprocess.Popen(["/bin/sh", "-c", 'read -r word || echo "$0" >&2', line], stdin=reading)
    os.close(reading)
    try:
        yield
    finally:
        with suppress(BrokenPipeError):  # the guard may have been ended together with its process group
            os.write(writing, b"\n")
        os.close(writing)
        guard.wait()


def _connect_to_ray(address: str, cluster: ClusterConfig) -> None:
    local: dict[str, Any] = {"num_cpus": cluster.num_cpus, "include_dashboard": False} if address == "local" else {}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", START_TIMEOUT)
    if address.startswith(("http://", "https://")):
        name = "cluster.address" if cluster.address else "RAY_ADDRESS"
        raise RunnerError(f"{name}={hide_secrets(address)} {JOB_SERVER_PROBLEM}")
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():  # fail at once if nothing listens there: Ray itself would retry for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        handler = signal.getsignal(signal.SIGTERM)
        with _silence_ray_core():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has replaced it
    except Exception as error:  # Ray raises a bare Exception if its processes do not start in time
        if address == "local":
            remedy = SLOW_START_REMEDY
            if "AF_UNIX path length" in str(error):
                remedy = LONG_PATH_REMEDY
            elif isinstance(error, OSError) and error.filename and error.errno in UNWRITABLE_ERRNOS:
                remedy = UNWRITABLE_REMEDY
            raise RunnerError(NOT_STARTED_MESSAGE.format(error=format_error(error), remedy=remedy)) from error
        token = "AuthToken" in "".join(traceback.format_exception(error))
        remedy = "set RAY_AUTH_MODE=token and the cluster's token" if token else "check cluster.address or RAY_ADDRESS"
        raise RunnerError(f"Ray at {address!r}: cannot be reached ({format_error(error)}); {remedy}") from error


@contextmanager
def _silence_ray_core() -> Iterator[None]:
    """Keep Ray's C++ core from writing to the terminal, because it would warn about every restartable actor.

    Its errors are still raised as exceptions. RAY_BACKEND_LOG_LEVEL overrides this.
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

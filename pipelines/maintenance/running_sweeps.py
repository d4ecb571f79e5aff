"""Coordinates the processes that use a store: running sweeps with their progress, and at most one job that deletes.

A running sweep has a heartbeat in the store: a small file that it rewrites every few seconds and removes at the end. A
job that deletes first takes a lease and then reads the heartbeats; a sweep first writes its heartbeat and then looks
for the lease. So even if both start at the same moment, at least one of them sees the other. The age of a heartbeat is
measured by the store's own clock, as the difference between the write times of two files.
"""

import logging
import math
import os
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.plans.plan import NodePlan
from plumbline.pipelines.running.events import NodeProgress
from plumbline.pipelines.store.lease import LEASES_FOLDER, Lease, read_lease, take_lease
from plumbline.pipelines.store.store import Store

LOG = logging.getLogger(__name__)
SWEEPS_FOLDER = "sweeps"
"""Folder with the heartbeats of running sweeps."""
DELETION_LEASE_NAME = "deleting"
"""Name of the lease for jobs that delete files. Each of these jobs increases the lease's number by one."""
RENEW_INTERVAL = 5.0
"""Seconds between two heartbeats of a sweep."""
HEARTBEAT_TIMEOUT = 600.0
"""Seconds without a heartbeat after which a sweep counts as dead; storage may be unreachable for that long."""


class Heartbeat(NamedTuple):
    """A sweep's heartbeat, as read from the store."""

    path: str
    content: Mapping[str, Any]
    written: float
    """Write time on the store's clock, in seconds since 1970."""

    def is_alive(self, now: float) -> bool:
        """Return True if the sweep is running."""
        return now - self.written < HEARTBEAT_TIMEOUT

    @property
    def run(self) -> str:
        """Id of the run in progress; empty if it is unknown, or if the sweep does not create a run."""
        return str(self.content.get("run") or "")


@contextmanager
def send_heartbeats(store: Store, progress: Callable[[], Mapping[str, Any]] = dict, **content: Any) -> Iterator[None]:
    """Write a heartbeat to the store every RENEW_INTERVAL seconds, and remove it when the context ends.

    The heartbeat contains `content` and the current result of `progress`. Failed writes are ignored, because the sweep
    itself notices if the storage is unreachable.
    """
    path = f"{SWEEPS_FOLDER}/{uuid.uuid4().hex}.json"
    began = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"host": socket.gethostname(), "process": os.getpid(), "began": began, **content}
    stop = threading.Event()

    def write() -> None:
        store.write_json(path, {**content, **progress()})

    def write_regularly() -> None:
        while not stop.wait(RENEW_INTERVAL):
            with suppress(PlumblineError):
                write()

    write()
    writer = threading.Thread(target=write_regularly, name="heartbeat", daemon=True)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
        with suppress(PlumblineError):
            store.remove_all([path])


def read_heartbeats(store: Store) -> list[Heartbeat]:
    """Return the readable heartbeats of all sweeps, including sweeps that died."""
    found = []
    for file in store.walk_files(SWEEPS_FOLDER):
        content = store.read_json(file.path) if file.path.endswith(".json") else None
        if content is not None:  # otherwise it has just been removed
            found.append(Heartbeat(file.path, content, file.written))
    return found


@contextmanager
def hold_exclusive_deletion(store: Store, job: str) -> Iterator[tuple[Lease, float]]:
    """Keep other jobs from deleting, and make new sweeps wait; raise LeaseHeld if another job is deleting.

    Yield the lease, and the time when it was granted, in seconds since 1970 on the store's clock.
    """
    with take_lease(store, DELETION_LEASE_NAME, job) as lease:
        lease.renew()
        yield lease, max(store.list_files(f"{LEASES_FOLDER}/{DELETION_LEASE_NAME}").values())


def count_deletions(store: Store) -> int:
    """Return the number of past deletions, or -1 during a deletion; plans compare counts to notice new deletions."""
    lease = read_lease(store, DELETION_LEASE_NAME)
    return lease.number if lease.is_free else -1


def wait_for_deletions(store: Store) -> int:
    """Wait until no running job is deleting in the store, and return the number of past deletions.

    A message on stderr names the job, because waiting may take minutes.
    """
    lease = read_lease(store, DELETION_LEASE_NAME)
    if lease.is_free:
        return lease.number
    line = f"waiting while {lease} removes cells from {store.place.url}; this sweep then continues by itself"
    print(line, file=sys.stderr, flush=True)
    LOG.info(line)
    # The lease of a dead job is taken over, so that the next sweep need not wait.
    with take_lease(store, DELETION_LEASE_NAME, "sweep", wait=math.inf) as own_lease:
        return own_lease.number


@dataclass(frozen=True, kw_only=True, slots=True)
class StageState:
    """Progress of one node of a sweep: a stage, or one role of a stage."""

    cells: int
    missing: int
    """Number of cells that the sweep has to compute."""
    done: int
    """Number of cells that the sweep has already computed."""
    rows: int
    failed_rows: int
    seconds: float
    """Seconds from the node's first cell to its last report."""
    calls: int = 0
    """Number of answered model calls, including calls for unfinished cells."""

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds at the present rate; None before the first cell."""
        return self.seconds / self.done * max(self.missing - self.done, 0) if self.done else None


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepStatus:
    """Content of a running sweep's heartbeat."""

    run: str = ""
    """Id of the sweep's run; empty if it does not create a run."""
    benchmark: str = ""
    host: str = ""
    process: int = 0
    began: str = ""
    stages: Mapping[str, StageState] = field(default_factory=dict)
    """Progress of each node with missing cells."""


class RunningSweep(NamedTuple):
    """A sweep that is running, or was running until it was killed."""

    status: SweepStatus
    silent_seconds: float
    """Seconds since its last heartbeat."""

    @property
    def killed(self) -> bool:
        """True if the process (on this machine) no longer exists, or the last heartbeat is too old."""
        if self.status.host == socket.gethostname() and self.status.process > 0:
            try:
                os.kill(self.status.process, 0)
            except ProcessLookupError:
                return True
            except (PermissionError, OverflowError):
                pass  # the process belongs to another user
        return self.silent_seconds >= HEARTBEAT_TIMEOUT

    @property
    def cells(self) -> int:
        """Total number of cells of all nodes that have missing cells."""
        return sum(state.cells for state in self.status.stages.values())

    @property
    def committed(self) -> int:
        """Number of cells in `cells` that are already in the store."""
        return sum(state.cells - state.missing + state.done for state in self.status.stages.values())


_STATUS_ADAPTER = TypeAdapter(SweepStatus)


def describe_progress(nodes: Iterable[NodePlan], progress: Mapping[str, NodeProgress]) -> dict[str, Any]:
    """Return the progress for a sweep's heartbeat: a StageState for each node with missing cells."""
    stages = {}
    for item in nodes:
        if (state := progress.get(item.node.name)) is not None:
            stages[item.node.name] = asdict(
                StageState(
                    cells=item.cells,
                    missing=state.missing,
                    done=state.cells,
                    rows=state.rows,
                    failed_rows=state.failed_rows,
                    seconds=round(state.seconds, 1),
                    calls=state.calls,
                )
            )
    return {"stages": stages}


def list_unfinished_sweeps(store: Store, now: float) -> list[RunningSweep]:
    """Return the running and the killed sweeps, sorted by start time; `now` is in seconds since 1970."""
    found = []
    for heartbeat in read_heartbeats(store):
        with suppress(ValidationError):  # the heartbeat of another kind of process
            found.append(
                RunningSweep(_STATUS_ADAPTER.validate_python(heartbeat.content), max(0.0, now - heartbeat.written))
            )
    return sorted(found, key=lambda sweep: sweep.status.began)


def list_running_sweeps(store: Store, now: float) -> list[RunningSweep]:
    """Return the running sweeps, sorted by start time."""
    return [sweep for sweep in list_unfinished_sweeps(store, now) if not sweep.killed]

"""Who is at work in a store: sweeps, each of which says what it uses and how far it is, and one at a time who deletes.

A sweep leaves a sign, a small file that is written again every few seconds and removed at the end. Who deletes takes a
lease first and then looks for signs; a sweep leaves its sign first and then looks for the lease: so of two that begin
at the same moment one at least sees the other. How old a sign is, is told by the store's own clock: by the times of
writing of two of its files.
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
from plumbline.pipelines.cells.lease import LEASES, Lease, read_lease, take_lease
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.plan import NodePlan
from plumbline.pipelines.running.events import NodeProgress

LOG = logging.getLogger(__name__)
SWEEPS = "sweeps"
"""The folder of the signs."""
DELETING = "deleting"
"""The lease of a job that deletes; its number grows with every such job."""
RENEW_INTERVAL = 5.0
"""Seconds between two writes of a sign."""
SIGN_TIMEOUT = 600.0
"""Seconds without a renewal after which a sweep counts as dead; storage may be out of reach for that long."""


class Sign(NamedTuple):
    """What somebody left in the store."""

    path: str
    content: Mapping[str, Any]
    written: float
    """In seconds since 1970, by the clock of the store."""

    def alive(self, now: float) -> bool:
        """Whether whoever left it is at work."""
        return now - self.written < SIGN_TIMEOUT

    @property
    def run(self) -> str:
        """The id of the run that is being made; empty where none is, or it is not said."""
        return str(self.content.get("run") or "")


class Presence:
    """A sweep's own sign in a store."""

    def __init__(self, store: Store, content: Mapping[str, Any], progress: Callable[[], Mapping[str, Any]]) -> None:
        self.store = store
        self.path = f"{SWEEPS}/{uuid.uuid4().hex}.json"
        began = datetime.now(UTC).isoformat(timespec="seconds")
        self.content = {"host": socket.gethostname(), "process": os.getpid(), "began": began, **content}
        self.progress = progress

    def renew(self) -> None:
        """Writes the sign again."""
        self.store.write_json(self.path, {**self.content, **self.progress()})


@contextmanager
def present(store: Store, progress: Callable[[], Mapping[str, Any]] = dict, **content: Any) -> Iterator[Presence]:
    """Leaves a sign in the store and renews it; it is taken away afterwards.

    `progress` is asked at each renewal what the sign says besides. That it cannot be renewed for a while ends nothing:
    storage that is out of reach is seen by the work itself.
    """
    presence = Presence(store, content, progress)
    presence.renew()
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(RENEW_INTERVAL):
            with suppress(PlumblineError):
                presence.renew()

    renewer = threading.Thread(target=renew, name="sign", daemon=True)
    renewer.start()
    try:
        yield presence
    finally:
        stop.set()
        renewer.join()
        with suppress(PlumblineError):
            store.remove_all([presence.path])


def signs(store: Store) -> list[Sign]:
    """The signs of all sweeps, also of dead ones; one that cannot be read says nothing."""
    found = []
    for file in store.entries(SWEEPS):
        content = store.read_json(file.path) if file.path.endswith(".json") else None
        if content is not None:  # or it has just been taken away
            found.append(Sign(file.path, content, file.written))
    return found


class Deleting(NamedTuple):
    """The moment from which on nobody else deletes."""

    lease: Lease
    now: float
    """In seconds since 1970, by the clock of the store."""


@contextmanager
def deleting(store: Store, job: str) -> Iterator[Deleting]:
    """Has nobody else delete in the store, and sweeps that begin wait; raises LeaseHeld where another deletes."""
    with take_lease(store, DELETING, job) as lease:
        lease.renew()
        yield Deleting(lease, max(store.listing(f"{LEASES}/{DELETING}").values()))


def deletions(store: Store) -> int:
    """How often something was deleted so far, for a plan to be made now; -1 while it is being done."""
    sight = read_lease(store, DELETING)
    return sight.number if sight.is_free else -1


def wait_for_deletions(store: Store) -> int:
    """Waits until nobody deletes in the store, or whoever did is dead; gives how often something was deleted.

    On whom it waits is said in a line on stderr, for that may take minutes.
    """
    sight = read_lease(store, DELETING)
    if sight.is_free:
        return sight.number
    line = f"waiting while cells are removed from {store.place.url} by {sight}; this sweep goes on by itself"
    print(line, file=sys.stderr, flush=True)
    LOG.info(line)
    with take_lease(store, DELETING, "sweep", wait=math.inf) as lease:  # so that the next sweep need not wait
        return lease.number


@dataclass(frozen=True, kw_only=True, slots=True)
class StageState:
    """How far one node of a sweep is."""

    cells: int
    """All of its cells."""
    missing: int
    """Those that the sweep is to compute."""
    done: int
    """Those of them that it has computed."""
    rows: int
    failed_rows: int
    seconds: float
    """From the node's first cell to its last report."""
    calls: int = 0
    """Of its models that have been answered, also about cells that are at work."""

    @property
    def seconds_left(self) -> float | None:
        """At its rate so far; None before it has begun."""
        return self.seconds / self.done * max(self.missing - self.done, 0) if self.done else None


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSign:
    """What a sweep at work says of itself in the store."""

    run: str = ""
    """The id of its run; empty for one that makes no run."""
    benchmark: str = ""
    host: str = ""
    process: int = 0
    began: str = ""
    stages: Mapping[str, StageState] = field(default_factory=dict)
    """By node with something to compute."""


class RunningSweep(NamedTuple):
    """A sweep that is at work in a store, or was until it was killed."""

    said: SweepSign
    silent: float
    """Seconds since it said so."""

    @property
    def killed(self) -> bool:
        """Return True if the process on this machine is gone, or the sweep has been silent for too long."""
        return self.silent >= SIGN_TIMEOUT or (
            self.said.host == socket.gethostname() and self.said.process > 0 and not _is_running(self.said.process)
        )

    @property
    def cells(self) -> int:
        """Cells of the nodes with something to compute."""
        return sum(state.cells for state in self.said.stages.values())

    @property
    def committed(self) -> int:
        """Cells that are in the store."""
        return sum(state.cells - state.missing + state.done for state in self.said.stages.values())


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # another user's
        return True
    return True


_SAID = TypeAdapter(SweepSign)


def progress_of(nodes: Iterable[NodePlan], progress: Mapping[str, NodeProgress]) -> dict[str, Any]:
    """What a sweep's sign says of its progress: a StageState by node with something to compute."""
    stages = {}
    for item in nodes:
        if (state := progress.get(item.node.name)) is not None:
            stages[item.node.name] = StageState(
                cells=item.cells,
                missing=state.missing,
                done=state.cells,
                rows=state.rows,
                failed_rows=state.failed_rows,
                seconds=round(state.seconds, 1),
                calls=state.calls,
            )
    return {"stages": {name: asdict(state) for name, state in stages.items()}}


def unfinished_sweeps(store: Store, now: float) -> list[RunningSweep]:
    """Return the sweeps at work and the killed ones, by the time they began; `now` is in seconds since 1970.

    A sign that is no sweep's is passed over.
    """
    found = []
    for sign in signs(store):
        with suppress(ValidationError):
            found.append(RunningSweep(_SAID.validate_python(sign.content), max(0.0, now - sign.written)))
    return sorted(found, key=lambda sweep: sweep.said.began)


def running_sweeps(store: Store, now: float) -> list[RunningSweep]:
    """Return the sweeps at work, by the time they began."""
    return [sweep for sweep in unfinished_sweeps(store, now) if not sweep.killed]

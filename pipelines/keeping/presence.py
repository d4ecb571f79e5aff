"""Who is at work in a store: sweeps, each of which says what it uses, and one at a time who deletes.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from plumbline.operators.errors import PlumblineError
from plumbline.pipelines.cells.lease import LEASES, Lease, see, take
from plumbline.pipelines.cells.store import Store

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

    def __init__(self, store: Store, content: Mapping[str, Any]) -> None:
        self.store = store
        self.path = f"{SWEEPS}/{uuid.uuid4().hex}.json"
        began = datetime.now(UTC).isoformat(timespec="seconds")
        self.content = {"host": socket.gethostname(), "process": os.getpid(), "began": began, **content}

    def note(self, **content: Any) -> None:
        """What the sign is to say from its next renewal on."""
        self.content = self.content | content

    def renew(self) -> None:
        """Writes the sign again."""
        self.store.write_json(self.path, self.content)


@contextmanager
def present(store: Store, **content: Any) -> Iterator[Presence]:
    """Leaves a sign in the store and renews it; it is taken away afterwards.

    That it cannot be renewed for a while ends nothing: storage that is out of reach is seen by the work itself.
    """
    presence = Presence(store, content)
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
    with take(store, DELETING, job) as lease:
        lease.renew()
        yield Deleting(lease, max(store.listing(f"{LEASES}/{DELETING}").values()))


def deletions(store: Store) -> int:
    """How often something was deleted so far, for a plan to be made now; -1 while it is being done."""
    sight = see(store, DELETING)
    return sight.number if sight.is_free else -1


def wait_for_deletions(store: Store) -> int:
    """Waits until nobody deletes in the store, or whoever did is dead; gives how often something was deleted.

    On whom it waits is said in a line on stderr, for that may take minutes.
    """
    sight = see(store, DELETING)
    if sight.is_free:
        return sight.number
    line = f"waiting while cells are removed from {store.place.url} by {sight}; this sweep goes on by itself"
    print(line, file=sys.stderr, flush=True)
    LOG.info(line)
    with take(store, DELETING, "sweep", wait=math.inf) as lease:  # so that the next one need not wait for a dead one
        return lease.number

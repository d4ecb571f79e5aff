"""Leases: exclusive access to a store, decided without comparing the clocks of different machines.

A lease is a folder of numbered files, leases/<name>/<number>.json, each written create-only. The file with the highest
number is the current lease. Its holder rewrites that file a few times within `seconds`. A process that wants the lease
watches the file: if the file stays unchanged for `seconds` on the watcher's own clock, the holder is dead and the
watcher may take the next number. A holder that stalled for longer than that sees the higher number before it publishes
anything. When a holder is done, it writes to its file that the lease is released. The file is kept, so that no number
is used twice.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple, Self

from pydantic import TypeAdapter

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.store.checksums import DamagedError, decode_json, encode_json
from plumbline.pipelines.store.store import Store

LEASES_FOLDER = "leases"
LEASE_TIMEOUT = 120.0
"""Seconds without a renewal after which a holder counts as dead, unless its file specifies another timeout."""
RENEWALS_PER_TIMEOUT = 6
"""Number of renewals that a holder attempts within the timeout; more than one, because a renewal may fail."""
TRUSTED_FRACTION = 2 / 3
"""Fraction of the timeout after which a holder that has not been able to renew stops relying on its lease."""
POLLS_PER_TIMEOUT = 20


class LeaseHeld(PlumblineError):
    """Raised if another process holds the lease."""


class LeaseLost(PlumblineError):
    """Raised if another process took the lease, because this process did not renew it in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseHolder:
    """Holder of a lease, as recorded in the lease's file."""

    job: str
    """Human-readable name of the job, such as nightly or gc."""
    token: str
    """Random id of the holder, which stays the same when the holder takes a higher number."""
    host: str
    process: int
    since: str
    """Start time on the holder's clock; it is displayed but never compared."""
    seconds: float
    beat: int = 0
    released: bool = False

    def __str__(self) -> str:
        return f"{self.job} on {self.host} (process {self.process}), since {self.since}"


_HOLDER_ADAPTER = TypeAdapter(LeaseHolder)


class LeaseRecord(NamedTuple):
    """State of a lease, as read from the store."""

    number: int
    """Number of the lease's file; 0 if the lease was never taken."""
    text: str
    holder: LeaseHolder | None
    """Holder of the lease; None if it was never taken or its file cannot be read."""

    @property
    def is_free(self) -> bool:
        return self.number == 0 or (self.holder is not None and self.holder.released)

    def __str__(self) -> str:
        return "a process whose file cannot be read" if self.holder is None else str(self.holder)


class Clock:
    """Clock for timing leases; tests replace it."""

    def now(self) -> float:
        """Return the seconds since an arbitrary point in time."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class Lease:
    """A lease that this process holds.

    Within the context, a thread renews the lease; when the context ends, the lease is released.
    """

    def __init__(self, store: Store, name: str, holder: LeaseHolder, clock: Clock) -> None:
        self._store, self._name, self._holder, self._clock = store, name, holder, clock
        self.number = 0
        """Number of the lease's file; each new holder takes a higher number."""
        self._renewed = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_repeatedly, name=f"lease {name}", daemon=True)
        self.lost = False
        """True once this process knows that it no longer holds the lease."""
        self.when_lost: Callable[[LeaseLost], None] = lambda error: None
        """Callback for the renewing thread to call if it finds that the lease is lost."""

    def claim(self, number: int) -> bool:
        """Claim the lease under a number, and delete the files with lower numbers.

        Return False if another holder has taken this number or a higher one.
        """
        began = self._clock.now()
        if not (self._store.place / _make_lease_path(self._name, number)).create(_encode_holder(self._holder)):
            return False
        numbers = _list_lease_numbers(self._store, self._name)
        if max(numbers) > number:
            return False
        for older in numbers:
            if older < number:
                with suppress(PlumblineError):
                    self._store.remove(_make_lease_path(self._name, older))
        self.number, self._renewed = number, began
        return True

    def renew(self) -> None:
        """Renew the lease; raise LeaseLost if another process took it.

        A holder that is so late that other processes may consider it dead takes the next number, as any other process
        would.
        """
        with self._lock:
            if self.lost or not self._try_to_renew():
                self.lost = True
                now = read_lease(self._store, self._name)
                raise LeaseLost(
                    f"{self._store.place / LEASES_FOLDER}: this {self._holder.job} did not renew its lease in time, "
                    f"and {now} took its place; finished cells are kept, run again once that has ended"
                )

    def _try_to_renew(self) -> bool:
        began = self._clock.now()
        self._holder = replace(self._holder, beat=self._holder.beat + 1)
        late = began - self._renewed >= self._holder.seconds * TRUSTED_FRACTION
        if not late:
            self._store.write_text(_make_lease_path(self._name, self.number), _encode_holder(self._holder).decode())
            self._renewed = began
        if max(_list_lease_numbers(self._store, self._name), default=0) != self.number:
            return False
        return self.claim(self.number + 1) if late else True

    def _renew_repeatedly(self) -> None:
        while not self._ended.wait(self._holder.seconds / RENEWALS_PER_TIMEOUT):
            try:
                self.renew()
            except LeaseLost as error:
                self.when_lost(error)
                return
            except PlumblineError:
                continue  # the next renewal may succeed

    def release(self) -> None:
        """Release the lease. If its file cannot be written, other processes wait until the holder counts as dead."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self.lost:
            released = _encode_holder(replace(self._holder, released=True)).decode()
            with suppress(PlumblineError):
                self._store.write_text(_make_lease_path(self._name, self.number), released)
        self.lost = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take_lease(
    store: Store,
    name: str,
    job: str,
    *,
    seconds: float = LEASE_TIMEOUT,
    wait: float = 0.0,
    on_wait: Callable[[LeaseRecord], None] = lambda lease: None,
    clock: Clock | None = None,
) -> Lease:
    """Take and return the lease with this name, which is renewed while its context is active and released afterwards.

    Wait up to `wait` seconds for a holder that is alive, then raise LeaseHeld; finding out whether a holder is dead may
    take longer. If a wait is necessary, call `on_wait` once with the current lease.
    """
    clock = clock or Clock()
    until = clock.now() + wait
    text: str | None = None
    since, changed, announced = 0.0, False, False
    while True:
        before = clock.now()  # the file read next may be this old
        current = read_lease(store, name)
        if current.text != text:
            changed = text is not None
            text, since = current.text, clock.now()
        timeout = LEASE_TIMEOUT if current.holder is None else current.holder.seconds
        if current.is_free or before - since >= timeout:  # otherwise the holder is alive, or it is too early to tell
            holder = LeaseHolder(
                job=job,
                token=uuid.uuid4().hex,
                host=socket.gethostname(),
                process=os.getpid(),
                since=datetime.now(UTC).isoformat(timespec="seconds"),
                seconds=seconds,
            )
            lease = Lease(store, name, holder, clock)
            if lease.claim(current.number + 1):
                return lease
        elif changed and clock.now() >= until:
            raise LeaseHeld(f"{store.place / LEASES_FOLDER}: {current} is at work; run again once it has ended")
        elif not announced:
            announced = True
            on_wait(current)
        clock.pause(timeout / POLLS_PER_TIMEOUT)


def read_lease(store: Store, name: str) -> LeaseRecord:
    """Return the current state of the lease with this name; its holder may be dead."""
    while True:
        number = max(_list_lease_numbers(store, name), default=0)
        if number == 0:
            return LeaseRecord(0, "", None)
        text = store.read_text(_make_lease_path(name, number))
        if text is None:  # a higher number was taken in between
            continue
        try:
            holder = _HOLDER_ADAPTER.validate_python(decode_json(text))
        except (DamagedError, ValueError, RecursionError):
            holder = None
        return LeaseRecord(number, f"{number} {text}", holder)


def _make_lease_path(name: str, number: int) -> str:
    return f"{LEASES_FOLDER}/{name}/{number:08}.json"


def _list_lease_numbers(store: Store, name: str) -> list[int]:
    stems = [path.rpartition("/")[2].removesuffix(".json") for path in store.list_files(f"{LEASES_FOLDER}/{name}")]
    return [int(stem) for stem in stems if stem.isdigit()]  # skips the temporary file of a writer that was killed


def _encode_holder(holder: LeaseHolder) -> bytes:
    return encode_json(asdict(holder)).encode()

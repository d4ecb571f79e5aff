"""Leases: exclusive access to a store, decided without comparing the clocks of different machines.

A lease is a folder of numbered files, leases/<name>/<number>.json, each written create-only. The file with the highest
number is the current lease. Its holder rewrites that file a few times in `seconds`. A process that wants the lease
watches the file: if it stays unchanged for `seconds` by the watcher's own clock, the holder is dead and the watcher may
take the next number. A holder that was stalled longer than that sees the higher number before it publishes anything. A
holder that ends writes that it has released the lease. Its file stays, so that no number is used twice.
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
from types import TracebackType
from typing import Literal, NamedTuple, Self

from pydantic import TypeAdapter

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.store.checksums import DamagedError, decode_json, encode_json
from plumbline.pipelines.store.store import Store

LEASES = "leases"
LEASE_TIMEOUT = 120.0
"""Seconds without a renewal after which a holder counts as dead, if its file names no other timeout."""
RENEWALS_PER_TIMEOUT = 6
"""Renewals that a holder attempts within the timeout; several, because a renewal may fail."""
TRUSTED_SHARE = 2 / 3
"""Fraction of the timeout after which a holder that could not renew no longer relies on its lease."""
POLLS_PER_TIMEOUT = 20
"""Number of times that a watcher reads the file within the timeout."""

State = Literal["free", "unknown", "alive", "dead"]


class LeaseHeld(PlumblineError):
    """Another process holds the lease."""


class LeaseLost(PlumblineError):
    """Another process took the lease, because this holder did not renew it in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """The content of a lease's file."""

    job: str
    """Name of the job for people, such as nightly or gc."""
    token: str
    """Random id of the holder; it stays the same when the holder takes a higher number."""
    host: str
    process: int
    since: str
    """Start by the holder's clock; shown to people, never compared."""
    seconds: float
    beat: int = 0
    released: bool = False

    def __str__(self) -> str:
        return f"{self.job} on {self.host} (process {self.process}), since {self.since}"


_HOLDER = TypeAdapter(Holder)


class LeaseSight(NamedTuple):
    """A lease as it was last read."""

    number: int
    """Number of its file; 0 if it was never taken."""
    text: str
    holder: Holder | None
    """Its holder; None if it was never taken or its file cannot be read."""

    @property
    def is_free(self) -> bool:
        return self.number == 0 or (self.holder is not None and self.holder.released)

    def __str__(self) -> str:
        return "somebody whose file cannot be read" if self.holder is None else str(self.holder)


class Clock:
    def now(self) -> float:
        """Return the seconds since an arbitrary moment."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class Watch:
    """Repeated reads of another process's lease, to find out if its holder is alive."""

    def __init__(self, store: Store, name: str, clock: Clock) -> None:
        self._store, self._name, self._clock = store, name, clock
        self._text: str | None = None
        self._since = 0.0
        self._moved = False
        self.sight = LeaseSight(0, "", None)

    def poll(self) -> State:
        """Read the lease and return its state.

        Returns:
            `free` if it was never taken or is released; `alive` if its file has changed since the first poll; `dead` if
            the file has not changed for as long as the holder promised; else `unknown`.
        """
        before = self._clock.now()  # what is read next may be as old as this
        self.sight = read_lease(self._store, self._name)
        if self.sight.text != self._text:
            self._moved = self._text is not None
            self._text, self._since = self.sight.text, self._clock.now()
        if self.sight.is_free:
            return "free"
        if before - self._since >= self.timeout:
            return "dead"
        return "alive" if self._moved else "unknown"

    @property
    def timeout(self) -> float:
        """Seconds for which the file of a living holder may stay unchanged."""
        return self.sight.holder.seconds if self.sight.holder is not None else LEASE_TIMEOUT

    def pause(self) -> None:
        """Sleep until the next poll is due."""
        self._clock.pause(self.timeout / POLLS_PER_TIMEOUT)


class Lease:
    """A held lease. As a context manager it is renewed by a thread, and released at the end."""

    def __init__(self, store: Store, name: str, holder: Holder, clock: Clock) -> None:
        self._store, self._name, self._holder, self._clock = store, name, holder, clock
        self._number = 0
        self._renewed = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_repeatedly, name=f"lease {name}", daemon=True)
        self.lost = False
        """True once this process knows that it does not hold the lease any more."""
        self.when_lost: Callable[[LeaseLost], None] = lambda error: None
        """Called by the renewing thread when it finds the lease lost."""

    @property
    def number(self) -> int:
        """Number of its file; it grows with every holder."""
        return self._number

    def claim(self, number: int) -> bool:
        """Take a number and delete lower numbers; return False if another holder has it, or a higher one."""
        began = self._clock.now()
        if not (self._store.place / _path(self._name, number)).create(_encode(self._holder)):
            return False
        numbers = _numbers(self._store, self._name)
        if max(numbers) > number:
            return False
        for older in numbers:
            if older < number:
                with suppress(PlumblineError):
                    self._store.remove(_path(self._name, older))
        self._number, self._renewed = number, began
        return True

    def renew(self) -> None:
        """Renew the lease; raise LeaseLost if another process took it.

        A holder that is so late that others may count it as dead takes the next number, as any other process would.
        """
        with self._lock:
            if self.lost or not self._renew():
                self.lost = True
                now = read_lease(self._store, self._name)
                raise LeaseLost(
                    f"{self._store.place / LEASES}: this {self._holder.job} was not heard of for too long, and "
                    f"{now} took its place; what was computed is kept, run again once that has ended"
                )

    def _renew(self) -> bool:
        began = self._clock.now()
        self._holder = replace(self._holder, beat=self._holder.beat + 1)
        if began - self._renewed >= self._holder.seconds * TRUSTED_SHARE:
            return _highest(self._store, self._name) == self._number and self.claim(self._number + 1)
        self._store.write_text(_path(self._name, self._number), _encode(self._holder).decode())
        self._renewed = began
        return _highest(self._store, self._name) == self._number

    def release(self) -> None:
        """Release the lease. If that cannot be written, other processes wait until the holder counts as dead."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self.lost:
            with suppress(PlumblineError):
                self._store.write_text(
                    _path(self._name, self._number), _encode(replace(self._holder, released=True)).decode()
                )
        self.lost = True

    def _renew_repeatedly(self) -> None:
        while not self._ended.wait(self._holder.seconds / RENEWALS_PER_TIMEOUT):
            try:
                self.renew()
            except LeaseLost as error:
                self.when_lost(error)
                return
            except PlumblineError:
                continue  # the next renewal may succeed

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def take_lease(
    store: Store,
    name: str,
    job: str,
    *,
    seconds: float = LEASE_TIMEOUT,
    wait: float = 0.0,
    on_wait: Callable[[LeaseSight], None] = lambda sight: None,
    clock: Clock | None = None,
) -> Lease:
    """Take the named lease, which is held until its context ends.

    Waits `wait` seconds for a living holder, then raises LeaseHeld. A holder that may be dead is always watched until
    that is known. `on_wait` is called once, with the lease that is waited for.
    """
    clock = clock or Clock()
    watch = Watch(store, name, clock)
    until = clock.now() + wait
    announced = False
    while True:
        state = watch.poll()
        if state in ("free", "dead"):
            holder = Holder(
                job=job,
                token=uuid.uuid4().hex,
                host=socket.gethostname(),
                process=os.getpid(),
                since=datetime.now(UTC).isoformat(timespec="seconds"),
                seconds=seconds,
            )
            lease = Lease(store, name, holder, clock)
            if lease.claim(watch.sight.number + 1):
                return lease
        elif state == "alive" and clock.now() >= until:
            raise LeaseHeld(f"{store.place / LEASES}: {watch.sight} is at work; run again once it has ended")
        elif not announced:
            announced = True
            on_wait(watch.sight)
        watch.pause()


def read_lease(store: Store, name: str) -> LeaseSight:
    """Return the lease of that name as it is now, which does not show if its holder is alive."""
    while True:
        number = _highest(store, name)
        if number == 0:
            return LeaseSight(0, "", None)
        text = store.read_text(_path(name, number))
        if text is not None:  # else a higher one was taken in between
            return LeaseSight(number, f"{number} {text}", _decode(text))


def unreleased_leases(store: Store) -> dict[str, LeaseSight]:
    """Return, by name, the leases that were taken and not released; their holders may be alive or dead."""
    names = sorted({path.split("/")[1] for path in store.listing(LEASES)})
    seen = {name: read_lease(store, name) for name in names}
    return {name: sight for name, sight in seen.items() if not sight.is_free}


def live_leases(store: Store, clock: Clock | None = None) -> dict[str, LeaseSight]:
    """Return, by name, the leases whose holders are alive; watch each holder until that is known."""
    clock = clock or Clock()
    watches = {name: Watch(store, name, clock) for name in unreleased_leases(store)}
    alive: dict[str, LeaseSight] = {}
    while watches:
        states = {name: watch.poll() for name, watch in watches.items()}
        alive |= {name: watches[name].sight for name, state in states.items() if state == "alive"}
        watches = {name: watches[name] for name, state in states.items() if state == "unknown"}
        if watches:
            min(watches.values(), key=lambda watch: watch.timeout).pause()
    return alive


def _path(name: str, number: int) -> str:
    return f"{LEASES}/{name}/{number:08}.json"


def _highest(store: Store, name: str) -> int:
    """Return the number of the current file; 0 if the lease was never taken."""
    return max(_numbers(store, name), default=0)


def _numbers(store: Store, name: str) -> list[int]:
    stems = [path.rpartition("/")[2].removesuffix(".json") for path in store.listing(f"{LEASES}/{name}")]
    return [int(stem) for stem in stems if stem.isdigit()]  # skips the temporary file of a writer that was killed


def _encode(holder: Holder) -> bytes:
    return encode_json(asdict(holder)).encode()


def _decode(text: str) -> Holder | None:
    try:
        return _HOLDER.validate_python(decode_json(text))
    except (DamagedError, ValueError, RecursionError):
        return None

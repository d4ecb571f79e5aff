"""Leases of a store: who is at work in it alone, told without believing any clock but one's own.

A lease is a folder of numbered files, leases/<name>/<number>.json, each written create-only; the highest number is the
lease. Its holder writes that file anew a few times in `seconds`. Whoever wants the lease watches: a file that stays as
it is for that long, by the watcher's own clock, is a dead holder's, and the next number may be taken. A holder that was
stalled for so long sees the higher number before it publishes anything. One that ends writes that it has released the
lease; the file stays, so that no number is given twice.
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
from plumbline.pipelines.cells.checksums import DamagedError, decode_json, encode_json
from plumbline.pipelines.cells.store import Store

LEASES = "leases"
LEASE_TIMEOUT = 120.0
"""Seconds without a renewal after which a holder counts as dead, unless its file names others."""
RENEWALS_PER_TIMEOUT = 6
"""Renewals that a holder attempts within the timeout, so that one may fail."""
TRUSTED_SHARE = 2 / 3
"""The share of the timeout after which a holder that could not renew no longer trusts that the lease is its own."""
LOOKS_PER_TIMEOUT = 20
"""How often a watcher reads the file within the timeout."""

State = Literal["free", "unknown", "alive", "dead"]


class LeaseHeld(PlumblineError):
    """Another is at work."""


class LeaseLost(PlumblineError):
    """The lease was taken by another, because this holder was not heard of for too long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """What the file of a lease says."""

    job: str
    """What holds it, as a person knows it: nightly, gc."""
    token: str
    """One holder's own, whatever its numbers."""
    host: str
    process: int
    since: str
    """By the holder's clock; to be shown, and nothing is decided by it."""
    seconds: float
    beat: int = 0
    released: bool = False

    def __str__(self) -> str:
        return f"{self.job} on {self.host} (process {self.process}), since {self.since}"


_HOLDER = TypeAdapter(Holder)


class LeaseSight(NamedTuple):
    """A lease as it was seen."""

    number: int
    """0 where it was never taken."""
    text: str
    holder: Holder | None
    """None where nobody holds it, or nobody can read who does."""

    @property
    def is_free(self) -> bool:
        return self.number == 0 or (self.holder is not None and self.holder.released)

    def __str__(self) -> str:
        return "somebody whose file cannot be read" if self.holder is None else str(self.holder)


class Clock:
    """Time as it passes here; it need not agree with any other machine's."""

    def now(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class Watch:
    """Somebody's lease, looked at again and again."""

    def __init__(self, store: Store, name: str, clock: Clock) -> None:
        self._store, self._name, self._clock = store, name, clock
        self._text: str | None = None
        self._since = 0.0
        self._moved = False
        self.sight = LeaseSight(0, "", None)

    def look(self) -> State:
        """What is known by now: `alive` where its file has changed since the first look, `dead` where it did not for
        as long as its holder promised, `unknown` before either.
        """
        before = self._clock.now()  # what was read may be as old as this
        self.sight = see(self._store, self._name)
        if self.sight.text != self._text:
            self._moved = self._text is not None
            self._text, self._since = self.sight.text, self._clock.now()
        if self.sight.is_free:
            return "free"
        if before - self._since >= self.promised:
            return "dead"
        return "alive" if self._moved else "unknown"

    @property
    def promised(self) -> float:
        """For how long the file may stay as it is, in seconds."""
        return self.sight.holder.seconds if self.sight.holder is not None else LEASE_TIMEOUT

    def pause(self) -> None:
        """Until the next look is worth while."""
        self._clock.pause(self.promised / LOOKS_PER_TIMEOUT)


class Lease:
    """A lease that is held; as a context it is renewed by a thread, and released at the end."""

    def __init__(self, store: Store, name: str, holder: Holder, clock: Clock) -> None:
        self._store, self._name, self._holder, self._clock = store, name, holder, clock
        self._number = 0
        self._renewed = 0.0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease {name}", daemon=True)
        self.lost = False
        """Whether another has it by now, as far as is known here."""
        self.when_lost: Callable[[LeaseLost], None] = _ignore
        """Called by the thread that renews it, once that has found it lost."""

    @property
    def number(self) -> int:
        """Grows with every holder."""
        return self._number

    def claim(self, number: int) -> bool:
        """Takes that number, and tidies up behind it; False where another has it or a higher one."""
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
        """Makes sure that the lease is held, from now on for most of its time; raises LeaseLost where it is not.

        A holder that was late, and could already be taken for dead, takes the next number, as anybody else would.
        """
        with self._lock:
            if self.lost or not self._renew():
                self.lost = True
                now = see(self._store, self._name)
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
        """Lets others in at once; where that cannot be written, they wait until it is taken for dead."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self.lost:
            with suppress(PlumblineError):
                self._store.write_text(
                    _path(self._name, self._number), _encode(replace(self._holder, released=True)).decode()
                )
        self.lost = True

    def _keep(self) -> None:
        while not self._ended.wait(self._holder.seconds / RENEWALS_PER_TIMEOUT):
            try:
                self.renew()
            except LeaseLost as error:
                self.when_lost(error)
                return
            except PlumblineError:
                continue  # the store may take the next one

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _ignore(seen: object) -> None:
    """Nothing is done about it."""


def take(
    store: Store,
    name: str,
    job: str,
    *,
    seconds: float = LEASE_TIMEOUT,
    wait: float = 0.0,
    watching: Callable[[LeaseSight], None] = _ignore,
    clock: Clock | None = None,
) -> Lease:
    """The lease of that name, once nobody else holds it; raises LeaseHeld where somebody does for longer than `wait`.

    Somebody who is not heard of is watched for as long as they promised to be, whatever `wait` is; `watching` is told
    once of whom. What is taken is held as a context: `with take(...) as lease`.
    """
    clock = clock or Clock()
    watch = Watch(store, name, clock)
    until = clock.now() + wait
    told = False
    while True:
        state = watch.look()
        if state in ("free", "dead"):
            lease = Lease(store, name, _new_holder(job, seconds), clock)
            if lease.claim(watch.sight.number + 1):
                return lease
        elif state == "alive" and clock.now() >= until:
            raise LeaseHeld(f"{store.place / LEASES}: {watch.sight} is at work; run again once it has ended")
        elif not told:
            told = True
            watching(watch.sight)
        watch.pause()


def see(store: Store, name: str) -> LeaseSight:
    """The lease of that name as it stands now, which tells nothing of whether its holder is alive."""
    while True:
        number = _highest(store, name)
        if number == 0:
            return LeaseSight(0, "", None)
        text = store.read_text(_path(name, number))
        if text is not None:  # or a higher one was taken in between
            return LeaseSight(number, f"{number} {text}", _decode(text))


def standing(store: Store) -> dict[str, LeaseSight]:
    """By name, the leases that were taken and not released, whose holders may be alive or dead."""
    names = sorted({path.split("/")[1] for path in store.listing(LEASES)})
    seen = {name: see(store, name) for name in names}
    return {name: sight for name, sight in seen.items() if not sight.is_free}


def living(store: Store, clock: Clock | None = None) -> dict[str, LeaseSight]:
    """By name, the leases whose holders are alive; those that are not heard of are watched until that is known."""
    clock = clock or Clock()
    watches = {name: Watch(store, name, clock) for name in standing(store)}
    alive: dict[str, LeaseSight] = {}
    while watches:
        states = {name: watch.look() for name, watch in watches.items()}
        alive |= {name: watches[name].sight for name, state in states.items() if state == "alive"}
        watches = {name: watches[name] for name, state in states.items() if state == "unknown"}
        if watches:
            min(watches.values(), key=lambda watch: watch.promised).pause()
    return alive


def _new_holder(job: str, seconds: float) -> Holder:
    return Holder(
        job=job,
        token=uuid.uuid4().hex,
        host=socket.gethostname(),
        process=os.getpid(),
        since=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=seconds,
    )


def _path(name: str, number: int) -> str:
    return f"{LEASES}/{name}/{number:08}.json"


def _highest(store: Store, name: str) -> int:
    """The number that counts; 0 where the lease was never taken."""
    return max(_numbers(store, name), default=0)


def _numbers(store: Store, name: str) -> list[int]:
    stems = [path.rpartition("/")[2].removesuffix(".json") for path in store.listing(f"{LEASES}/{name}")]
    return [int(stem) for stem in stems if stem.isdigit()]  # and not the draft of one that was killed as it wrote


def _encode(holder: Holder) -> bytes:
    return encode_json(asdict(holder)).encode()


def _decode(text: str) -> Holder | None:
    try:
        return _HOLDER.validate_python(decode_json(text))
    except (DamagedError, ValueError, RecursionError):
        return None

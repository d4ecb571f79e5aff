"""A lease has one holder at a time, on a folder and on S3, even if clocks disagree and holders die or hang."""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.base.storage import WriteError
from plumbline.pipelines.store.lease import (
    Clock,
    Lease,
    LeaseHeld,
    LeaseLost,
    read_lease,
    take_lease,
)
from plumbline.pipelines.store.store import Store
from tests.commands import open_store_at

ROOT = Path(__file__).parent.parent.parent.parent
LEASE_SECONDS = 60.0
HOUR_SECONDS = 3600
HOLDER_SCRIPT = """
import sys
from plumbline.pipelines.store import lease as module
from plumbline.pipelines.store.lease import LeaseLost, take_lease
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.base.storage import StorageConfig

module.RENEWALS_PER_TIMEOUT = float(sys.argv[3])
store = Store(StorageConfig().locate(sys.argv[1]))
with take_lease(store, "night", "another night", seconds=float(sys.argv[2])) as lease:
    print("held", flush=True)
    for _ in sys.stdin:
        try:
            lease.renew()
            print("held", flush=True)
        except LeaseLost as error:
            print(error, flush=True)
"""


class ScriptedClock(Clock):
    """A clock that only advances while a holder waits, and triggers events at given times."""

    def __init__(self, start: float = 0.0, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.time = start
        self.meanwhile = meanwhile

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.time += seconds
        self.meanwhile()


def take_night_lease(store: Store, clock: Clock, wait: float = 0.0, job: str = "nightly") -> Lease:
    return take_lease(store, "night", job, seconds=LEASE_SECONDS, wait=wait, clock=clock)


def test_a_live_lease_is_refused_and_a_released_one_is_free_at_once(store: Store) -> None:
    ours = take_night_lease(store, ScriptedClock())
    theirs = ScriptedClock(1e9, meanwhile=ours.renew)
    with pytest.raises(LeaseHeld, match=r"leases: nightly on .* \(process \d+\), since .* is at work; run again once"):
        take_night_lease(store, theirs)
    assert theirs.time < 1e9 + LEASE_SECONDS / 4, "one sign of life is enough"
    assert not read_lease(store, "night").is_free
    ours.release()
    assert read_lease(store, "night").is_free and take_night_lease(store, ScriptedClock()).number == 2


@pytest.mark.parametrize("clock", [0.0, -1e6, 1e9], ids=["same", "behind", "ahead"])
def test_a_dead_holders_lease_is_taken_after_its_timeout_on_the_watchers_clock(clock: float, store: Store) -> None:
    take_night_lease(store, ScriptedClock())
    theirs = ScriptedClock(clock)
    assert take_night_lease(store, theirs).number == 2
    assert LEASE_SECONDS <= theirs.time - clock < 1.2 * LEASE_SECONDS


def test_a_job_waits_for_a_lease_as_long_as_configured(store: Store) -> None:
    ours = take_night_lease(store, ScriptedClock())
    theirs = ScriptedClock(meanwhile=ours.renew)
    with pytest.raises(LeaseHeld):
        take_night_lease(store, theirs, wait=2 * LEASE_SECONDS)
    assert 2 * LEASE_SECONDS <= theirs.time < 2.2 * LEASE_SECONDS
    patient = ScriptedClock(meanwhile=lambda: ours.renew() if patient.time < LEASE_SECONDS else ours.release())
    assert take_night_lease(store, patient, wait=2 * LEASE_SECONDS).number == 2
    assert patient.time < 1.2 * LEASE_SECONDS


def test_a_stalled_holder_notices_its_loss_whatever_its_successor_did(store: Store) -> None:
    clock = ScriptedClock()
    stalled = take_night_lease(store, clock)
    second = take_night_lease(store, ScriptedClock(), job="the second")
    with pytest.raises(
        LeaseLost, match=r"this nightly did not renew its lease in time, and the second on .* took its pl"
    ):
        stalled.renew()  # its clock has not moved, as if the whole machine had slept
    assert stalled.lost
    second.renew()
    second.release()
    third = take_night_lease(store, ScriptedClock(), job="the third")
    with pytest.raises(LeaseLost):
        stalled.renew()
    stalled.release()
    assert not read_lease(store, "night").is_free, "releasing a lost lease has no effect"
    third.renew()


def test_a_holder_that_slept_through_two_others_has_lost_its_lease(store: Store) -> None:
    clock = ScriptedClock()
    stalled = take_night_lease(store, clock)
    for _ in range(2):
        take_night_lease(store, ScriptedClock()).release()
    clock.time += LEASE_SECONDS
    with pytest.raises(LeaseLost):
        stalled.renew()
    assert read_lease(store, "night").is_free


def test_a_late_holder_without_a_successor_continues_under_the_next_number(store: Store) -> None:
    clock = ScriptedClock()
    late = take_night_lease(store, clock)
    clock.time += 0.9 * LEASE_SECONDS
    theirs = ScriptedClock(meanwhile=late.renew)
    with pytest.raises(LeaseHeld):
        take_night_lease(store, theirs)
    assert late.number == 2 and not late.lost


def test_only_one_of_two_concurrent_processes_takes_a_dead_lease(store: Store) -> None:
    dead = take_night_lease(store, ScriptedClock())
    winners = []

    def overtake() -> None:
        if theirs.time >= LEASE_SECONDS and not winners:
            winners.append(take_night_lease(store, ScriptedClock(), job="the faster"))

    theirs = ScriptedClock(meanwhile=overtake)
    with pytest.raises(LeaseHeld, match="the faster on"):
        take_night_lease(store, theirs)
    assert [lease.number for lease in winners] == [dead.number + 1]


def test_a_number_is_not_used_twice_even_if_its_file_was_removed(store: Store) -> None:
    slow = take_night_lease(store, ScriptedClock())
    take_night_lease(store, ScriptedClock()).release()
    third = take_night_lease(store, ScriptedClock())
    assert not slow.claim(2), "the file is gone, but a higher one exists"
    third.renew()


def test_a_holder_whose_store_is_unreachable_for_a_while_keeps_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store_at(tmp_path / "store")
    lease = take_night_lease(store, ScriptedClock())
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("in the way")
    with pytest.raises(PlumblineError, match="cannot be"):
        lease.renew()
    assert not lease.lost
    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    lease.renew()
    assert not lease.lost


@contextmanager
def simulate_full_disk() -> Iterator[None]:
    """Prevent this process from writing a single byte to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class CountingClock(ScriptedClock):
    """A clock that counts how often it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = threading.Semaphore(0)

    def now(self) -> float:
        self.reads.release()
        return self.time

    def is_read_again(self, times: int) -> bool:
        """Return True if the renewing thread reads the clock another `times` times, with pauses under 20 seconds."""
        while self.reads.acquire(blocking=False):
            pass
        return all(self.reads.acquire(timeout=20) for _ in range(times))


def test_a_late_holder_with_a_full_disk_keeps_trying_until_another_process_takes_the_lease(tmp_path: Path) -> None:
    store = open_store_at(tmp_path / "store")
    clock, told = CountingClock(), Queue[LeaseLost]()
    with take_lease(store, "night", "nightly", seconds=0.3, clock=clock) as lease:
        lease.when_lost = told.put
        with simulate_full_disk():
            clock.time += 0.25
            assert clock.is_read_again(5), "its thread continues"
            with pytest.raises(WriteError, match=r"leases/night/00000002.json: cannot be written"):
                lease.renew()
            assert not lease.lost
        assert clock.is_read_again(5) and lease.number == 2 and told.empty()
        store.write_text("leases/night/00000003.json", "{")
        assert "took its place" in str(told.get(timeout=20))


def test_an_unreadable_file_counts_as_a_dead_lease(store: Store) -> None:
    store.write_text("leases/night/00000004.json", "{")
    assert read_lease(store, "night").holder is None
    assert take_night_lease(store, ScriptedClock()).number == 5


@contextmanager
def start_holder(store: Store, beats: int) -> Iterator[subprocess.Popen[str]]:
    """Yield another process that has taken a lease of an hour, and reports on request whether it still has the lease.

    Its thread renews the lease `beats` times per hour.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER_SCRIPT, store.place.url, str(HOUR_SECONDS), str(beats)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def ask(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


class ShortWaitClock(Clock):
    """The real clock, with at most half a second between two polls."""

    def pause(self, seconds: float) -> None:
        super().pause(min(seconds, 0.5))


def test_a_thread_renews_the_lease_until_its_process_is_killed(store: Store) -> None:
    with (
        start_holder(store, beats=HOUR_SECONDS) as process,
        pytest.raises(LeaseHeld, match=rf"process {process.pid}\), since"),
    ):
        take_night_lease(store, ShortWaitClock())
    assert process.returncode == -signal.SIGKILL
    lease = take_night_lease(store, ScriptedClock())
    assert not lease.lost


def test_a_suspended_process_finds_its_lease_lost_when_it_resumes(store: Store) -> None:
    with start_holder(store, beats=1) as process:
        assert ask(process) == "held\n"
        os.kill(process.pid, signal.SIGSTOP)
        lease = take_night_lease(store, ScriptedClock())
        os.kill(process.pid, signal.SIGCONT)
        assert "took its place" in ask(process)
        lease.renew()

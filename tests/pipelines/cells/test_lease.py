"""A lease has one holder at a time, on a folder and on S3, whatever the clocks say and whoever dies or stalls."""

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
from plumbline.pipelines.cells.lease import Clock, Lease, LeaseHeld, LeaseLost, living, see, standing, take
from plumbline.pipelines.cells.store import Store
from tests.commands import store_at

ROOT = Path(__file__).parent.parent.parent.parent
SECONDS = 60.0
HOUR = 3600
HOLDER = """
import sys
from plumbline.pipelines.cells import lease as module
from plumbline.pipelines.cells.lease import LeaseLost, take
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.base.storage import StorageConfig

module.RENEWALS_PER_TIMEOUT = float(sys.argv[3])
with take(Store(StorageConfig().locate(sys.argv[1])), "night", "another night", seconds=float(sys.argv[2])) as lease:
    print("held", flush=True)
    for _ in sys.stdin:
        try:
            lease.renew()
            print("held", flush=True)
        except LeaseLost as error:
            print(error, flush=True)
"""


class Script(Clock):
    """A clock of its own beginning that goes on only where somebody waits, and what happens meanwhile."""

    def __init__(self, start: float = 0.0, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.time = start
        self.meanwhile = meanwhile

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.time += seconds
        self.meanwhile()


def taken(store: Store, clock: Clock, wait: float = 0.0, job: str = "nightly") -> Lease:
    return take(store, "night", job, seconds=SECONDS, wait=wait, clock=clock)


def test_a_lease_that_is_heard_of_is_refused_and_one_released_is_free_at_once(store: Store) -> None:
    ours = taken(store, Script())
    theirs = Script(1e9, meanwhile=ours.renew)
    with pytest.raises(LeaseHeld, match=r"leases: nightly on .* \(process \d+\), since .* is at work; run again once"):
        taken(store, theirs)
    assert theirs.time < 1e9 + SECONDS / 4, "one sign of life is enough"
    assert standing(store).keys() == {"night"}
    ours.release()
    assert standing(store) == {} and taken(store, Script()).number == 2


@pytest.mark.parametrize("clock", [0.0, -1e6, 1e9], ids=["same", "behind", "ahead"])
def test_a_dead_ones_lease_is_taken_after_its_time_by_the_watchers_clock(clock: float, store: Store) -> None:
    taken(store, Script())
    theirs = Script(clock)
    assert taken(store, theirs).number == 2
    assert SECONDS <= theirs.time - clock < 1.2 * SECONDS


def test_somebody_waits_for_a_lease_as_long_as_they_said(store: Store) -> None:
    ours = taken(store, Script())
    theirs = Script(meanwhile=ours.renew)
    with pytest.raises(LeaseHeld):
        taken(store, theirs, wait=2 * SECONDS)
    assert 2 * SECONDS <= theirs.time < 2.2 * SECONDS
    patient = Script(meanwhile=lambda: ours.renew() if patient.time < SECONDS else ours.release())
    assert taken(store, patient, wait=2 * SECONDS).number == 2
    assert patient.time < 1.2 * SECONDS


def test_a_stalled_holder_notices_whatever_became_of_the_one_that_took_its_place(store: Store) -> None:
    clock = Script()
    stalled = taken(store, clock)
    second = taken(store, Script(), job="the second")
    with pytest.raises(
        LeaseLost, match=r"this nightly was not heard of for too long, and the second on .* took its pl"
    ):
        stalled.renew()  # its clock has not moved: it was the whole machine that slept
    assert stalled.lost
    second.renew()
    second.release()
    third = taken(store, Script(), job="the third")
    with pytest.raises(LeaseLost):
        stalled.renew()
    stalled.release()
    assert not see(store, "night").is_free, "it releases what is no longer its own to no effect"
    third.renew()


def test_a_holder_that_slept_while_two_others_came_and_went_has_lost_it(store: Store) -> None:
    clock = Script()
    stalled = taken(store, clock)
    for _ in range(2):
        taken(store, Script()).release()
    clock.time += SECONDS
    with pytest.raises(LeaseLost):
        stalled.renew()
    assert see(store, "night").is_free


def test_a_late_holder_that_nobody_replaced_goes_on_under_the_next_number(store: Store) -> None:
    clock = Script()
    late = taken(store, clock)
    clock.time += 0.9 * SECONDS
    theirs = Script(meanwhile=late.renew)
    with pytest.raises(LeaseHeld):
        taken(store, theirs)
    assert late.number == 2 and not late.lost


def test_of_two_that_find_it_dead_at_the_same_moment_one_gets_it(store: Store) -> None:
    dead = taken(store, Script())
    winners = []

    def overtake() -> None:
        if theirs.time >= SECONDS and not winners:
            winners.append(taken(store, Script(), job="the faster"))

    theirs = Script(meanwhile=overtake)
    with pytest.raises(LeaseHeld, match="the faster on"):
        taken(store, theirs)
    assert [lease.number for lease in winners] == [dead.number + 1]


def test_a_number_that_was_tidied_away_is_not_taken_twice(store: Store) -> None:
    slow = taken(store, Script())
    taken(store, Script()).release()
    third = taken(store, Script())
    assert not slow.claim(2), "the file is gone, but a higher one stands"
    third.renew()


def test_a_holder_whose_store_is_out_of_reach_for_a_while_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path / "store")
    lease = taken(store, Script())
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
def full_disk() -> Iterator[None]:
    """No byte of a file can be written by this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Late(Script):
    """A clock that counts how often it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = threading.Semaphore(0)

    def now(self) -> float:
        self.reads.release()
        return self.time

    def has_beaten(self, times: int) -> bool:
        """Whether the thread that renews the lease reads the clock so often from now on."""
        while self.reads.acquire(blocking=False):
            pass
        return all(self.reads.acquire(timeout=20) for _ in range(times))


def test_a_late_holder_whose_disk_is_full_keeps_trying_and_is_told_once_another_took_its_place(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    clock, told = Late(), Queue[LeaseLost]()
    with take(store, "night", "nightly", seconds=0.3, clock=clock) as lease:
        lease.when_lost = told.put
        with full_disk():
            clock.time += 0.25
            assert clock.has_beaten(5), "its thread goes on"
            with pytest.raises(WriteError, match=r"leases/night/00000002.json: cannot be written"):
                lease.renew()
            assert not lease.lost
        assert clock.has_beaten(5) and lease.number == 2 and told.empty()
        store.write_text("leases/night/00000003.json", "{")
        assert "took its place" in str(told.get(timeout=20))


def test_a_file_that_nobody_can_read_is_a_dead_ones(store: Store) -> None:
    store.write_text("leases/night/00000004.json", "{")
    assert standing(store)["night"].holder is None
    assert taken(store, Script()).number == 5


def test_who_is_alive_is_told_of_all_leases_at_once(store: Store) -> None:
    clock = Script()
    take(store, "dead", "gc", seconds=SECONDS, clock=clock)
    alive = take(store, "alive", "nightly", seconds=SECONDS, clock=clock)
    take(store, "ended", "gc", seconds=SECONDS, clock=clock).release()
    theirs = Script(5.0, meanwhile=alive.renew)
    found = living(store, theirs)
    assert found.keys() == {"alive"} and str(found["alive"]).startswith("nightly on ")
    assert theirs.time < 5.0 + 1.2 * SECONDS


@contextmanager
def holder(store: Store, beats: int) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease for an hour, and says whether it does when it is written to."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, store.place.url, str(HOUR), str(beats)],
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


class Eager(Clock):
    """The real clock, for whom half a second is enough between two looks."""

    def pause(self, seconds: float) -> None:
        super().pause(min(seconds, 0.5))


def test_a_process_at_work_is_heard_of_by_its_thread_and_once_it_is_killed_no_more(store: Store) -> None:
    with holder(store, beats=HOUR) as process, pytest.raises(LeaseHeld, match=rf"process {process.pid}\), since"):
        taken(store, Eager())
    assert process.returncode == -signal.SIGKILL
    lease = taken(store, Script())
    assert not lease.lost


def test_a_process_that_was_stopped_finds_its_lease_lost_when_it_goes_on(store: Store) -> None:
    with holder(store, beats=1) as process:
        assert ask(process) == "held\n"
        os.kill(process.pid, signal.SIGSTOP)
        lease = taken(store, Script())
        os.kill(process.pid, signal.SIGCONT)
        assert "took its place" in ask(process)
        lease.renew()

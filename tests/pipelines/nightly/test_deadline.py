"""A nightly run stops on request: by an exception in the main thread, and by force after the grace period."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from plumbline.pipelines.base.exit_codes import DEADLINE_PASSED, LEASE_LOST
from plumbline.pipelines.nightly.deadline import NightStopped, stop_early
from plumbline.pipelines.store.lease import LeaseLost

ROOT = Path(__file__).parent.parent.parent.parent
STUBBORN_SCRIPT = """
import threading
from plumbline.pipelines.store.lease import LeaseLost
from plumbline.pipelines.nightly.deadline import NightStopped, stop_early

with stop_early(None, grace=0.01) as stop:
    while True:
        try:
            stop(LeaseLost("another has it"))
            threading.Event().wait()
        except NightStopped:
            pass
"""


def test_a_deadline_ends_an_endless_wait_and_is_gone_afterwards() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with (
        pytest.raises(NightStopped, match=r"nightly\.deadline: 0\.01 seconds have passed") as stopped,
        stop_early(0.01),
    ):
        threading.Event().wait()
    assert stopped.value.exit_code == DEADLINE_PASSED
    with stop_early(3600):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0 and signal.getsignal(signal.SIGALRM) is before


def test_a_thread_that_finds_the_lease_lost_ends_the_main_thread() -> None:
    with pytest.raises(NightStopped, match="another has it") as stopped, stop_early(None) as stop:
        thread = threading.Thread(target=stop, args=(LeaseLost("another has it"),))
        thread.start()
        threading.Event().wait()
    thread.join()
    assert stopped.value.exit_code == LEASE_LOST


def test_a_process_that_does_not_stop_is_killed_and_ends_with_the_same_exit_code() -> None:
    assert subprocess.run([sys.executable, "-c", STUBBORN_SCRIPT], cwd=ROOT, check=False).returncode == LEASE_LOST

"""A deadline ends a process whose code hangs, and does not affect code that finishes in time."""

import signal
import subprocess
import sys

BEGIN_SCRIPT = (
    "import threading; from plumbline.pipelines.running.process import Deadline; forever = threading.Event().wait; "
)


def run(body: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", BEGIN_SCRIPT + body], capture_output=True, text=True, timeout=120)


def test_code_that_exceeds_its_deadline_ends_the_process_with_a_traceback() -> None:
    ended = run("\nwith Deadline(0.2)():\n    forever()")
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr and "threading.py" in ended.stderr


def test_another_threads_success_does_not_extend_the_deadline_of_hanging_code() -> None:
    ended = run(
        "deadline = Deadline(0.2)\n"
        "def other():\n"
        "    while True:\n"
        "        with deadline():\n"
        "            pass\n"
        "threading.Thread(target=other, daemon=True).start()\n"
        "with deadline():\n"
        "    forever()"
    )
    crashed = (
        -signal.SIGSEGV
    )  # the traceback of a running thread is printed concurrently, and may be cut off by the end of the process
    assert ended.returncode in (1, crashed) and "Timeout" in ended.stderr


def test_code_that_finishes_in_time_leaves_no_timer_behind() -> None:
    ended = run("\nwith Deadline(0.2)():\n    pass\nforever(1)\nprint('goes on')")
    assert (ended.returncode, ended.stdout) == (0, "goes on\n")


def test_without_a_deadline_code_may_take_any_time() -> None:
    ended = run("\nwith Deadline(None)():\n    print('goes on')")
    assert (ended.returncode, ended.stdout) == (0, "goes on\n")

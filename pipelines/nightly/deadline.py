"""What ends a night that would not end by itself: its deadline, and a lease that another has taken."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from plumbline.pipelines.base.exit_codes import LATE, LOST
from plumbline.pipelines.cells.lease import LeaseLost

GRACE = 120.0
"""Seconds that a night has to end itself once it is told to; then it is killed, which costs no more."""


class Stopped(KeyboardInterrupt):
    """A night is told to end, as by Ctrl-C, so that nothing on the way takes it for a failure of its own."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


Stop = Callable[[LeaseLost], None]


@contextmanager
def bounded(deadline: float | None, grace: float = GRACE) -> Iterator[Stop]:
    """Raises Stopped in the main thread after `deadline` seconds, or when what it gives is called, from any thread."""
    lost: list[LeaseLost] = []
    ended = threading.Event()

    def raise_stopped(signum: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        code = LOST if lost else LATE
        threading.Thread(target=kill, args=(code,), daemon=True).start()
        if lost:
            raise Stopped(str(lost[0]), code)
        raise Stopped(
            f"nightly.deadline: {deadline:g} seconds are over; what was computed is kept, and the next "
            "night goes on from there",
            code,
        )

    def kill(code: int) -> None:
        if not ended.wait(grace):
            os._exit(code)

    def stop(error: LeaseLost) -> None:
        lost.append(error)
        main = threading.main_thread().ident
        if main is not None and not ended.is_set():
            signal.pthread_kill(main, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, raise_stopped)
    try:
        signal.setitimer(signal.ITIMER_REAL, deadline or 0)
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        ended.set()
        signal.signal(signal.SIGALRM, before)

"""Stops a nightly run early: at its deadline, or when another process takes its lease."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from plumbline.pipelines.base.exit_codes import DEADLINE_PASSED, LEASE_LOST
from plumbline.pipelines.store.lease import LeaseLost

GRACE_SECONDS = 120.0
"""Seconds that a stopped nightly run has to clean up before it is killed; killing it loses no results."""


class NightStopped(KeyboardInterrupt):
    """Signal that a nightly run must end; a KeyboardInterrupt, so that no other code handles the signal as an error."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


StopNight = Callable[[LeaseLost], None]
"""Function that ends the nightly run because its lease is lost; can be called from any thread."""


@contextmanager
def stop_early(deadline: float | None, grace: float = GRACE_SECONDS) -> Iterator[StopNight]:
    """Raise NightStopped in the main thread after `deadline` seconds, or when the yielded function is called.

    If the context has not ended `grace` seconds later, the process is killed.
    """
    lost: list[LeaseLost] = []
    ended = threading.Event()

    def raise_stopped(signum: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        code = LEASE_LOST if lost else DEADLINE_PASSED
        threading.Thread(target=kill, args=(code,), daemon=True).start()
        if lost:
            raise NightStopped(str(lost[0]), code)
        raise NightStopped(
            f"nightly.deadline: {deadline:g} seconds have passed; all computed cells are kept, and the next night "
            "continues from them",
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

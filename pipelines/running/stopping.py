"""Signals that end a run, taken between two batches: whole rows are saved first."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from plumbline.operators.stopping import STOP

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
"""Ctrl-C, a scheduler, and a night's deadline."""


class Stopping(KeyboardInterrupt):
    """A shard is left because the process is to stop; its whole rows are saved."""


@contextmanager
def stopped_between_batches() -> Iterator[None]:
    """Sets STOP when a signal would raise KeyboardInterrupt, and raises that when the body has come to an end.

    The body ends by Stopping, or because it is done. A second signal is raised at once. Signals reach the main thread
    alone, so the body of another thread is never stopped.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised: list[KeyboardInterrupt] = []

    def deferred(handler: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, frame: FrameType | None) -> None:
            try:
                handler(number, frame)
            except KeyboardInterrupt as error:
                if raised:
                    raise
                raised.append(error)
                STOP.set()

        return handle

    before = {number: handler for number in SIGNALS if callable(handler := signal.getsignal(number))}
    try:
        for number, handler in before.items():
            signal.signal(number, deferred(handler))
        yield
    except Stopping:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        STOP.clear()
    if raised:
        raise raised[0]

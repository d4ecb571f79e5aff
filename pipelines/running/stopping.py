"""Signals that end a run. They take effect between two batches, after complete rows are saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from plumbline.operators.base.stopping import STOP

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
"""Signals of Ctrl-C, of a scheduler, and of a night's deadline."""


class Stopping(KeyboardInterrupt):
    """The process stops and leaves a shard; the shard's complete rows are saved."""


@contextmanager
def stopped_between_batches() -> Iterator[Callable[[], None]]:
    """Set STOP when a signal would raise KeyboardInterrupt, and raise KeyboardInterrupt only after the body.

    The body ends by Stopping, by any error, or because it is done. A second signal is raised at once, and so is the
    first one when a thread calls the function that this yields. Only the main thread receives signals, so the body is
    never stopped in another thread.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main or main.ident is None:
        yield lambda: None
        return
    raised: list[tuple[int, KeyboardInterrupt]] = []

    def defer(handler: Callable[[int, FrameType | None], object]) -> Callable[[int, FrameType | None], None]:
        def handle(number: int, frame: FrameType | None) -> None:
            if raised:
                raise raised[0][1]
            try:
                handler(number, frame)
            except KeyboardInterrupt as error:
                raised.append((number, error))
                STOP.set()

        return handle

    before = {number: handler for number in SIGNALS if callable(handler := signal.getsignal(number))}
    try:
        for number, handler in before.items():
            signal.signal(number, defer(handler))
        yield lambda: signal.pthread_kill(main.ident or 0, raised[0][0]) if raised else None
    except Stopping:
        pass
    except Exception:
        if not raised:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        STOP.clear()
    if raised:
        raise raised[0][1]

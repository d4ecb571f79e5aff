"""Settings of a process that runs models: threads, memory, a deadline for calls that hang, and stop signals."""

import atexit
import ctypes
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from plumbline.operators.base.stopping import STOP_REQUESTED

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt, as numbered in malloc.h."""
MAX_MMAP_THRESHOLD_BYTES = 32 << 20
"""Size in bytes from which glibc maps an allocation separately: the largest size that glibc allows for this."""
TRIM_THRESHOLD_BYTES = 1 << 30
"""Bytes of free memory that glibc keeps at the top of the heap."""
GC_OBJECTS_THRESHOLD = 50_000
"""Number of new objects after which Python collects garbage. Imports create many long-lived objects, and scanning them
repeatedly takes a fifth of the time of importing torch and transformers.
"""
GC_YOUNG_COLLECTIONS = 100
"""Number of collections among new objects after which those that survived one are scanned, too."""
MIN_TIMER_SECONDS = 1e-3
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
"""Signals that stop a run: from Ctrl-C, from a scheduler, and from the deadline of a nightly run."""


class Deadline:
    """Deadline for calls: `with deadline():` ends this process, and logs a traceback, if the block takes too long.

    Nothing else ends a call that hangs. The timer is not a Python thread, so it also runs while the call holds the
    interpreter lock. Several threads may use a deadline at the same time; each has the full time limit.
    """

    def __init__(self, seconds: float | None) -> None:
        """Create a deadline that allows each `with` block this many seconds; None means no time limit."""
        self.seconds = seconds
        self.due: dict[object, float] = {}
        """Time at which each running block is due, earliest first."""
        self.changing = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self.seconds is None:
            yield
            return
        due = object()
        with self.changing:
            self.due[due] = time.monotonic() + self.seconds
            if len(self.due) == 1:
                self._restart_timer()
        try:
            yield
        finally:
            with self.changing:
                first = next(iter(self.due)) is due
                del self.due[due]
                if first:  # otherwise the timer is running for another thread; resetting it would hide a hang there
                    self._restart_timer()

    def _restart_timer(self) -> None:
        if self.due:
            left = next(iter(self.due.values())) - time.monotonic()
            faulthandler.dump_traceback_later(max(left, MIN_TIMER_SECONDS), exit=True)
        else:
            faulthandler.cancel_dump_traceback_later()


def tune_process(threads: int | None) -> None:
    """Prepare this process for models that compute with `threads` threads; None keeps torch's default."""
    # OpenMP's threads sleep between the parts of a model call. By default they spin, which takes cores from threads
    # that decode images: on two cores, CLIPScore of 3,000 images in one process then takes 1.5 times the CPU time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # At exit, Python would collect garbage among all the objects of torch and transformers, which takes a second.
    atexit.register(gc.freeze)
    gc.set_threshold(GC_OBJECTS_THRESHOLD, GC_YOUNG_COLLECTIONS)
    # glibc, if that is the C library, keeps freed memory for the next batch. By default every large tensor on the CPU
    # is a fresh mapping, and its page faults take up to a third of a small model's time, most of all in threads other
    # than the first.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    set_torch_threads(threads)


def set_torch_threads(threads: int | None) -> None:
    """Set the number of threads for later model calls in this process; None leaves it unchanged."""
    if threads is not None:
        import torch  # only in workers: the driver never imports it

        torch.set_num_threads(threads)


class RunStopping(KeyboardInterrupt):
    """Signal that ends the computation of a shard because the process is stopping; complete rows have been saved."""


@contextmanager
def defer_stop_signals() -> Iterator[Callable[[], None]]:
    """Set STOP_REQUESTED on a stop signal, and raise the signal's KeyboardInterrupt only when the context ends.

    The code within the context notices STOP_REQUESTED and raises RunStopping, or runs to its end. The interrupt is
    raised at once on a second signal, or if a thread calls the yielded function after the first signal. Only the main
    thread receives signals, so a context in another thread is never stopped.
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
                STOP_REQUESTED.set()

        return handle

    handlers = {number: handler for number in STOP_SIGNALS if callable(handler := signal.getsignal(number))}
    try:
        for number, handler in handlers.items():
            signal.signal(number, defer(handler))
        yield lambda: signal.pthread_kill(main.ident or 0, raised[0][0]) if raised else None
    except RunStopping:
        pass
    except Exception:
        if not raised:
            raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        STOP_REQUESTED.clear()
    if raised:
        raise raised[0][1]

"""Settings of a process that holds models: its threads, its memory, and a deadline for calls that hang."""

import atexit
import ctypes
import faulthandler
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt, as malloc.h numbers them."""
MAX_MMAP_THRESHOLD = 32 << 20
"""Bytes from which glibc maps memory afresh; the largest value that it allows."""
TRIM_THRESHOLD = 1 << 30
"""Bytes that glibc keeps at the top of the heap."""
OBJECTS = 50_000
"""New ones after which Python looks for garbage. Imports make many that stay; looking at these again and again takes
a fifth of the time in which torch and transformers are imported."""
MIN_CLOCK = 1e-3
"""Seconds for a clock that is already overdue."""


class Deadline:
    """Ends this process if a body takes too long, with a traceback in its log.

    Nothing else ends a call that hangs. The clock is not a Python thread, so it runs while the call holds the
    interpreter. Several threads may enter at once; each has the full time.
    """

    def __init__(self, seconds: float | None) -> None:
        """None sets no deadline."""
        self.seconds = seconds
        self.due: dict[object, float] = {}
        """When each thread inside must have left, earliest first."""
        self.changing = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Ends the process if the body takes longer."""
        if self.seconds is None:
            yield
            return
        due = object()
        with self.changing:
            self.due[due] = time.monotonic() + self.seconds
            if len(self.due) == 1:
                self._set_clock()
        try:
            yield
        finally:
            with self.changing:
                first = next(iter(self.due)) is due
                del self.due[due]
                if first:  # else the clock runs for another, and is not to be set anew while that one hangs
                    self._set_clock()

    def _set_clock(self) -> None:
        if self.due:
            left = next(iter(self.due.values())) - time.monotonic()
            faulthandler.dump_traceback_later(max(left, MIN_CLOCK), exit=True)
        else:
            faulthandler.cancel_dump_traceback_later()


def tune_process(threads: int | None) -> None:
    """Make a process ready to load models and call them in `threads` threads, torch's own number if that is None.

    OpenMP's threads sleep between the parts of a model call. By default they spin, and take the cores from threads
    that decode images: on two cores, CLIPScore of 3,000 images in one process then takes 1.5 times the CPU time. At its
    exit Python looks for no garbage among all that torch and transformers left, which takes a second.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    atexit.register(gc.freeze)
    _keep_freed_memory()
    gc.set_threshold(OBJECTS)
    set_torch_threads(threads)


def _keep_freed_memory() -> None:
    """Tells glibc, where that is the C library, to keep freed memory for the next batch.

    By default every large tensor on the CPU is a fresh mapping, and faulting its pages in takes up to a third of a
    small model's time; threads other than the first suffer most.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD)


def set_torch_threads(threads: int | None) -> None:
    """Sets the threads of later model calls in this process; None leaves them as they are."""
    if threads is not None:
        import torch  # only in workers: the driver never imports it

        torch.set_num_threads(threads)

"""What a process that holds models sets for itself: its threads, its memory, and its end where a call hangs."""

import ctypes
import faulthandler
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt, as malloc.h numbers them."""
LARGEST_KEPT = 32 << 20
"""Bytes; the most that glibc admits."""
MOST_KEPT = 1 << 30
"""Bytes at the top of the heap."""
SHORTEST = 1e-3
"""Seconds of a clock that should have ended."""


class Deadline:
    """Ends this process, and says in its log where it stood, where what it is entered for takes too long.

    Nothing else ends a call that hangs. The clock is no thread of Python's: it goes on while the call holds the
    interpreter. Several threads may enter it at once; each has all of the time.
    """

    def __init__(self, seconds: float | None) -> None:
        """None never ends it."""
        self.seconds = seconds
        self.due: dict[object, float] = {}
        """When those that are in it must be out, the first to come first."""
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
            faulthandler.dump_traceback_later(max(left, SHORTEST), exit=True)
        else:
            faulthandler.cancel_dump_traceback_later()


def keep_freed_memory() -> None:
    """Tells glibc, where that is the C library, to keep freed memory for the next batch.

    By default every large tensor on the CPU is a fresh mapping, and faulting its pages in takes up to a third of a
    small model's time; threads other than the first suffer most.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(M_TRIM_THRESHOLD, MOST_KEPT)


def set_torch_threads(threads: int | None) -> None:
    """Of all later calls of models in this process; None leaves the choice that was made."""
    if threads is not None:
        import torch  # only in workers: the driver never imports it

        torch.set_num_threads(threads)

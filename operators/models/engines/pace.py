"""No more requests in a minute than a service takes."""

import threading
import time
from collections.abc import Callable


class Pace:
    """Lets requests pass at even distances, whichever threads make them."""

    def __init__(
        self,
        per_minute: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._distance, self._clock, self._sleep = 60 / per_minute, clock, sleep
        self._next = -float("inf")
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Returns when the next request may be made."""
        with self._lock:
            now = self._clock()
            turn = max(now, self._next)
            self._next = turn + self._distance
        if turn > now:
            self._sleep(turn - now)

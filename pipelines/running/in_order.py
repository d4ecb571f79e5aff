"""Processes many items at the same time and returns the results in the items' order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
Begun = TypeVar("Begun")

AHEAD = 4
"""Items begun per item that can run at a time, so that a slow item does not hold up the others."""


def in_order(
    items: Iterable[Item],
    begin: Callable[[Item], Begun],
    take: Callable[[Begun], Result],
    cancel: Callable[[Begun], object],
    room: Callable[[], int],
) -> Iterator[Result]:
    """Yield the result of each item, in order, with at most `room()` items begun and not yet taken."""
    begun: deque[Begun] = deque()
    try:
        for item in items:
            while len(begun) >= room():
                yield take(begun.popleft())
            begun.append(begin(item))
        while begun:
            yield take(begun.popleft())
    finally:
        for left in begun:
            cancel(left)

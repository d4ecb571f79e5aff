"""Many items begun ahead and taken in their order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
Begun = TypeVar("Begun")

AHEAD = 4
"""Items begun for each place where one can run, so that a slow one holds no other up."""


def in_order(
    items: Iterable[Item],
    begin: Callable[[Item], Begun],
    take: Callable[[Begun], Result],
    cancel: Callable[[Begun], object],
    room: Callable[[], int],
) -> Iterator[Result]:
    """What is taken of each item, in their order, with at most `room` begun and not taken."""
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

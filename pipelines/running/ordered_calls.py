"""Processes many items concurrently and returns the results in the order of the items."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
Started = TypeVar("Started")

ITEMS_PER_SLOT = 4
"""Number of items to start per available slot, so that a slow item does not delay the other items."""


def call_in_order(
    items: Iterable[Item],
    begin: Callable[[Item], Started],
    await_result: Callable[[Started], Result],
    cancel: Callable[[Started], object],
    count_slots: Callable[[], int],
) -> Iterator[Result]:
    """Yield the result of each item, in order; `count_slots` returns how many items can run concurrently.

    `begin` starts an item, and `await_result` waits for its result. If the iteration ends early, `cancel` is called for
    items that were started but have not been waited for.
    """
    begun: deque[Started] = deque()
    try:
        for item in items:
            while len(begun) >= ITEMS_PER_SLOT * count_slots():
                yield await_result(begun.popleft())
            begun.append(begin(item))
        while begun:
            yield await_result(begun.popleft())
    finally:
        for unfinished in begun:
            cancel(unfinished)

"""The type of functions that apply another function to items in order, in parallel or one at a time."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class OrderedMap(Protocol):
    """Function that applies another function to each item, and yields the results in the order of the items.

    The function, the items and the results must be picklable, because the map may run in other processes.
    """

    def __call__(
        self, function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
    ) -> Iterator[Result]: ...


def map_sequentially(
    function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
) -> Iterator[Result]:
    """Yield the function's result for each item, computed in this thread when the result is needed."""
    return (function(shared, item) for item in items)

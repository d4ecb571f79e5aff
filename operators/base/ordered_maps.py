"""Maps that apply a function to items: sequentially here, or in parallel if a caller passes another map."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class OrderedMap(Protocol):
    """Map that yields a function's result for each item, in the items' order.

    Function, items and results must be picklable, because the map may run in other processes.
    """

    def __call__(
        self, function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
    ) -> Iterator[Result]: ...


def map_sequentially(
    function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
) -> Iterator[Result]:
    """Yield the results, computed in this thread."""
    return (function(shared, item) for item in items)

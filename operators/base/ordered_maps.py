"""Maps that apply a function to items: sequentially by default, or in parallel if the caller passes such a map."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class OrderedMap(Protocol):
    """A map that yields a function's result for each item, in the order of the items.

    The function, the items and the results must be picklable, because the map may run in other processes.
    """

    def __call__(
        self, function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
    ) -> Iterator[Result]: ...


def map_sequentially(
    function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
) -> Iterator[Result]:
    """Yield the results one after another, computed in this thread."""
    return (function(shared, item) for item in items)

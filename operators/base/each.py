"""How a function is called for each of many items: one after the other, or as whoever hands in another way does it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Each(Protocol):
    """Gives a function's result for each item, in the items' order; function, items and results can be pickled."""

    def __call__(
        self, function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
    ) -> Iterator[Result]: ...


def one_by_one(
    function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
) -> Iterator[Result]:
    """In this thread."""
    return (function(shared, item) for item in items)

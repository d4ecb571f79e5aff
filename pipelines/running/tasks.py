"""Calls pure functions for many items in parallel: in threads of this process, or in Ray tasks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Protocol

from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.running.ordered_calls import Item, Result, Shared, call_in_order
from plumbline.pipelines.store.store import Store

THREADS = 8
"""Items at the same time in this process; they wait for storage more than they compute."""


class Tasks(Protocol):
    """Calls functions for many items at once, in this process or on Ray."""

    def map(
        self, function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
    ) -> Iterator[Result]:
        """Yield the function's result for each item, in the items' order; raise the errors that it raises.

        Items are taken a few at a time. `shared` is sent once, so that items and results can be small; all must be
        picklable. A call is repeated if its process dies, so the function must be idempotent.
        """


class TasksHere:
    """Calls functions in threads of this process."""

    def map(
        self, function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
    ) -> Iterator[Result]:
        def begin(item: Item) -> Future[Result]:
            return pool.submit(copy_context().run, function, shared, item)

        with ThreadPoolExecutor(THREADS) as pool:
            yield from call_in_order(items, begin, Future.result, Future.cancel, lambda: THREADS)


@contextmanager
def open_tasks(cluster: ClusterConfig, store: Store, *, rows: int, sources: Sequence[Place] = ()) -> Iterator[Tasks]:
    """Open tasks for a number of rows: in this process up to `cluster.driver_rows` or with cluster=here, else on Ray.

    Every process on Ray must see the store and the `sources` as the driver does.
    """
    if cluster.executor == "here" or rows <= cluster.driver_rows:
        yield TasksHere()
        return
    from plumbline.pipelines.running.ray_tasks import tasks_on_ray  # imports Ray, which takes seconds

    with tasks_on_ray(cluster, store, sources) as tasks:
        yield tasks

"""Applies pure functions to many items in parallel, in threads of this process or in Ray tasks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import Protocol

from plumbline.operators.base.extensions import explain_missing_extra
from plumbline.pipelines.base.cluster_config import ClusterConfig, is_ray_installed
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.running.ordered_calls import Item, Result, Shared, call_in_order
from plumbline.pipelines.store.store import Store

N_THREADS = 8
"""Number of items processed concurrently in this process. Items spend more time waiting for storage than computing."""


class TaskRunner(Protocol):
    """Applies functions to many items in parallel, in this process or on Ray."""

    def map(
        self, function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
    ) -> Iterator[Result]:
        """Yield the function's result for each item, in the order of the items; raise any error that it raises.

        Items are consumed lazily, a few at a time. `shared` is sent once per call to `map`, which keeps items small.
        The function, `shared`, items and results must be picklable. If a process dies, its call is repeated, so the
        function must be idempotent.
        """


class ThreadTaskRunner:
    """Calls functions in threads of this process."""

    def map(
        self, function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
    ) -> Iterator[Result]:
        def begin(item: Item) -> Future[Result]:
            return pool.submit(copy_context().run, function, shared, item)

        with ThreadPoolExecutor(N_THREADS) as pool:
            yield from call_in_order(items, begin, Future.result, Future.cancel, lambda: N_THREADS)


@contextmanager
def open_tasks(
    cluster: ClusterConfig, store: Store, *, rows: int, sources: Sequence[Place] = ()
) -> Iterator[TaskRunner]:
    """Yield an object that runs tasks on Ray, or in threads of this process.

    Threads are used for at most `cluster.driver_rows` rows, for cluster=here, and for cluster=auto if no address is set
    and Ray is not installed. On Ray, every process must see the same store and `sources` as the driver.
    """
    without_ray = cluster.executor == "auto" and cluster.address is None and not is_ray_installed()
    if cluster.executor == "here" or rows <= cluster.driver_rows or without_ray:
        yield ThreadTaskRunner()
        return
    with explain_missing_extra("ray", f"a run of more than {cluster.driver_rows} rows (cluster.driver_rows)"):
        from plumbline.pipelines.running.ray_tasks import open_ray_tasks  # imports Ray, which takes seconds
    with open_ray_tasks(cluster, store, sources) as tasks:
        yield tasks

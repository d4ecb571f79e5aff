"""Functions that use APIs of Ray that are private or differ between releases.

Each docstring names the API and says what a sweep loses if a release of Ray lacks it.

Tested with Ray 2.54 to 2.60; `make test-oldest` tests 2.54.
"""

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ray.data import ActorPoolStrategy, DataContext

LOG = logging.getLogger(__name__)
CALLBACKS_FIELD = "custom_execution_callback_classes"
"""DataContext field that lists callback classes; Ray Data calls their instances while it executes a dataset."""


def list_drivers() -> list[Mapping[str, Any]]:
    """Return a row for each driver on the cluster: JobID, IsDead, Entrypoint, DriverIPAddress, DriverPid and others.

    Uses `ray._private.state.jobs`, because the public API needs Ray's dashboard. Without it the list is empty, and a
    sweep that waits for room does not report which other drivers are running.
    """
    try:
        from ray._private.state import jobs
    except ImportError:
        return []
    return list(jobs())


def call_while_actors_wait(poll: Callable[[], None], interval: float) -> None:
    """Make Ray Data call `poll`, at most every `interval` seconds, while an actor of a pool is pending or restarting.

    An error raised by `poll` ends the dataset; otherwise Ray Data would wait forever for actors whose machines are
    gone.

    Uses `ExecutionCallback` and `ActorPoolMapOperator` of `ray.data._internal`, and the executor's `_topology`. Without
    them `poll` is never called, and a sweep that loses machines waits until other machines join.
    """
    try:
        from ray.data._internal.execution.execution_callback import ExecutionCallback
        from ray.data._internal.execution.operators.actor_pool_map_operator import ActorPoolMapOperator
    except ImportError:
        LOG.warning(
            "this version of Ray does not report waiting actors; a sweep that loses its actors waits for new ones"
        )
        return

    class Watch(ExecutionCallback):  # type: ignore[misc]
        polled = time.monotonic()

        def on_execution_step(self, executor: Any) -> None:
            if time.monotonic() > self.polled + interval:
                self.polled = time.monotonic()
                pools = [operator for operator in executor._topology if isinstance(operator, ActorPoolMapOperator)]
                if any(count.pending or count.restarting for count in (pool.get_actor_info() for pool in pools)):
                    poll()

    setattr(DataContext.get_current(), CALLBACKS_FIELD, [Watch])


def make_pool_arguments(min_size: int, max_size: int, calls: int) -> dict[str, Any]:
    """Return arguments for Ray Data's `map_batches` that create a pool of actors with `calls` concurrent calls each.

    Releases up to 2.57 expect `calls` in the actor's own options, as `max_concurrency`, and not in ActorPoolStrategy.
    """
    options: dict[str, Any] = {
        "min_size": min_size,
        "max_size": max_size,
        "max_tasks_in_flight_per_actor": 2 * calls,
        "enable_true_multi_threading": True,
    }
    if "max_concurrent_calls_per_actor" in inspect.signature(ActorPoolStrategy).parameters:
        return {"compute": ActorPoolStrategy(**options, max_concurrent_calls_per_actor=calls)}
    return {"compute": ActorPoolStrategy(**options), "max_concurrency": calls}

"""The private names of Ray that we use: their purpose, and the behaviour of a sweep without them.

Ray may change them in any release, which is why pyproject.toml allows one minor version.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ray.data import DataContext

LOG = logging.getLogger(__name__)
CALLBACKS = "custom_execution_callback_classes"
"""The field of DataContext with classes whose objects Ray Data calls while it works."""


def list_drivers() -> list[Mapping[str, Any]]:
    """Return a row for each driver of the cluster: JobID, IsDead, Entrypoint, DriverIPAddress, DriverPid and others.

    Uses `ray._private.state.jobs`, because the public list needs Ray's dashboard. Without it the list is empty: a sweep
    that waits for room does not say which other drivers are at work.
    """
    try:
        from ray._private.state import jobs
    except ImportError:
        return []
    return list(jobs())


def call_while_actors_wait(poll: Callable[[], None], interval: float) -> None:
    """Make Ray Data call `poll` every `interval` seconds at most, while an actor of a pool is pending or restarting.

    An error of `poll` ends the dataset. Ray Data would wait forever for actors whose machines are gone.

    Uses `ExecutionCallback` and `ActorPoolMapOperator` of `ray.data._internal`, and the executor's `_topology`. Without
    them nothing is called: a sweep that loses machines waits until others join.
    """
    try:
        from ray.data._internal.execution.execution_callback import ExecutionCallback
        from ray.data._internal.execution.operators.actor_pool_map_operator import ActorPoolMapOperator
    except ImportError:
        LOG.warning("this version of Ray does not say which actors wait; a sweep that loses machines waits for others")
        return

    class Watch(ExecutionCallback):  # type: ignore[misc]
        polled = time.monotonic()

        def on_execution_step(self, executor: Any) -> None:
            if time.monotonic() > self.polled + interval:
                self.polled = time.monotonic()
                pools = [operator for operator in executor._topology if isinstance(operator, ActorPoolMapOperator)]
                if any(count.pending or count.restarting for count in (pool.get_actor_info() for pool in pools)):
                    poll()

    setattr(DataContext.get_current(), CALLBACKS, [Watch])

"""Applies pure functions to many items as Ray tasks, on any machine of the cluster."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.running.driver_environment import DriverEnvironment, open_driver_environment, probe_file
from plumbline.pipelines.running.errors import RESUME_HINT, RunnerError, format_error
from plumbline.pipelines.running.ordered_calls import Item, Result, Shared, call_in_order
from plumbline.pipelines.running.session import open_ray_session
from plumbline.pipelines.store.store import Store


class RayTaskRunner:
    """Calls functions in Ray tasks with one CPU each. A task is repeated if its process or machine dies."""

    def __init__(self, environment: DriverEnvironment, max_attempts: int) -> None:
        self.environment = environment
        self.task = ray.remote(num_cpus=1, max_retries=max_attempts, scheduling_strategy="SPREAD")(_call_function)

    def map(
        self, function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
    ) -> Iterator[Result]:
        """Yield the function's result for each item; raise RunnerError if Ray itself fails."""
        argument = ray.put((self.environment, shared))

        def begin(item: Item) -> Any:
            # the argument is in a list, because Ray would unpickle a bare one for every task
            return self.task.remote(function, [argument], item)

        def await_result(begun: Any) -> Any:
            try:
                return ray.get(begun)
            except RayTaskError as error:
                raise error.cause from error
            except RayError as error:
                raise RunnerError(f"Ray failed ({format_error(error)}); {RESUME_HINT}") from error

        def count_slots() -> int:  # the cluster may grow
            return max(1, int(ray.cluster_resources().get("CPU", 1)))

        yield from call_in_order(items, begin, await_result, ray.cancel, count_slots)


@contextmanager
def open_ray_tasks(cluster: ClusterConfig, store: Store, sources: Sequence[Place]) -> Iterator[RayTaskRunner]:
    """Yield an object that runs tasks on the configured Ray cluster, or on a local Ray that is shut down at the end.

    If this process is already connected to Ray, that connection is used and stays open. Raises RunnerError if the
    cluster is `here`.
    """
    probes = [probe_file(f"source {place}", place) for place in sources if place.is_file()]
    with open_ray_session(cluster), open_driver_environment(f"store {store.place}", store.place, probes) as environment:
        yield RayTaskRunner(environment, cluster.max_attempts)


def _call_function(function: Callable[[Any, Any], Any], argument: Sequence[Any], item: Any) -> Any:
    return function(_get_shared(argument[0]), item)


@lru_cache(maxsize=1)
def _get_shared(argument: Any) -> Any:
    """Return the value that all items share, unpickled once per process after the driver's environment is applied."""
    environment, shared = ray.get(argument)
    environment.apply()
    return shared

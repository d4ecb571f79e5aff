"""Pure functions over many items as tasks of Ray, on any machine of the cluster."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.running.errors import KEPT, RunnerError, one_line
from plumbline.pipelines.running.in_order import AHEAD, Item, Result, Shared, in_order
from plumbline.pipelines.running.session import ray_session
from plumbline.pipelines.running.surroundings import Surroundings, landmark, surroundings


class RayTasks:
    """Calls functions in tasks of one CPU each; a task whose process or machine dies is repeated elsewhere."""

    def __init__(self, given: Surroundings, max_attempts: int) -> None:
        self.given = given
        self.task = ray.remote(num_cpus=1, max_retries=max_attempts, scheduling_strategy="SPREAD")(_call)

    def map(
        self, function: Callable[[Shared, Item], Result], items: Iterable[Item], *, shared: Shared
    ) -> Iterator[Result]:
        """As Tasks says; raises RunnerError where Ray itself fails."""
        argument = ray.put((self.given, shared))

        def begin(item: Item) -> Any:
            return self.task.remote(function, [argument], item)

        yield from in_order(items, begin, _result, ray.cancel, _room)


@contextmanager
def tasks_on_ray(cluster: ClusterConfig, store: Store, sources: Sequence[Place]) -> Iterator[RayTasks]:
    """Tasks on the cluster's Ray, or on one that is started and ends with them."""
    landmarks = [landmark(f"source {place}", place) for place in sources if place.is_file()]
    with ray_session(cluster), surroundings(f"store {store.place}", store.place, landmarks) as given:
        yield RayTasks(given, cluster.max_attempts)


def _room() -> int:
    """How many tasks may be begun; it grows with the cluster."""
    return AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))


def _result(begun: Any) -> Any:
    try:
        return ray.get(begun)
    except RayTaskError as error:
        raise error.cause from error
    except RayError as error:
        raise RunnerError(f"Ray failed ({one_line(error)}); {KEPT}") from error


def _call(function: Callable[[Any, Any], Any], argument: Sequence[Any], item: Any) -> Any:
    """Runs in a worker; the argument is in a list, or Ray would unpickle it for every task."""
    return function(_shared(argument[0]), item)


@lru_cache(maxsize=1)
def _shared(argument: Any) -> Any:
    """What all items share, once in each process, which then has the driver's credentials."""
    given, shared = ray.get(argument)
    given.apply_environment()
    return shared

"""The machines of a cluster and their resources; a run reserves room on the machines, or waits for room."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from plumbline.pipelines.base.cluster_config import PoolConfig
from plumbline.pipelines.running.placement import SPARE_CPUS, NodeResources, PlacementError, plan_waves, pools_fit
from plumbline.pipelines.running.ray_internals import list_drivers

LOG = logging.getLogger(__name__)
ACCELERATOR_PREFIX = "accelerator_type:"
"""Prefix of the Ray resource that names the type of a machine's GPUs."""
POLL_INTERVAL = 1.0
"""Seconds between checks of whether a cluster that is too small has grown."""
WAIT_NOTICE_SECONDS = 15.0
"""Seconds that a run waits for room before it reports that it is waiting."""
ANSWER_TIMEOUT = 5.0
"""Seconds allowed for other sweeps to describe themselves."""
RAY_NAMESPACE = "plumbline-sweeps"
"""Ray namespace of all ProgressLogs. The name of a ProgressLog consists of its driver's job id and a random id."""
RAY_ENTRYPOINT_PREFIX = "ray::"
"""Prefix of the entrypoints of Ray's internal drivers, such as the dashboard."""


def list_resources() -> list[NodeResources]:
    return [_parse_resources(machine) for machine in ray.nodes() if machine["Alive"]]


def find_own_resources() -> NodeResources:
    here = ray.get_runtime_context().get_node_id()
    return next(_parse_resources(machine) for machine in ray.nodes() if machine["NodeID"] == here)


def _parse_resources(machine: Mapping[str, Any]) -> NodeResources:
    resources = machine["Resources"]
    kinds = frozenset(
        name.removeprefix(ACCELERATOR_PREFIX) for name in resources if name.startswith(ACCELERATOR_PREFIX)
    )
    return NodeResources(resources.get("CPU", 0.0), resources.get("GPU", 0.0), kinds, machine["Labels"])


class NoRoomError(Exception):
    """Raised if the remaining machines are too small for a wave's pools, even if nothing else runs on them."""


def choose_next_wave(pools: Mapping[str, PoolConfig], wait_seconds: float) -> list[str]:
    """Return the names of the pools that run in the next wave.

    If a pool does not fit on the cluster, ask the autoscaler for machines; raise PlacementError if none join within
    `wait_seconds`.
    """
    from ray.autoscaler.sdk import request_resources  # 83 modules, which workers do not need

    ends = time.monotonic() + wait_seconds
    requested: PoolConfig | None = None
    while True:
        try:
            wave = plan_waves(pools, list_resources())[0]
            break
        except PlacementError as refusal:
            if time.monotonic() >= ends:
                raise
            if (pool := refusal.pool) != requested:
                print(f"waiting up to {wait_seconds:g} s for machines to join: {refusal}", file=sys.stderr, flush=True)
                requested = pool
                request_resources(  # for the pool's first actors and for Ray Data
                    bundles=[{"CPU": SPARE_CPUS}, *[_list_required_resources(pool)] * pool.min_size],
                    bundle_label_selectors=[{}, *[dict(pool.labels)] * pool.min_size],
                )
        threading.Event().wait(POLL_INTERVAL)
    if requested is not None:
        request_resources(bundles=[])  # from now on the actors themselves keep their machines
    return wave


def _list_required_resources(pool: PoolConfig) -> dict[str, float]:
    kind = {f"{ACCELERATOR_PREFIX}{pool.accelerator_type}": 0.001} if pool.accelerator_type is not None else {}
    return {"CPU": pool.num_cpus, **({"GPU": pool.num_gpus} if pool.num_gpus else {}), **kind}


class ReservedRoom(NamedTuple):
    """Resources that are reserved on the cluster for the first actors of a wave, and released when the wave ends."""

    group: PlacementGroup
    pools: Mapping[str, PoolConfig]
    watch: "RoomWatch"

    def make_options(self, name: str) -> Callable[[], dict[str, Any]]:
        """Return a function that gives each new actor of a pool its Ray options: a reserved bundle, if any is left."""
        owners = [pool for pool in self.pools for _ in range(self.pools[pool].min_size)]
        bundles = iter([number for number, pool in enumerate(owners) if pool == name])

        def make_next_options() -> dict[str, Any]:
            bundle = next(bundles, None)
            if bundle is None:
                return {}
            return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, bundle)}

        return make_next_options

    def poll(self) -> None:
        """Raise NoRoomError if the remaining machines are too small; if they are only occupied, report the wait."""
        if not pools_fit(self.pools.values(), list_resources()):
            raise NoRoomError("the remaining machines have no room for its workers")
        self.watch.update(waiting=placement_group_table(self.group)["state"] != "CREATED")


@contextmanager
def reserve_room(pools: Mapping[str, PoolConfig]) -> Iterator[ReservedRoom]:
    """Wait until the first actors of all pools fit together, and reserve room for these actors.

    Nothing is reserved while waiting, so two sweeps never wait for each other. Raises NoRoomError.
    """
    actors = [pool for pool in pools.values() for _ in range(pool.min_size)]
    group = placement_group(
        [_list_required_resources(pool) for pool in actors],
        bundle_label_selector=[dict(pool.labels) for pool in actors],
    )
    room = ReservedRoom(group, pools, RoomWatch(pools, describe_cluster))
    try:
        while not group.wait(POLL_INTERVAL):
            room.poll()
        yield room
    finally:
        remove_placement_group(group)


class RoomWatch:
    """Reports once, on stderr and in the log, that stages have been waiting for room, and who is using the cluster."""

    def __init__(
        self, stages: Iterable[str], describe: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stages, self._describe, self._clock = stages, describe, clock
        self._since: float | None = None
        self._announced = False

    def update(self, *, waiting: bool) -> None:
        """Record whether the stages are waiting for room now."""
        now = self._clock()
        if not waiting:
            self._since = None
            return
        self._since = now if self._since is None else self._since
        if now - self._since >= WAIT_NOTICE_SECONDS and not self._announced:
            self._announced = True
            line = (
                f"waiting for room on the cluster for {', '.join(self._stages)}: {self._describe()}; the run continues "
                "by itself once there is room"
            )
            print(line, file=sys.stderr, flush=True)
            LOG.warning(line)


def describe_cluster() -> str:
    """Describe the cluster's free resources and its other users: sweeps by description, other jobs by machine."""
    own = ray.get_runtime_context().get_job_id()
    drivers = [driver for driver in list_drivers() if driver["JobID"] != own]
    sweeps: dict[str, str] = {}
    for actor in list_named_actors(all_namespaces=True):
        if actor["namespace"] == RAY_NAMESPACE:
            with suppress(RayError, ValueError):  # the sweep may have ended meanwhile
                log = ray.get_actor(actor["name"], namespace=RAY_NAMESPACE)
                job = actor["name"].partition("-")[0]
                sweeps[job] = ray.get(log.describe.remote(), timeout=ANSWER_TIMEOUT)
    return describe_resources(ray.cluster_resources(), ray.available_resources(), drivers, sweeps)


def describe_resources(
    total: Mapping[str, float],
    free: Mapping[str, float],
    drivers: Sequence[Mapping[str, Any]],
    sweeps: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Format the total and free resources of a cluster, and the drivers that are running on it.

    `sweeps` contains descriptions of drivers by job id. Command lines are left out, because they may contain secrets.
    """
    amounts = [f"{free.get(name, 0.0):g} of {total[name]:g} {name}s" for name in ("CPU", "GPU") if total.get(name)]
    working = [job for job in drivers if not job["IsDead"] and not job["Entrypoint"].startswith(RAY_ENTRYPOINT_PREFIX)]
    others = [sweeps.get(job["JobID"], f"{job['DriverIPAddress']} (process {job['DriverPid']})") for job in working]
    at_work = f"other running drivers: {'; '.join(others)}" if others else "no other driver is running"
    return f"{' and '.join(amounts)} are free, {at_work}"

"""The machines of a cluster: what they offer, how a run takes room on them, and for whom or what it waits."""

import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError
from ray.util import list_named_actors
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from plumbline.pipelines.base.cluster import PoolConfig
from plumbline.pipelines.running.placement import SPARE_CPUS, NodeResources, PlacementError, fits, plan_waves
from plumbline.pipelines.running.ray_internals import list_drivers

LOG = logging.getLogger(__name__)
ACCELERATOR = "accelerator_type:"
"""The prefix of the Ray resource that names the kind of a machine's GPUs."""
LOOK_INTERVAL = 1.0
"""Seconds between two looks at a cluster that is too small."""
PATIENCE = 15.0
"""Seconds without room for a wave after which the run says so."""
ANSWER_TIMEOUT = 5.0
"""Seconds in which other sweeps say who they are."""
SWEEPS = "plumbline-sweeps"
"""Ray's namespace of the ProgressLogs, each named by its driver's job and a number of its own."""
RAYS_OWN = "ray::"
"""The prefix of the entrypoint of Ray's own drivers, such as the dashboard's."""


def living_resources() -> list[NodeResources]:
    """The resources of all living machines, used or free."""
    return [_resources(machine) for machine in ray.nodes() if machine["Alive"]]


def own_resources() -> NodeResources:
    """The resources of the machine that this process is on."""
    here = ray.get_runtime_context().get_node_id()
    return next(_resources(machine) for machine in ray.nodes() if machine["NodeID"] == here)


def _resources(machine: Mapping[str, Any]) -> NodeResources:
    resources = machine["Resources"]
    kinds = frozenset(name.removeprefix(ACCELERATOR) for name in resources if name.startswith(ACCELERATOR))
    return NodeResources(resources.get("CPU", 0.0), resources.get("GPU", 0.0), kinds, machine["Labels"])


class NoRoom(Exception):
    """The machines that are left have no room for a wave's pools, however idle they are."""


def next_wave(pools: Mapping[str, PoolConfig], wait_seconds: float) -> list[str]:
    """The first wave of the pools.

    If a pool cannot be placed, asks the cluster's autoscaler for machines and waits for them. Raises PlacementError if
    they do not come in time.
    """
    ends = time.monotonic() + wait_seconds
    asked: PoolConfig | None = None
    while True:
        try:
            wave = plan_waves(pools, living_resources())[0]
            break
        except PlacementError as refusal:
            if time.monotonic() >= ends:
                raise
            if refusal.pool != asked:
                print(f"waiting up to {wait_seconds:g} s for machines to join: {refusal}", file=sys.stderr, flush=True)
                asked = refusal.pool
                _ask_for(asked)
        threading.Event().wait(LOOK_INTERVAL)
    if asked is not None:
        request_resources(bundles=[])  # the actors hold their machines from now on
    return wave


def _ask_for(pool: PoolConfig) -> None:
    """Asks the autoscaler, if there is one, for machines for the pool's first actors and for Ray Data."""
    request_resources(
        bundles=[{"CPU": SPARE_CPUS}, *[_needs(pool)] * pool.min_size],
        bundle_label_selectors=[{}, *[dict(pool.labels)] * pool.min_size],
    )


def _needs(pool: PoolConfig) -> dict[str, float]:
    """The resources of one of a pool's actors, as Ray names them."""
    kind = {f"{ACCELERATOR}{pool.accelerator_type}": 0.001} if pool.accelerator_type is not None else {}
    return {"CPU": pool.num_cpus, **({"GPU": pool.num_gpus} if pool.num_gpus else {}), **kind}


class Room(NamedTuple):
    """The room of a wave's first actors on the cluster, which is theirs until the wave ends."""

    group: PlacementGroup
    pools: Mapping[str, PoolConfig]
    watch: "RoomWatch"

    def options(self, name: str) -> Callable[[], dict[str, Any]]:
        """Gives with each call Ray's options for one more actor of a pool: its own place, if there is one left."""
        owners = [pool for pool in self.pools for _ in range(self.pools[pool].min_size)]
        places = iter([number for number, pool in enumerate(owners) if pool == name])

        def next_options() -> dict[str, Any]:
            place = next(places, None)
            if place is None:
                return {}
            return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, place)}

        return next_options

    def look(self) -> None:
        """Raises NoRoom if machines are lost and the others are too small; says so if they are occupied."""
        if not fits(self.pools.values(), living_resources()):
            raise NoRoom("the machines that are left have no room for its workers")
        self.watch.look([] if placement_group_table(self.group)["state"] == "CREATED" else list(self.pools))


@contextmanager
def take_room(pools: Mapping[str, PoolConfig]) -> Iterator[Room]:
    """Takes the room of all pools' first actors together, waiting until there is as much.

    Nothing is held meanwhile, so that no two sweeps hold what the other one waits for. Raises NoRoom.
    """
    actors = [pool for pool in pools.values() for _ in range(pool.min_size)]
    group = placement_group(
        [_needs(pool) for pool in actors], bundle_label_selector=[dict(pool.labels) for pool in actors]
    )
    room = Room(group, pools, RoomWatch(describe_cluster))
    try:
        while not group.wait(LOOK_INTERVAL):
            room.look()
        yield room
    finally:
        remove_placement_group(group)


class RoomWatch:
    """Says once, on stderr and in the log, that stages have waited for room for a while, and for whom."""

    def __init__(self, describe: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._describe, self._clock = describe, clock
        self._since: dict[str, float] = {}
        self._said = False

    def look(self, without_room: Collection[str]) -> None:
        """Notes the stages that wait for room now."""
        now = self._clock()
        self._since = {stage: self._since.get(stage, now) for stage in without_room}
        waiting = [stage for stage, since in self._since.items() if now - since >= PATIENCE]
        if waiting and not self._said:
            self._said = True
            line = (
                f"waiting for room on the cluster for {', '.join(waiting)}: {self._describe()}; the run goes on by "
                "itself once there is room"
            )
            print(line, file=sys.stderr, flush=True)
            LOG.warning(line)


def sweep_name() -> str:
    """A name for the ProgressLog of a sweep of this driver, by which others find it in SWEEPS."""
    return f"{ray.get_runtime_context().get_job_id()}-{uuid.uuid4().hex}"


def describe_cluster() -> str:
    """What is free on the cluster, and who else is at work there: sweeps as they say, other drivers by machine."""
    own = ray.get_runtime_context().get_job_id()
    drivers = [driver for driver in list_drivers() if driver["JobID"] != own]
    return describe_resources(ray.cluster_resources(), ray.available_resources(), drivers, _list_sweeps())


def _list_sweeps() -> dict[str, str]:
    """By the job of their drivers, what the sweeps on the cluster say of themselves, where they answer."""
    names = [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["namespace"] == SWEEPS]
    sweeps: dict[str, str] = {}
    for name in names:
        with suppress(RayError, ValueError):  # it may have ended meanwhile
            log = ray.get_actor(name, namespace=SWEEPS)
            sweeps[name.partition("-")[0]] = ray.get(log.describe.remote(), timeout=ANSWER_TIMEOUT)
    return sweeps


def describe_resources(
    total: Mapping[str, float],
    free: Mapping[str, float],
    drivers: Sequence[Mapping[str, Any]],
    sweeps: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """As `describe_cluster`, from Ray's own tables. Names no driver's command, which may hold a secret."""
    amounts = [f"{free.get(name, 0.0):g} of {total[name]:g} {name}s" for name in ("CPU", "GPU") if total.get(name)]
    working = [job for job in drivers if not job["IsDead"] and not job["Entrypoint"].startswith(RAYS_OWN)]
    others = [sweeps.get(job["JobID"], f"{job['DriverIPAddress']} (process {job['DriverPid']})") for job in working]
    at_work = f"at work beside this run: {'; '.join(others)}" if others else "no other driver is at work"
    return f"{' and '.join(amounts)} are free, {at_work}"

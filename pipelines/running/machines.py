"""The machines of a cluster: what they offer, how long a run waits for more, and who else uses them."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ray
from ray._private.state import jobs  # the public list needs the dashboard
from ray.autoscaler.sdk import request_resources

from plumbline.pipelines.base.cluster import PoolConfig
from plumbline.pipelines.running.placement import SPARE_CPUS, NodeResources, PlacementError, plan_waves

LOG = logging.getLogger(__name__)
ACCELERATOR = "accelerator_type:"
"""The prefix of the Ray resource that names the kind of a machine's GPUs."""
LOOK_INTERVAL = 1.0
"""Seconds between two looks at a cluster that is too small."""
PATIENCE = 60.0
"""Seconds without any worker of a stage after which the run says so."""
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
    kind = {f"{ACCELERATOR}{pool.accelerator_type}": 0.001} if pool.accelerator_type is not None else {}
    actor = {"CPU": pool.num_cpus, "GPU": pool.num_gpus, **kind}
    request_resources(
        bundles=[{"CPU": SPARE_CPUS}, *[actor] * pool.min_size],
        bundle_label_selectors=[{}, *[dict(pool.labels)] * pool.min_size],
    )


class RoomWatch:
    """Says once, on stderr and in the log, that stages have waited a minute for their first worker."""

    def __init__(self, describe: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._describe, self._clock = describe, clock
        self._since: dict[str, float] = {}
        self._said = False

    def look(self, without_worker: Collection[str]) -> None:
        """Notes the stages that have no worker now, neither running nor loading."""
        now = self._clock()
        self._since = {stage: self._since.get(stage, now) for stage in without_worker}
        waiting = [stage for stage, since in self._since.items() if now - since >= PATIENCE]
        if waiting and not self._said:
            self._said = True
            line = (
                f"waiting for room on the cluster for a worker of {', '.join(waiting)}: {self._describe()}; the run "
                "goes on once there is room, but two that each hold what the other lacks wait for ever: stop one"
            )
            print(line, file=sys.stderr, flush=True)
            LOG.warning(line)


def list_other_drivers() -> str:
    """What is free on the cluster, and which other drivers work on it."""
    own = ray.get_runtime_context().get_job_id()
    return describe_resources(
        ray.cluster_resources(), ray.available_resources(), [job for job in jobs() if job["JobID"] != own]
    )


def describe_resources(
    total: Mapping[str, float], free: Mapping[str, float], drivers: Sequence[Mapping[str, Any]]
) -> str:
    """As `list_other_drivers`, from Ray's own tables. Names no driver's command, which may hold a secret."""
    amounts = [f"{free.get(name, 0.0):g} of {total[name]:g} {name}s" for name in ("CPU", "GPU") if total.get(name)]
    working = [job for job in drivers if not job["IsDead"] and not job["Entrypoint"].startswith(RAYS_OWN)]
    others = [f"{job['DriverIPAddress']} (process {job['DriverPid']})" for job in working]
    at_work = f"at work beside this run: {', '.join(others)}" if others else "no other driver is at work"
    return f"{' and '.join(amounts)} are free, {at_work}"

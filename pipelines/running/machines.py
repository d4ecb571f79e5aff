"""The machines of a cluster: what they offer, and how long one that is too small is waited for."""

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.autoscaler.sdk import request_resources

from plumbline.pipelines.base.cluster import PoolConfig
from plumbline.pipelines.running.placement import SPARE_CPUS, NodeResources, PlacementError, plan_waves

ACCELERATOR = "accelerator_type:"
"""How Ray begins the name of the resource that tells the kind of a machine's GPUs."""
LOOK_SECONDS = 1.0


def offered() -> list[NodeResources]:
    """What the machines that live offer, whether or not somebody uses it."""
    return [_resources(machine) for machine in ray.nodes() if machine["Alive"]]


def _resources(machine: Mapping[str, Any]) -> NodeResources:
    resources = machine["Resources"]
    kinds = frozenset(name.removeprefix(ACCELERATOR) for name in resources if name.startswith(ACCELERATOR))
    return NodeResources(resources.get("CPU", 0.0), resources.get("GPU", 0.0), kinds, machine["Labels"])


def next_wave(pools: Mapping[str, PoolConfig], wait_seconds: float) -> list[str]:
    """The first of the waves that all pools come in.

    Where some pool cannot be placed, the cluster's autoscaler is asked for machines, and they are waited for. Raises
    PlacementError where they do not come in time.
    """
    ends = time.monotonic() + wait_seconds
    asked: PoolConfig | None = None
    while True:
        try:
            wave = plan_waves(pools, offered())[0]
            break
        except PlacementError as refusal:
            if time.monotonic() >= ends:
                raise
            if refusal.pool != asked:
                print(f"waiting up to {wait_seconds:g} s for machines to join: {refusal}", file=sys.stderr, flush=True)
                asked = refusal.pool
                _ask_for(asked)
        threading.Event().wait(LOOK_SECONDS)
    if asked is not None:
        request_resources(bundles=[])  # the actors hold their machines from now on
    return wave


def _ask_for(pool: PoolConfig) -> None:
    """Has an autoscaler, where there is one, add what the pool's first actors and Ray Data need."""
    kind = {f"{ACCELERATOR}{pool.accelerator_type}": 0.001} if pool.accelerator_type is not None else {}
    actor = {"CPU": pool.num_cpus, "GPU": pool.num_gpus, **kind}
    request_resources(
        bundles=[{"CPU": SPARE_CPUS}, *[actor] * pool.min_size],
        bundle_label_selectors=[{}, *[dict(pool.labels)] * pool.min_size],
    )

"""Sweeps that are small enough for the process of the command, without Ray."""

import os
import sys
from collections.abc import Iterable

from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.plans.plan import NodePlan

MIN_SMALL_CALLS = 4000
"""Model calls that are few on any machine: Ray's start and its workers' imports would take longer."""
CALLS_BY_CORES = 24_000
"""Divided by the cores, the most model calls of a small plan: on few cores, Ray's workers gain little."""


def names_ray(cluster: ClusterConfig) -> bool:
    """Return True if this process has a Ray already, as the entrypoint of a Ray job has by RAY_ADDRESS."""
    ray = sys.modules.get("ray")
    return bool(cluster.address or os.environ.get("RAY_ADDRESS") or (ray is not None and ray.is_initialized()))


def count_small_calls() -> int:
    """Return the most model calls of a small plan on this machine."""
    return max(MIN_SMALL_CALLS, CALLS_BY_CORES // len(os.sched_getaffinity(0)))


def is_small(nodes: Iterable[NodePlan], cluster: ClusterConfig) -> bool:
    """Return True if the missing cells take few model calls, and no GPU."""
    missing = [item for item in nodes if item.missing]
    gpus = any(cluster.pool(item.node.name).num_gpus for item in missing if item.node.model is not None)
    return not gpus and sum(item.model_calls for item in missing if item.node.model is not None) <= count_small_calls()

"""Decides if a sweep is small enough for the process of the command, without Ray."""

import os
import sys
from collections.abc import Iterable

from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.plans.plan import NodePlan

MIN_SMALL_CALLS = 4000
"""Number of model calls that is small on any machine: Ray's start and its workers' imports would take longer."""
CALLS_BY_CORES = 24_000
"""Largest number of model calls times cores of a small plan: on few cores, Ray's workers gain little."""


def has_ray(address: str | None) -> bool:
    """Return True if a Ray cluster is configured or running, for example by RAY_ADDRESS inside a Ray job."""
    ray = sys.modules.get("ray")
    return bool(address or os.environ.get("RAY_ADDRESS") or (ray is not None and ray.is_initialized()))


def count_small_calls() -> int:
    """Return the largest number of model calls of a small plan on this machine."""
    return max(MIN_SMALL_CALLS, CALLS_BY_CORES // len(os.sched_getaffinity(0)))


def is_small(nodes: Iterable[NodePlan], cluster: ClusterConfig) -> bool:
    """Return True if the missing cells need few model calls and no GPU."""
    missing = [item for item in nodes if item.missing]
    gpus = any(cluster.pool(item.node.name).num_gpus for item in missing if item.node.model is not None)
    return not gpus and sum(item.model_calls for item in missing if item.node.model is not None) <= count_small_calls()

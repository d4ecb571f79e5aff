"""The size up to which work is done in the process of the command, without Ray."""

import os
import sys
from collections.abc import Iterable

from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.plans.plan import NodePlan

SMALL_CALLS = 4000
"""Most model calls of a small plan: Ray's start and its workers' imports would take longer than the calls."""


def names_ray(cluster: ClusterConfig) -> bool:
    """Return True if this process has a Ray already, as the entrypoint of a Ray job has by RAY_ADDRESS."""
    ray = sys.modules.get("ray")
    return bool(cluster.address or os.environ.get("RAY_ADDRESS") or (ray is not None and ray.is_initialized()))


def is_small(nodes: Iterable[NodePlan], cluster: ClusterConfig) -> bool:
    """Return True if the missing cells take few model calls, and no GPU."""
    missing = [item for item in nodes if item.missing]
    gpus = any(cluster.pool(item.node.name).num_gpus for item in missing if item.node.model is not None)
    return not gpus and sum(item.model_calls for item in missing if item.node.model is not None) <= SMALL_CALLS

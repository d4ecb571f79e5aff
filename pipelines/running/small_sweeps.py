"""Which work is so small that it is done in the process of the command."""

import os
import sys
from collections.abc import Iterable

from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.plans.plan import NodePlan

SMALL_CALLS = 4000
"""Model calls up to which a plan is small: Ray's start and its workers' imports would take longer than they."""


def names_ray(cluster: ClusterConfig) -> bool:
    """Return True if this process has a Ray already, as the entrypoint of a Ray job has by RAY_ADDRESS."""
    ray = sys.modules.get("ray")
    return bool(cluster.address or os.environ.get("RAY_ADDRESS") or (ray is not None and ray.is_initialized()))


def is_small(nodes: Iterable[NodePlan], cluster: ClusterConfig) -> bool:
    """Return True if what is missing takes few calls of models, and none of them a GPU."""
    missing = [item for item in nodes if item.missing]
    gpus = any(cluster.pool(item.node.name).num_gpus for item in missing if item.node.model is not None)
    return not gpus and sum(item.model_calls for item in missing if item.node.model is not None) <= SMALL_CALLS

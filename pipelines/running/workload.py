"""The cells to compute together: the cells of one sweep, or of all sweeps of a suite, which share their models."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from plumbline.operators.base.cores import count_cores
from plumbline.operators.stages.graph import make_nodes
from plumbline.operators.stages.stage import RowKind
from plumbline.pipelines.base.cluster_config import ClusterConfig, is_ray_installed
from plumbline.pipelines.plans.plan import NodePlan, Plan
from plumbline.pipelines.running.stages import StageContext
from plumbline.pipelines.store.cells import Work
from plumbline.pipelines.store.store import Store

MAX_SMALL_PLAN_CALLS = 4000
"""Maximum number of model calls of a plan that counts as small on any machine: starting Ray would take longer."""
MAX_CALLS_TIMES_CORES = 24_000
"""A plan also counts as small if its number of model calls times the number of CPU cores is at most this; with few
cores, Ray's workers gain little.
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """One or more plans for the same store. Nodes of the same name load their models once for all plans."""

    plans: Mapping[str, Plan]
    """Plans by benchmark."""
    contexts: Mapping[str, StageContext]
    """Stage contexts by benchmark."""

    @property
    def store(self) -> Store:
        return next(iter(self.contexts.values())).store

    @property
    def nodes(self) -> list[NodePlan]:
        """Nodes of all plans in data-flow order; nodes of the same name are merged."""
        merged: dict[str, NodePlan] = {}
        for item in chain.from_iterable(plan.nodes for plan in self.plans.values()):
            if (other := merged.get(item.node.name)) is not None:
                # both have their metrics and models from the same configuration
                models, metrics = {**other.node.models, **item.node.models}, {**other.node.metrics, **item.node.metrics}
                item = NodePlan(
                    replace(other.node, models=models, metrics=metrics),
                    cells=other.cells + item.cells,
                    missing=other.missing + item.missing,
                    images=other.images + item.images,
                    model_calls=other.model_calls + item.model_calls,
                    encodings=other.encodings + item.encodings,
                )
            merged[item.node.name] = item
        every_metric = {name: metric for item in merged.values() for name, metric in item.node.metrics.items()}
        return [merged[node.name] for node in make_nodes(every_metric)]

    def iterate_shards_with_work(self, kind: RowKind) -> Iterator[Work]:
        """Yield the shards of a kind with their missing cells; a cell that several plans share is included once."""
        seen: set[str] = set()
        for benchmark, plan in self.plans.items():
            for work in plan.iterate_work(plan.select_kind(kind)):
                cells = tuple(cell for cell in work.cells if cell.path not in seen)
                if len(self.plans) > 1:
                    seen.update(cell.path for cell in cells)
                if cells:
                    yield replace(work, cells=cells, benchmark=benchmark)


def fits_this_process(nodes: Iterable[NodePlan], cluster: ClusterConfig) -> bool:
    """Return True if cluster=auto means this process: few missing model calls, no GPU and no Ray cluster.

    Ray counts as a cluster if it is configured, named by RAY_ADDRESS (as inside a Ray job) or already connected. If Ray
    is not installed and no cluster is named, cluster=auto always means this process.
    """
    ray = sys.modules.get("ray")
    if cluster.address or os.environ.get("RAY_ADDRESS") or (ray is not None and ray.is_initialized()):
        return False
    if not is_ray_installed():
        return True
    with_model = [item for item in nodes if item.missing and item.node.model is not None]
    if any(cluster.find_pool(item.node.name).num_gpus for item in with_model):
        return False
    return sum(item.steps for item in with_model) <= get_max_small_plan_calls()


def get_max_small_plan_calls() -> int:
    """Return the maximum number of missing model calls for a plan to count as small on this machine."""
    return max(MAX_SMALL_PLAN_CALLS, MAX_CALLS_TIMES_CORES // count_cores())

"""The cells to compute together: those of a sweep, or of the sweeps of a suite, which share their models."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from plumbline.operators.stages.graph import make_nodes
from plumbline.pipelines.plans.plan import NodePlan, Plan
from plumbline.pipelines.running.stages import StageContext
from plumbline.pipelines.store.cells import Work
from plumbline.pipelines.store.store import Store

Kind = Literal["prompts", "images"]
"""Kind of the rows of a shard."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One plan or several in one store. Nodes of the same name load their models once for all plans."""

    plans: Mapping[str, Plan]
    """Plans by benchmark."""
    contexts: Mapping[str, StageContext]
    """Contexts of the stages by benchmark."""

    @property
    def store(self) -> Store:
        """Store with all cells."""
        return next(iter(self.contexts.values())).store

    @property
    def nodes(self) -> list[NodePlan]:
        """Nodes of all plans in the order that data flows; nodes of the same name are merged."""
        named: dict[str, NodePlan] = {}
        for item in chain.from_iterable(plan.nodes for plan in self.plans.values()):
            named[item.node.name] = _merge(named[item.node.name], item) if item.node.name in named else item
        metrics = {name: metric for item in named.values() for name, metric in item.node.metrics.items()}
        return [named[node.name] for node in make_nodes(metrics)]

    @property
    def renews(self) -> bool:
        """True if some committed cells cannot be used and are computed again."""
        return any(plan.renewed for plan in self.plans.values())

    def shards_with_work(self, kind: Kind) -> Iterator[Work]:
        """Yield the shards of prompts, or of images, with cells to compute; a cell of several plans comes once."""
        taken: set[str] = set()
        for benchmark, plan in self.plans.items():
            for work in plan.work(plan.prompts if kind == "prompts" else plan.images):
                cells = tuple(cell for cell in work.cells if cell.path not in taken)
                if len(self.plans) > 1:
                    taken.update(cell.path for cell in cells)
                if cells:
                    yield replace(work, cells=cells, benchmark=benchmark)


def _merge(node_plan: NodePlan, other: NodePlan) -> NodePlan:
    """Merge the work of two plans at one node. Both take their metrics and models from the same configuration."""
    node = replace(
        node_plan.node,
        models={**node_plan.node.models, **other.node.models},
        metrics={**node_plan.node.metrics, **other.node.metrics},
    )
    cells, missing, images, calls = (mine + others for mine, others in zip(node_plan[1:5], other[1:5], strict=True))
    return NodePlan(node, cells, missing, images, calls)

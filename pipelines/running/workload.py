"""What is computed together: the missing cells of a sweep, or of the sweeps of a suite, which share their models."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from plumbline.operators.stages.graph import make_nodes
from plumbline.pipelines.cells.cells import Work
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.plan import NodePlan, Plan
from plumbline.pipelines.running.stages import StageContext

Kind = Literal["prompts", "images"]
"""What shards are of."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One plan or several, in one store: nodes of the same name load their models once for all of them."""

    plans: Mapping[str, Plan]
    """By benchmark."""
    contexts: Mapping[str, StageContext]
    """By benchmark, what the stages read."""

    @property
    def store(self) -> Store:
        """Where all cells are."""
        return next(iter(self.contexts.values())).store

    @property
    def nodes(self) -> list[NodePlan]:
        """The nodes of all plans in the order that data flows, those of one name as one."""
        named: dict[str, NodePlan] = {}
        for item in chain.from_iterable(plan.nodes for plan in self.plans.values()):
            named[item.node.name] = _both(named[item.node.name], item) if item.node.name in named else item
        metrics = {name: metric for item in named.values() for name, metric in item.node.metrics.items()}
        return [named[node.name] for node in make_nodes(metrics)]

    @property
    def renews(self) -> bool:
        """Whether some cells are computed again that are committed and cannot be used."""
        return any(plan.renewed for plan in self.plans.values())

    def over(self, kind: Kind) -> Iterator[Work]:
        """The shards of prompts, or of images, with something to compute; a cell of several plans is in it once."""
        taken: set[str] = set()
        for benchmark, plan in self.plans.items():
            for work in plan.work(plan.prompts if kind == "prompts" else plan.images):
                cells = tuple(cell for cell in work.cells if cell.path not in taken)
                if len(self.plans) > 1:
                    taken.update(cell.path for cell in cells)
                if cells:
                    yield replace(work, cells=cells, benchmark=benchmark)


def _both(one: NodePlan, other: NodePlan) -> NodePlan:
    """The work of two plans at one node. Their metrics are those of one configuration, and so are their models."""
    node = replace(
        one.node,
        models={**one.node.models, **other.node.models},
        metrics={**one.node.metrics, **other.node.metrics},
    )
    cells, missing, images, calls = (mine + others for mine, others in zip(one[1:5], other[1:5], strict=True))
    return NodePlan(node, cells, missing, images, calls)

"""Services that models are behind: whether they answer, about what they cost, and what it came to."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from plumbline.operators.models.calls import Usage
from plumbline.operators.models.loading import preflight
from plumbline.operators.models.service import Prices, ServiceModel
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.cells.runs import newest_first
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.plan import Node, Plan

MOST_LOOKED_AT = 8
"""Of the newest runs, for what a call took."""


class Cost(NamedTuple):
    """An amount of money."""

    amount: float
    currency: str

    def __str__(self) -> str:
        """To the cent, small amounts to two digits."""
        return f"{self.amount:.2f} {self.currency}" if self.amount >= 0.1 else f"{self.amount:.2g} {self.currency}"


class Estimate(NamedTuple):
    """What a node's calls of a service will take, about."""

    node: str
    calls: int
    read: float
    """Tokens that a call reads, and writes."""
    written: float
    cost: Cost
    run_id: str | None
    """Of the run that has told what a call takes; None where the model's prices say it."""


def spent(plan: Plan, usage: Mapping[str, Usage]) -> dict[str, Cost]:
    """By node, what calls came to where their model has prices."""
    priced = {node.name: prices for node, prices in _priced(plan)}
    return {
        name: Cost(priced[name].cost(took), priced[name].currency) for name, took in usage.items() if name in priced
    }


def estimates(plan: Plan, store: Store) -> list[Estimate]:
    """Of every node with something to compute whose model has prices."""
    calls = {item.node.name: item.model_calls for item in plan.nodes if item.missing}
    return [_estimate(node, prices, calls[node.name], store) for node, prices in _priced(plan) if calls.get(node.name)]


def unpriced(plan: Plan) -> list[tuple[str, int]]:
    """The nodes with something to compute that ask a service whose prices nobody has set, with their calls."""
    return [
        (item.node.name, item.model_calls)
        for item in plan.nodes
        if item.missing and item.node.model is not None and isinstance(item.node.model.config, ServiceModel)
        and item.node.model.config.prices is None
    ]  # fmt: skip


def _priced(plan: Plan) -> list[tuple[Node, Prices]]:
    configs = [(item.node, item.node.model.config) for item in plan.nodes if item.node.model is not None]
    return [(node, config.prices) for node, config in configs if isinstance(config, ServiceModel) and config.prices]


def _estimate(node: Node, prices: Prices, calls: int, store: Store) -> Estimate:
    run_id, took = _told(node, store) or (None, prices.taken())
    amount = prices.cost(took) / took.calls * calls
    each = (took.prompt_tokens / took.calls, took.new_tokens / took.calls)
    return Estimate(node.name, calls, *each, Cost(amount, prices.currency), run_id)


def _told(node: Node, store: Store) -> tuple[str, Usage] | None:
    """What the calls of this model took in the newest run that made some."""
    for run in islice(newest_first(store), MOST_LOOKED_AT):
        manifest = run.manifest or {}
        took = manifest.get("usage", {}).get(node.name, {})
        same = node.model is not None and manifest.get("models", {}).get(node.name) == node.model.semantic()
        if same and took.get("calls"):
            return run.run_id, Usage(**{name: took.get(name, 0) for name in Usage._fields})
    return None


def ask_services(nodes: Iterable[Node]) -> None:
    """One small call of every service that these nodes ask; raises ModelError where one cannot answer."""
    calls = {
        (repr(model.semantic()), call): (model, call)
        for node in nodes
        for key, model in node.models.items()
        if not model.local
        for call in [STAGES[node.stage].trial(key, node.metrics.values())]
    }
    for model, call in calls.values():
        preflight(model, call)

"""The services behind models: whether they answer, what they will cost, and what they did cost."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from plumbline.operators.models.calls import Usage
from plumbline.operators.models.loading import preflight
from plumbline.operators.models.service_config import Prices, ServiceModel
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.cells.runs import newest_first
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.plan import Node, Plan

MAX_RUNS_SEARCHED = 8
"""How many of the newest runs are searched for the usage of a call."""


class Cost(NamedTuple):
    """An amount of money."""

    amount: float
    currency: str

    def __str__(self) -> str:
        """To the cent, small amounts to two digits."""
        return f"{self.amount:.2f} {self.currency}" if self.amount >= 0.1 else f"{self.amount:.2g} {self.currency}"


class Estimate(NamedTuple):
    """An estimate of what a node's calls of a service will take."""

    node: str
    calls: int
    read: float
    """Tokens that a call reads; `written` are those that it writes."""
    written: float
    cost: Cost
    run_id: str | None
    """The run that the estimate is based on; None where it is based on the model's prices."""


def costs_of(plan: Plan, usage: Mapping[str, Usage]) -> dict[str, Cost]:
    """By node, the cost of its calls, where the model has prices."""
    priced = {node.name: prices for node, prices in _priced(plan)}
    return {
        name: Cost(priced[name].cost(took), priced[name].currency) for name, took in usage.items() if name in priced
    }


def estimates(plan: Plan, store: Store) -> list[Estimate]:
    """The estimates of all nodes with something to compute whose model has prices."""
    calls = {item.node.name: item.model_calls for item in plan.nodes if item.missing}
    return [_estimate(node, prices, calls[node.name], store) for node, prices in _priced(plan) if calls.get(node.name)]


def unpriced(plan: Plan) -> list[tuple[str, int]]:
    """The nodes that will call a service without configured prices, with the number of calls."""
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
    run_id, took = _usage_of_newest_run(node, store) or (None, prices.taken())
    amount = prices.cost(took) / took.calls * calls
    each = (took.prompt_tokens / took.calls, took.new_tokens / took.calls)
    return Estimate(node.name, calls, *each, Cost(amount, prices.currency), run_id)


def _usage_of_newest_run(node: Node, store: Store) -> tuple[str, Usage] | None:
    """The newest run that called this model, and the usage of its calls."""
    for run in islice(newest_first(store), MAX_RUNS_SEARCHED):
        manifest = run.manifest or {}
        took = manifest.get("usage", {}).get(node.name, {})
        same = node.model is not None and manifest.get("models", {}).get(node.name) == node.model.semantic()
        if same and took.get("calls"):
            return run.run_id, Usage(**{name: took.get(name, 0) for name in Usage._fields})
    return None


def try_services(nodes: Iterable[Node]) -> None:
    """Makes one small call to every service of these nodes; raises ModelError for one that cannot answer."""
    calls = {
        (repr(model.semantic()), call): (model, call)
        for node in nodes
        for key, model in node.models.items()
        if not model.local
        for call in [STAGES[node.stage].trial(key, node.metrics.values())]
    }
    for model, call in calls.values():
        preflight(model, call)

"""What a sweep costs: the services behind models, whether they answer and what they take, and the GPUs' time."""

from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from plumbline.operators.base.usage import Usage
from plumbline.operators.models.loading import preflight
from plumbline.operators.models.service_config import Prices, ServiceModel
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.cells.runs import newest_first
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.plan import Node, Plan

HOUR = 3600
NOTHING: Mapping[str, float] = MappingProxyType({})
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


def costs_of(
    plan: Plan, usage: Mapping[str, Usage], cluster: ClusterConfig | None = None, held: Mapping[str, float] = NOTHING
) -> dict[str, Cost]:
    """By node, the cost of its calls where the model has prices, and that of its GPU-seconds where these have one."""
    priced = {node.name: prices for node, prices in _priced(plan)}
    costs = {
        name: Cost(priced[name].cost(took), priced[name].currency) for name, took in usage.items() if name in priced
    }
    if cluster is not None and cluster.price_per_gpu_hour is not None:
        for name, seconds in gpu_seconds(plan, cluster, held).items():
            before = costs[name].amount if name in costs else 0.0
            costs[name] = Cost(before + seconds / HOUR * cluster.price_per_gpu_hour, cluster.currency)
    return costs


def gpu_seconds(plan: Plan, cluster: ClusterConfig, held: Mapping[str, float]) -> dict[str, float]:
    """By node with GPUs, the seconds in which its workers had a shard (`held`), times the GPUs that each reserves."""
    gpus = {item.node.name: item.node.pool(cluster).num_gpus for item in plan.nodes}
    return {name: gpus[name] * seconds for name, seconds in held.items() if gpus.get(name)}


class MetricCost(NamedTuple):
    """What a metric took of a run; of a node that several metrics share its part, by the model calls planned for each.

    A cell that several metrics read is counted for each of them equally, as is what is done once for all of them.
    """

    model_seconds: float
    """Seconds that models worked."""
    gpu_seconds: float
    """Seconds that GPUs were reserved, also while models waited for rows."""
    costs: Mapping[str, float]
    """By currency."""


def metric_costs(
    plan: Plan, worked: Mapping[str, float], gpus: Mapping[str, float], costs: Mapping[str, Cost]
) -> dict[str, MetricCost]:
    """By metric for which models worked in a run: `worked` are seconds by node, `gpus` GPU-seconds."""
    of_metric: dict[str, MetricCost] = {}
    for item in plan.nodes:
        name, calls = item.node.name, sum(item.calls_of.values())
        for metric, own in item.calls_of.items():
            share = own / calls if calls else 1 / len(item.calls_of)
            before = of_metric.get(metric, MetricCost(0.0, 0.0, {}))
            spent = dict(before.costs)
            if name in costs:
                currency = costs[name].currency
                spent[currency] = spent.get(currency, 0.0) + share * costs[name].amount
            of_metric[metric] = MetricCost(
                before.model_seconds + share * worked.get(name, 0.0),
                before.gpu_seconds + share * gpus.get(name, 0.0),
                spent,
            )
    return of_metric


def cost_facts(
    plan: Plan,
    usage: Mapping[str, Usage],
    cluster: ClusterConfig,
    held: Mapping[str, float],
    worked: Mapping[str, float],
) -> dict[str, Any]:
    """What a manifest says of a run's cost: GPU-seconds and money by node, and both by metric."""
    gpus, costs = gpu_seconds(plan, cluster, held), costs_of(plan, usage, cluster, held)
    return {
        "gpu_seconds": {node: round(seconds, 2) for node, seconds in gpus.items()},
        "costs": {node: cost._asdict() for node, cost in costs.items()},
        "by_metric": {metric: cost._asdict() for metric, cost in metric_costs(plan, worked, gpus, costs).items()},
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
    run_id, took = _usage_of_newest_run(node, store) or (None, prices.assumed_usage())
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
        for call in [STAGES[node.stage].trial_call(key, node.metrics.values())]
    }
    for model, call in calls.values():
        preflight(model, call)

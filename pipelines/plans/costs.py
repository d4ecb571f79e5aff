"""The cost of a sweep: money and tokens for model services, and GPU time; estimated before a run, counted after it."""

from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from plumbline.operators.base.usage import Usage
from plumbline.operators.models.loading import preflight
from plumbline.operators.models.service_config import Prices, ServiceModel
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.plans.plan import Node, Plan
from plumbline.pipelines.store.runs import read_runs_newest_first
from plumbline.pipelines.store.store import Store

SECONDS_PER_HOUR = 3600
NO_SECONDS: Mapping[str, float] = MappingProxyType({})
MAX_RUNS_SEARCHED = 8
"""Maximum number of recent runs that are searched for the usage per call."""


class Cost(NamedTuple):
    amount: float
    currency: str

    def __str__(self) -> str:
        """Format the amount with two decimals, or with two significant digits if it is below 0.1."""
        return f"{self.amount:.2f} {self.currency}" if self.amount >= 0.1 else f"{self.amount:.2g} {self.currency}"


class CostEstimate(NamedTuple):
    """Estimated tokens and cost of a node's calls to a service."""

    node: str
    calls: int
    read: float
    """Number of input tokens per call; `written` is the number of output tokens."""
    written: float
    cost: Cost
    run_id: str | None
    """Id of the run that the estimate is based on; None if it is based on the model's prices."""


def sum_costs(
    plan: Plan,
    usage: Mapping[str, Usage],
    cluster: ClusterConfig | None = None,
    occupied: Mapping[str, float] = NO_SECONDS,
) -> dict[str, Cost]:
    """Return the money spent on model calls and GPU time, by node; nodes without configured prices are left out.

    `occupied` contains the number of seconds that each node's workers spent on shards.
    """
    priced = {node.name: prices for node, prices in _list_priced_nodes(plan)}
    costs = {
        name: Cost(priced[name].compute_cost(took), priced[name].currency)
        for name, took in usage.items()
        if name in priced
    }
    if cluster is not None and cluster.price_per_gpu_hour is not None:
        for name, seconds in compute_gpu_seconds(plan, cluster, occupied).items():
            before = costs[name].amount if name in costs else 0.0
            costs[name] = Cost(before + seconds / SECONDS_PER_HOUR * cluster.price_per_gpu_hour, cluster.currency)
    return costs


def compute_gpu_seconds(plan: Plan, cluster: ClusterConfig, occupied: Mapping[str, float]) -> dict[str, float]:
    """Return the GPU-seconds of each node with GPUs: seconds spent on shards (`occupied`) times GPUs per worker."""
    gpus = {item.node.name: item.node.find_pool(cluster).num_gpus for item in plan.nodes}
    return {name: gpus[name] * seconds for name, seconds in occupied.items() if gpus.get(name)}


def describe_costs(
    plan: Plan,
    usage: Mapping[str, Usage],
    cluster: ClusterConfig,
    occupied: Mapping[str, float],
    worked: Mapping[str, float],
) -> dict[str, Any]:
    """Return the cost fields of a run's manifest: GPU-seconds and money, by node and by metric.

    `worked` contains the seconds that each node's models spent computing. GPU-seconds also include the time that models
    waited for rows. If several metrics use a node, its cost is divided in proportion to the model calls planned for
    each metric. The cost of a cell that several metrics read, and of work that is done once for all metrics, is divided
    equally.
    """
    gpus, costs = compute_gpu_seconds(plan, cluster, occupied), sum_costs(plan, usage, cluster, occupied)
    by_metric: dict[str, dict[str, Any]] = {}
    for item in plan.nodes:
        name, calls = item.node.name, sum(item.calls_of.values())
        for metric, own in item.calls_of.items():
            fraction = own / calls if calls else 1 / len(item.calls_of)
            spent = by_metric.setdefault(metric, {"model_seconds": 0.0, "gpu_seconds": 0.0, "costs": {}})
            spent["model_seconds"] += fraction * worked.get(name, 0.0)
            spent["gpu_seconds"] += fraction * gpus.get(name, 0.0)
            if name in costs:
                amount, currency = costs[name]
                spent["costs"][currency] = spent["costs"].get(currency, 0.0) + fraction * amount
    return {
        "gpu_seconds": {node: round(seconds, 2) for node, seconds in gpus.items()},
        "costs": {node: cost._asdict() for node, cost in costs.items()},
        "by_metric": by_metric,
    }


def estimate_costs(plan: Plan, store: Store) -> list[CostEstimate]:
    """Return an estimate for each node that has missing cells and a model with configured prices."""
    calls = {item.node.name: item.model_calls for item in plan.nodes if item.missing}
    estimates = []
    for node, prices in _list_priced_nodes(plan):
        if n_calls := calls.get(node.name):
            run_id, usage = _find_newest_usage(node, store) or (None, prices.assumed_usage())
            cost = Cost(prices.compute_cost(usage) / usage.calls * n_calls, prices.currency)
            read, written = usage.prompt_tokens / usage.calls, usage.new_tokens / usage.calls
            estimates.append(CostEstimate(node.name, n_calls, read, written, cost, run_id))
    return estimates


def list_unpriced_nodes(plan: Plan) -> list[tuple[str, int]]:
    """Return the nodes that will call a service without configured prices, each with its number of calls."""
    unpriced = []
    for item in plan.nodes:
        config = item.node.model.config if item.node.model is not None else None
        if item.missing and isinstance(config, ServiceModel) and config.prices is None:
            unpriced.append((item.node.name, item.model_calls))
    return unpriced


def _list_priced_nodes(plan: Plan) -> list[tuple[Node, Prices]]:
    configs = [(item.node, item.node.model.config) for item in plan.nodes if item.node.model is not None]
    return [(node, config.prices) for node, config in configs if isinstance(config, ServiceModel) and config.prices]


def _find_newest_usage(node: Node, store: Store) -> tuple[str, Usage] | None:
    """Return the id of the newest run that called the node's model, and the node's usage in that run.

    Return None if none of the newest MAX_RUNS_SEARCHED runs called the model.
    """
    for run in islice(read_runs_newest_first(store), MAX_RUNS_SEARCHED):
        manifest = run.manifest or {}
        usage = manifest.get("usage", {}).get(node.name, {})
        same = node.model is not None and manifest.get("models", {}).get(node.name) == node.model.list_key_properties()
        if same and usage.get("calls"):
            return run.run_id, Usage(**{name: usage.get(name, 0) for name in Usage._fields})
    return None


def try_services(nodes: Iterable[Node]) -> None:
    """Send one small request to each service that these nodes use; raise ModelError if a service cannot answer."""
    calls = {
        (repr(model.list_key_properties()), call): (model, call)
        for node in nodes
        for key, model in node.models.items()
        if not model.local
        for call in [STAGES[node.stage].choose_trial_call(key, node.metrics.values())]
    }
    for model, call in calls.values():
        preflight(model, call)

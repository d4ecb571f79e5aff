"""The actor that workers report to: it forwards events and log lines to the driver, counts them and tracks attempts."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.util.metrics import Counter, Gauge

from plumbline.operators.base.sentences import format_quantity
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.running.attempts import NO_HISTORY, ShardHistory, UnfinishedShard
from plumbline.pipelines.running.events import CallsAnswered, Event, ShardStarted
from plumbline.pipelines.running.outcomes import FinishedShard, ShardName
from plumbline.pipelines.store.cells import Outcome

MAX_LOG_LINES = 100_000
"""Maximum number of log lines kept for the driver; if there are more, the oldest lines are dropped."""


class CounterSpec(NamedTuple):
    """Type, description and labels of a counter."""

    kind: type[Counter] | type[Gauge]
    text: str
    labels: tuple[str, ...] = ()
    """Labels in addition to the stage and the node."""


COUNTER_SPECS: Mapping[str, CounterSpec] = {
    "rows": CounterSpec(Counter, "Images or prompts that a node has finished, with or without a result", ("over",)),
    "failures": CounterSpec(Counter, "Rows that have no result, by the kind of their error", ("metric", "kind")),
    "kept_rows": CounterSpec(Counter, "Rows reused from earlier cells, without calling a model", ("metric",)),
    "cells": CounterSpec(Counter, "Cells by state: cached cells existed before the run", ("state",)),
    "model_seconds": CounterSpec(Counter, "Seconds that a node's models spent on shards, summed over its workers"),
    "waited_seconds": CounterSpec(Counter, "Seconds that a node's models waited for rows to be read and decoded"),
    "retries": CounterSpec(Counter, "Shards retried because a worker died or a machine was lost"),
    "waiting_shards": CounterSpec(Gauge, "Shards that a node has not finished"),
}


class Counters:
    """Counters of a run, which Prometheus reads from Ray's own endpoint on the driver's machine.

    Workers have no counters, because Ray's endpoint would keep a worker's counters forever after the worker has ended.
    The ProgressLog counts for them. Labels are names from the configuration (stages, nodes and metrics) and kinds of
    error. Generators are not labels, because every checkpoint of a training run is a generator. Ray takes half a
    millisecond to count a shard, so counts are summed before they are sent.
    """

    def __init__(self) -> None:
        self.waiting: defaultdict[str, int] = defaultdict(int)
        """Number of unfinished shards by node."""
        self._sums: defaultdict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        self._numbers: Mapping[str, Any] = {
            name: spec.kind(f"plumbline_{name}", description=spec.text, tag_keys=("stage", "node", *spec.labels))
            for name, spec in COUNTER_SPECS.items()
        }

    def add(self, name: str, count: float, node: str, **labels: str) -> None:
        self._sums[name, (("stage", _get_stage_name(node)), ("node", node), *labels.items())] += count

    def add_shard(self, node: str, done: FinishedShard) -> None:
        self.add("rows", done.rows, node, over=STAGES[_get_stage_name(node)].row_kind)
        self.add("model_seconds", done.spent.worked, node)
        self.add("waited_seconds", done.spent.waited, node)
        for metric, outcome in done.outcomes.items():
            self.add("cells", 1, node, state=outcome.state)
            self.add("kept_rows", outcome.kept, node, metric=metric)
            kinds = {"shard_failed": done.rows} if outcome.state == "failed" else outcome.kinds
            for kind, count in kinds.items():
                self.add("failures", count, node, metric=metric, kind=kind)

    def send(self) -> None:
        """Send Ray the counts added since the previous call of this method."""
        sums, self._sums = self._sums, defaultdict(float)
        for (name, labels), count in sums.items():
            if count > 0:  # Ray raises an error for 0
                self._numbers[name].inc(count, dict(labels))
        for node, shards in self.waiting.items():
            self._numbers["waiting_shards"].set(shards, {"stage": _get_stage_name(node), "node": node})


def _get_stage_name(node: str) -> str:
    return node.partition(":")[0]


class WorkerReport(NamedTuple):
    """Events and log lines of a worker since its last report."""

    calls: int = 0
    lines: Sequence[Mapping[str, Any]] = ()
    finished: FinishedShard | None = None


class UnreadReports(NamedTuple):
    """Events and log lines that workers have reported and the driver has not read yet."""

    events: Sequence[Event]
    lines: Sequence[Mapping[str, Any]]


class ProgressLog:
    """Collects the workers' reports. It is a separate actor, so its records of shards outlive the workers."""

    def __init__(self, sweep: str = "") -> None:
        """Start with no reports; `sweep` describes the sweep to other sweeps on the cluster."""
        self.sweep = sweep
        self.counters = Counters()
        self.lines: deque[Mapping[str, Any]] = deque(maxlen=MAX_LOG_LINES)
        self.events: list[Event] = []
        self.begun: defaultdict[tuple[str, ShardName], UnfinishedShard] = defaultdict(UnfinishedShard)
        self.finished: dict[tuple[str, ShardName], Mapping[str, Outcome]] = {}
        """Outcomes of finished shards in bundles that are still being computed."""
        self.stopping = False
        self.loading: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Number of actors that are loading, by node and machine."""
        self.start_failures: dict[str, str] = {}

    def describe(self) -> str:
        """Describe the sweep and its remaining work in a few words."""
        left = max(self.counters.waiting.values(), default=0)
        return f"{self.sweep}, {format_quantity(left, 'shard')} left" if left else self.sweep

    def add_cached(self, cells: Mapping[str, int]) -> None:
        """Count each node's cells that do not have to be computed."""
        for node, count in cells.items():
            self.counters.add("cells", count, node, state="cached")

    def set_waiting(self, shards: Mapping[str, int]) -> None:
        for node, count in shards.items():
            self.counters.waiting[node] = count

    def take_unread_reports(self) -> UnreadReports:
        self.counters.send()
        unread = UnreadReports(self.events, list(self.lines))
        self.events = []
        self.lines.clear()
        return unread

    def note_loading(self, node: str, machine: str) -> int:
        """Record that one of a node's actors has started to load models on a machine.

        Return how many of the node's actors are loading on that machine now, including this actor.
        """
        self.loading[node, machine] += 1
        return self.loading[node, machine]

    def note_ready(self, node: str, machine: str, report: WorkerReport) -> None:
        self.loading[node, machine] -= 1
        self.report(node, report)

    def begin(self, node: str, shard: ShardName, machine: str, report: WorkerReport) -> ShardHistory:
        """Process a worker's report, start its next shard, and return the earlier attempts at that shard.

        The shard is not started if the run is stopping, if the shard is already finished, or if an earlier worker died
        on it. In the last case the reporting worker calls `note_start` later, when nothing else is running in its
        process.
        """
        self.report(node, report)
        if self.stopping:
            return NO_HISTORY._replace(stopping=True)
        history = self.get_history(node, shard)
        if history.outcomes is None and not history.deaths:
            self.note_start(node, shard, machine)
        return history

    def get_history(self, node: str, shard: ShardName) -> ShardHistory:
        if (node, shard) in self.finished:
            return NO_HISTORY._replace(outcomes=self.finished[node, shard])
        if (node, shard) not in self.begun:
            return NO_HISTORY
        return self.begun[node, shard].read_history(list_machines())

    def note_start(self, node: str, shard: ShardName, machine: str) -> None:
        self.events.append(ShardStarted(node, benchmark=shard.benchmark))
        begun = self.begun[node, shard]
        if begun.machines:
            self.counters.add("retries", 1, node)
        begun.machines.append(machine)

    def note_row(self, node: str, shard: ShardName, row: int | None) -> None:
        """Record that a node is trying a single row of a shard; `row` is None after the last row."""
        self.begun[node, shard].row = row

    def report(self, node: str, report: WorkerReport, bundle: Sequence[ShardName] = ()) -> bool:
        """Process a worker's report; return True if the worker must stop.

        `bundle` contains the shards of a bundle that the worker has finished.
        """
        self.lines += report.lines
        if report.calls:
            self.events.append(CallsAnswered(node, report.calls))
        if (done := report.finished) is not None:
            self.counters.add_shard(node, done)
            self.counters.waiting[node] = max(0, self.counters.waiting[node] - 1)
            self.begun.pop((node, done.shard), None)
            self.finished[node, done.shard] = done.outcomes
            self.events.append(done.to_event(node))
        for shard in bundle:
            self.finished.pop((node, shard), None)
        return self.stopping

    def stop(self) -> None:
        """Make workers save the complete rows of their current shard and start no further shards."""
        self.stopping = True

    def note_abandoned(self, node: str, shard: ShardName) -> None:
        """Record that a worker has saved the complete rows of a shard and abandoned it."""
        self.begun.pop((node, shard), None)

    def has_shards_in_progress(self) -> bool:
        """Return True if any shard has been started and is neither finished nor abandoned."""
        return bool(self.begun)

    def note_interruption(self) -> None:
        """Forget the current attempt at every shard: the processes were interrupted, and no shard is to blame."""
        for begun in self.begun.values():
            begun.machines = begun.machines[:-1]
            begun.row = None
        self.loading.clear()

    def note_start_failure(self, node: str, message: str) -> None:
        self.start_failures[node] = message

    def find_start_failure(self) -> str | None:
        """Return the name of a node that could not start, with the reason; None if no node has reported this."""
        return next((f"{node}: {message}" for node, message in self.start_failures.items()), None)


def list_machines() -> set[str]:
    return {machine["NodeID"] for machine in ray.nodes() if machine["Alive"]}

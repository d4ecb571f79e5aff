"""The actor that workers report to: it passes events and log lines to the driver, and remembers attempts at shards."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray

from plumbline.operators.base.sentences import plural
from plumbline.pipelines.running.counters import Counters
from plumbline.pipelines.running.events import CallsAnswered, Event, ShardStarted
from plumbline.pipelines.running.outcomes import ModelTime, ShardName, finished_shard
from plumbline.pipelines.store.cells import Outcome

MAX_LINES = 100_000
"""Log lines kept for the driver; if there are more, the oldest are dropped."""


class FinishedShard(NamedTuple):
    """The result of a node's cells of a shard."""

    shard: ShardName
    rows: int
    outcomes: Mapping[str, Outcome]
    """Outcomes of its cells, by metric."""
    spent: ModelTime


class Report(NamedTuple):
    """Events in a worker since its last report."""

    calls: int = 0
    """Number of calls that its models have answered."""
    lines: Sequence[Mapping[str, Any]] = ()
    """Lines of its log."""
    finished: FinishedShard | None = None


class History(NamedTuple):
    """Earlier attempts at a shard in this run."""

    deaths: int
    """Number of times that a process died after starting it."""
    losses: int
    """Number of times that its machine was lost."""
    deadly: tuple[int, ...]
    """Rows, counted from the shard's first, that killed their process."""
    stopping: bool = False
    """True if the run stops, so that the worker must leave the shard."""
    outcomes: Mapping[str, Outcome] | None = None
    """Outcomes by metric, if the shard is finished and its worker died on a later shard of the same bundle."""


NO_HISTORY = History(0, 0, ())


@dataclass(kw_only=True, slots=True)
class _UnfinishedShard:
    """The attempts at an unfinished shard."""

    machines: list[str] = field(default_factory=list)
    """Machine of each attempt."""
    row: int | None = None
    """Row that is being tried alone."""
    deadly: list[int] = field(default_factory=list)


class News(NamedTuple):
    """Events since the driver last asked."""

    events: Sequence[Event]
    lines: Sequence[Mapping[str, Any]]
    """Lines of the workers' logs."""


class ProgressLog:
    """Collects the workers' reports. It is an actor, so that it outlives workers and knows their shards."""

    def __init__(self, sweep: str = "") -> None:
        """Start without reports; `sweep` describes the sweep to other sweeps on the cluster."""
        self.sweep = sweep
        self.counters = Counters()
        self.waiting: Counter[str] = Counter()
        self.lines: deque[Mapping[str, Any]] = deque(maxlen=MAX_LINES)
        self.events: list[Event] = []
        self.begun: defaultdict[tuple[str, ShardName], _UnfinishedShard] = defaultdict(_UnfinishedShard)
        self.finished: dict[tuple[str, ShardName], Mapping[str, Outcome]] = {}
        """Outcomes of the finished shards whose bundle is not finished."""
        self.stopping = False
        """True if no shard may be begun any more."""
        self.loading: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.start_failures: dict[str, str] = {}

    def describe(self) -> str:
        """Describe the sweep and the work that it has left, in a few words."""
        left = max(self.waiting.values(), default=0)
        return f"{self.sweep}, {plural(left, 'shard')} left" if left else self.sweep

    def add_cached(self, cells: Mapping[str, int]) -> None:
        """Count each node's cells that need no computing."""
        for node, count in cells.items():
            self.counters.add_cached(node, count)

    def set_waiting(self, shards: Mapping[str, int]) -> None:
        """Set the number of shards that each node has to compute."""
        for node, count in shards.items():
            self.waiting[node] = count
            self.counters.set_waiting(node, count)

    def take_news(self) -> News:
        """Return the events and log lines since the last call."""
        self.counters.send()
        news = News(self.events, list(self.lines))
        self.events = []
        self.lines.clear()
        return news

    def starting(self, node: str, machine: str) -> int:
        """Note that an actor starts loading; return how many actors on its machine are loading now, including it."""
        self.loading[node][machine] += 1
        return self.loading[node][machine]

    def ready(self, node: str, machine: str, report: Report) -> None:
        """Note that an actor has loaded its models."""
        self.loading[node][machine] -= 1
        self.report(node, report)

    def begin(self, node: str, shard: ShardName, machine: str, report: Report) -> History:
        """Take a worker's report, begin a shard for it, and return the earlier attempts at the shard.

        The shard is not begun if it is finished, or if a worker died on it: the worker then calls `started` once
        nothing else runs in its process.
        """
        self.report(node, report)
        if self.stopping:
            return NO_HISTORY._replace(stopping=True)
        history = self.history(node, shard)
        if history.outcomes is None and not history.deaths:
            self.started(node, shard, machine)
        return history

    def history(self, node: str, shard: ShardName) -> History:
        """Return a node's earlier attempts at a shard.

        A row that was started and not finished counts as deadly from now on, unless its machine was lost.
        """
        if (node, shard) in self.finished:
            return NO_HISTORY._replace(outcomes=self.finished[node, shard])
        if (node, shard) not in self.begun:
            return NO_HISTORY
        begun = self.begun[node, shard]
        living = living_machines()
        if begun.row is not None and begun.machines[-1] in living:
            begun.deadly.append(begun.row)
        begun.row = None
        deaths = sum(machine in living for machine in begun.machines)
        return History(deaths, len(begun.machines) - deaths, tuple(begun.deadly))

    def started(self, node: str, shard: ShardName, machine: str) -> None:
        """Note that a node starts a shard on a machine."""
        self.events.append(ShardStarted(node, benchmark=shard.benchmark))
        begun = self.begun[node, shard]
        if begun.machines:
            self.counters.add_retry(node)
        begun.machines.append(machine)

    def started_row(self, node: str, shard: ShardName, row: int | None) -> None:
        """Note that a node tries one row of a shard alone; None after the last row."""
        self.begun[node, shard].row = row

    def report(self, node: str, report: Report, bundle: Sequence[ShardName] = ()) -> bool:
        """Take a worker's report, with the shards of a bundle that it has finished; return True if it must stop."""
        self.lines += report.lines
        if report.calls:
            self.events.append(CallsAnswered(node, report.calls))
        if report.finished is not None:
            self._finish(node, report.finished)
        for shard in bundle:
            self.finished.pop((node, shard), None)
        return self.stopping

    def stop(self) -> None:
        """Tell workers to begin no shard, and to save the complete rows of the current one."""
        self.stopping = True

    def left(self, node: str, shard: ShardName) -> None:
        """Note that a worker has saved the complete rows of a shard and leaves it."""
        self.begun.pop((node, shard), None)

    def at_work(self) -> bool:
        """Return True if some shard is begun and neither finished nor left."""
        return bool(self.begun)

    def _finish(self, node: str, done: FinishedShard) -> None:
        self.counters.add_shard(node, done.rows, done.outcomes, done.spent)
        self.waiting[node] = max(0, self.waiting[node] - 1)
        self.counters.set_waiting(node, self.waiting[node])
        self.begun.pop((node, done.shard), None)
        self.finished[node, done.shard] = done.outcomes
        self.events.append(finished_shard(node, done.shard, done.rows, done.outcomes.values(), done.spent))

    def interrupted(self) -> None:
        """Note that all processes were ended, through no fault of their shards."""
        for begun in self.begun.values():
            begun.machines = begun.machines[:-1]
            begun.row = None
        self.loading.clear()

    def failed_to_start(self, node: str, message: str) -> None:
        """Note that an actor of a node could not load its models."""
        self.start_failures[node] = message

    def start_failure(self) -> str | None:
        """Return why a node could not start, or None."""
        return next((f"{node}: {message}" for node, message in self.start_failures.items()), None)


def living_machines() -> set[str]:
    """Return the ids of the cluster's machines that are alive."""
    return {machine["NodeID"] for machine in ray.nodes() if machine["Alive"]}

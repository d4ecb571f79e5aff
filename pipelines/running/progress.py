"""The actor that workers report to: it keeps their events and log lines for the driver, and knows how shards ended."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray

from plumbline.operators.base.sentences import plural
from plumbline.pipelines.cells.cells import Outcome
from plumbline.pipelines.running.counters import Counters
from plumbline.pipelines.running.events import CallsAnswered, Event, ShardStarted
from plumbline.pipelines.running.outcomes import ModelTime, ShardName, finished_shard

MAX_LINES = 100_000
"""Log lines kept for the driver; beyond it the oldest are dropped."""


class FinishedShard(NamedTuple):
    """What became of a node's cells of a shard."""

    shard: ShardName
    rows: int
    outcomes: Mapping[str, Outcome]
    """By metric."""
    spent: ModelTime


class Report(NamedTuple):
    """What a worker has to tell since it last told anything."""

    calls: int = 0
    """That its models have answered."""
    lines: Sequence[Mapping[str, Any]] = ()
    """Of its log."""
    finished: FinishedShard | None = None


class History(NamedTuple):
    """Earlier attempts at a shard in this run."""

    deaths: int
    """How often a process that started it died."""
    losses: int
    """How often a machine on which it was started was lost."""
    deadly: tuple[int, ...]
    """The rows, counted from the shard's first, that killed their process."""
    stopping: bool = False
    """True if the run stops, so that the worker leaves the shard."""
    outcomes: Mapping[str, Outcome] | None = None
    """By metric, where the shard was finished and its worker died on a later one of the same bundle."""


NO_HISTORY = History(0, 0, ())


@dataclass(kw_only=True, slots=True)
class _UnfinishedShard:
    """The attempts at a shard that is not finished."""

    machines: list[str] = field(default_factory=list)
    """The machine of each attempt."""
    row: int | None = None
    """The row that is being tried alone."""
    deadly: list[int] = field(default_factory=list)


class News(NamedTuple):
    """What came since the driver last asked."""

    events: Sequence[Event]
    lines: Sequence[Mapping[str, Any]]
    """Lines of the workers' logs."""


class ProgressLog:
    """Takes what workers report; run as an actor, so that it outlives them and tells what they were doing."""

    def __init__(self, sweep: str = "") -> None:
        """`sweep` tells other sweeps on the cluster whose workers report here."""
        self.sweep = sweep
        self.counters = Counters()
        self.waiting: Counter[str] = Counter()
        self.lines: deque[Mapping[str, Any]] = deque(maxlen=MAX_LINES)
        self.events: list[Event] = []
        self.begun: defaultdict[tuple[str, ShardName], _UnfinishedShard] = defaultdict(_UnfinishedShard)
        self.finished: dict[tuple[str, ShardName], Mapping[str, Outcome]] = {}
        """The outcomes of finished shards whose bundle is not finished."""
        self.stopping = False
        """Whether nothing is to be begun any more."""
        self.loading: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.start_failures: dict[str, str] = {}

    def describe(self) -> str:
        """The sweep and what it has before it, in a few words."""
        left = max(self.waiting.values(), default=0)
        return f"{self.sweep}, {plural(left, 'shard')} left" if left else self.sweep

    def standing(self, cells: Mapping[str, int]) -> None:
        """Counts each node's cells that need no computing."""
        for node, count in cells.items():
            self.counters.standing(node, count)

    def waits(self, shards: Mapping[str, int]) -> None:
        """Sets how many shards each node has to do."""
        for node, count in shards.items():
            self.waiting[node] = count
            self.counters.waiting(node, count)

    def take_news(self) -> News:
        """The events and lines that came since the last time."""
        self.counters.send()
        news = News(self.events, list(self.lines))
        self.events = []
        self.lines.clear()
        return news

    def starting(self, node: str, machine: str) -> int:
        """An actor starts loading; returns how many on its machine are loading now, this one included."""
        self.loading[node][machine] += 1
        return self.loading[node][machine]

    def ready(self, node: str, machine: str, report: Report) -> None:
        """An actor has loaded."""
        self.loading[node][machine] -= 1
        self.report(node, report)

    def begin(self, node: str, shard: ShardName, machine: str, report: Report) -> History:
        """A worker, with its report, comes to a shard; returns the earlier attempts at it.

        The shard is started unless it is finished, or a worker died on it: then it is to be `started` alone.
        """
        self.report(node, report)
        if self.stopping:
            return NO_HISTORY._replace(stopping=True)
        history = self.history(node, shard)
        if history.outcomes is None and not history.deaths:
            self.started(node, shard, machine)
        return history

    def history(self, node: str, shard: ShardName) -> History:
        """The earlier attempts of a node at a shard.

        A row that was started and not finished counts as deadly from now on, unless its machine is lost.
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
        """A node starts a shard on a machine."""
        self.events.append(ShardStarted(node, benchmark=shard.benchmark))
        begun = self.begun[node, shard]
        if begun.machines:
            self.counters.again(node)
        begun.machines.append(machine)

    def started_row(self, node: str, shard: ShardName, row: int | None) -> None:
        """A node starts one row of a shard alone; None after the last one."""
        self.begun[node, shard].row = row

    def report(self, node: str, report: Report, bundle: Sequence[ShardName] = ()) -> bool:
        """Takes what a worker of a node tells; `bundle` are the shards of a bundle that it has finished.

        Returns True if the worker is to stop.
        """
        self.lines += report.lines
        if report.calls:
            self.events.append(CallsAnswered(node, report.calls))
        if report.finished is not None:
            self._finish(node, report.finished)
        for shard in bundle:
            self.finished.pop((node, shard), None)
        return self.stopping

    def stop(self) -> None:
        """Ask workers to begin no shard and to save the whole rows of the current one."""
        self.stopping = True

    def left(self, node: str, shard: ShardName) -> None:
        """A worker has saved the whole rows of a shard, and leaves it."""
        self.begun.pop((node, shard), None)

    def at_work(self) -> bool:
        """Return True if some shard is begun and neither finished nor left."""
        return bool(self.begun)

    def _finish(self, node: str, done: FinishedShard) -> None:
        self.counters.finished(node, done.rows, done.outcomes, done.spent)
        self.waiting[node] = max(0, self.waiting[node] - 1)
        self.counters.waiting(node, self.waiting[node])
        self.begun.pop((node, done.shard), None)
        self.finished[node, done.shard] = done.outcomes
        self.events.append(finished_shard(node, done.shard, done.rows, done.outcomes.values(), done.spent))

    def interrupted(self) -> None:
        """All processes were ended, through no fault of their shards."""
        for begun in self.begun.values():
            begun.machines = begun.machines[:-1]
            begun.row = None
        self.loading.clear()

    def failed_to_start(self, node: str, message: str) -> None:
        """An actor of a node could not load."""
        self.start_failures[node] = message

    def start_failure(self) -> str | None:
        """Why a node could not start, or None."""
        return next((f"{node}: {message}" for node, message in self.start_failures.items()), None)


def living_machines() -> set[str]:
    """The ids of the cluster's machines that are not lost."""
    return {machine["NodeID"] for machine in ray.nodes() if machine["Alive"]}

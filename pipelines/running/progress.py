"""The actor that workers report to: it keeps their events and log lines for the driver, and knows how shards ended."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray

from plumbline.pipelines.cells.cells import Outcome
from plumbline.pipelines.running.counters import Counters
from plumbline.pipelines.running.events import CallsAnswered, Event, ShardStarted
from plumbline.pipelines.running.outcomes import ModelTime, ShardName, finished_shard

MAX_LINES = 100_000
"""Log lines kept for the driver; beyond it the oldest are dropped."""


class History(NamedTuple):
    """Earlier attempts at a shard in this run."""

    deaths: int
    """How often a process that started it died."""
    losses: int
    """How often a machine on which it was started was lost."""
    deadly: tuple[int, ...]
    """The rows, counted from the shard's first, that killed their process."""


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

    def __init__(self) -> None:
        self.counters = Counters()
        self.waiting: Counter[str] = Counter()
        self.lines: deque[Mapping[str, Any]] = deque(maxlen=MAX_LINES)
        self.events: list[Event] = []
        self.begun: defaultdict[tuple[str, ShardName], _UnfinishedShard] = defaultdict(_UnfinishedShard)
        self.loading: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.start_failures: dict[str, str] = {}

    def standing(self, cells: Mapping[str, int]) -> None:
        """Counts each node's cells that need no computing."""
        for node, count in cells.items():
            self.counters.standing(node, count)

    def waits(self, shards: Mapping[str, int]) -> None:
        """Sets how many shards each node has to do."""
        for node, count in shards.items():
            self.waiting[node] = count
            self.counters.waiting(node, count)

    def log(self, line: Mapping[str, Any]) -> None:
        """Keeps a line of a worker's log for the driver, which writes them all."""
        self.lines.append(line)

    def take_news(self) -> News:
        """The events and lines that came since the last time."""
        news = News(self.events, list(self.lines))
        self.events = []
        self.lines.clear()
        return news

    def starting(self, node: str, machine: str) -> int:
        """An actor starts loading; returns how many on its machine are loading now, this one included."""
        self.loading[node][machine] += 1
        return self.loading[node][machine]

    def ready(self, node: str, machine: str) -> None:
        """An actor has loaded."""
        self.loading[node][machine] -= 1

    def loads(self) -> Mapping[str, int]:
        """By node, how many actors are loading."""
        return {node: sum(counts.values()) for node, counts in self.loading.items()}

    def history(self, node: str, shard: ShardName) -> History:
        """The earlier attempts of a node at a shard.

        A row that was started and not finished counts as deadly from now on, unless its machine is lost.
        """
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

    def called(self, node: str, calls: int) -> None:
        """A node's models have answered so many more calls."""
        self.events.append(CallsAnswered(node, calls))

    def finished(
        self, node: str, shard: ShardName, rows: int, outcomes: Mapping[str, Outcome], spent: ModelTime
    ) -> None:
        """A node is done with a shard, whatever became of its cells, by metric."""
        self.counters.finished(node, rows, outcomes, spent)
        self.waiting[node] = max(0, self.waiting[node] - 1)
        self.counters.waiting(node, self.waiting[node])
        self.begun.pop((node, shard), None)
        self.events.append(finished_shard(node, shard, rows, outcomes.values(), spent))

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

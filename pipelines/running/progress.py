"""The actor that workers report to: it keeps their events and log lines for the driver, and knows how shards ended."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray

from plumbline.pipelines.cells.cells import Outcome
from plumbline.pipelines.running.counters import Counters
from plumbline.pipelines.running.events import CallsAnswered, Event, ShardStarted
from plumbline.pipelines.running.outcomes import finished_shard

MOST_LINES = 100_000
"""Of the log that wait for the driver; of more, the oldest are dropped."""


class History(NamedTuple):
    """What befell a shard in this run before."""

    deaths: int
    """How often it was begun by a process that died."""
    losses: int
    """How often it was begun on a machine that is lost."""
    deadly: tuple[int, ...]
    """The rows, counted from the shard's first, that ended the process which worked on them."""


FIRST_TIME = History(0, 0, ())


@dataclass(kw_only=True, slots=True)
class _Begun:
    """A shard that is not finished."""

    machines: list[str] = field(default_factory=list)
    """Where it was begun, each time."""
    row: int | None = None
    """The row that is worked on alone."""
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
        self.lines: deque[Mapping[str, Any]] = deque(maxlen=MOST_LINES)
        self.events: list[Event] = []
        self.begun: defaultdict[tuple[str, str], _Begun] = defaultdict(_Begun)
        self.loading: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.start_failures: dict[str, str] = {}

    def standing(self, cells: Mapping[str, int]) -> None:
        """So many cells of each node need no computing."""
        for node, count in cells.items():
            self.counters.standing(node, count)

    def waits(self, shards: Mapping[str, int]) -> None:
        """So many shards are before each node."""
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
        """An actor of a node begins to load; gives the number on its machine that did and are not ready, with it."""
        self.loading[node][machine] += 1
        return self.loading[node][machine]

    def ready(self, node: str, machine: str) -> None:
        """An actor of a node has loaded."""
        self.loading[node][machine] -= 1

    def loads(self) -> Mapping[str, int]:
        """By node, the actors that have begun to load and are not ready."""
        return {node: sum(counts.values()) for node, counts in self.loading.items()}

    def history(self, node: str, shard: str) -> History:
        """What befell a shard on a node.

        A row that was begun there and not finished is deadly from now on, unless its whole machine is lost.
        """
        if (node, shard) not in self.begun:
            return FIRST_TIME
        begun = self.begun[node, shard]
        living = living_machines()
        if begun.row is not None and begun.machines[-1] in living:
            begun.deadly.append(begun.row)
        begun.row = None
        deaths = sum(machine in living for machine in begun.machines)
        return History(deaths, len(begun.machines) - deaths, tuple(begun.deadly))

    def started(self, node: str, shard: str, machine: str) -> None:
        """A node begins a shard on a machine."""
        self.events.append(ShardStarted(node))
        begun = self.begun[node, shard]
        if begun.machines:
            self.counters.again(node)
        begun.machines.append(machine)

    def started_row(self, node: str, shard: str, row: int | None) -> None:
        """A node begins one row of a shard on its own; None where it has finished the last one."""
        self.begun[node, shard].row = row

    def called(self, node: str, calls: int) -> None:
        """So many calls of a node's models have been answered."""
        self.events.append(CallsAnswered(node, calls))

    def finished(self, node: str, shard: str, rows: int, outcomes: Mapping[str, Outcome], seconds: float) -> None:
        """A node is done with a shard, whatever became of its cells, by metric; `seconds` they were with its models."""
        self.counters.finished(node, rows, outcomes, seconds)
        self.waiting[node] = max(0, self.waiting[node] - 1)
        self.counters.waiting(node, self.waiting[node])
        self.begun.pop((node, shard), None)
        self.events.append(finished_shard(node, rows, outcomes.values()))

    def interrupted(self) -> None:
        """All processes have been ended, through no fault of the shards that they were working on."""
        for begun in self.begun.values():
            begun.machines = begun.machines[:-1]
            begun.row = None
        self.loading.clear()

    def failed_to_start(self, node: str, message: str) -> None:
        """A node's actor could not load what it needs."""
        self.start_failures[node] = message

    def start_failure(self) -> str | None:
        """Why some node could not start, if one could not."""
        return next((f"{node}: {message}" for node, message in self.start_failures.items()), None)


def living_machines() -> set[str]:
    """The ids of the cluster's machines that are not lost."""
    return {machine["NodeID"] for machine in ray.nodes() if machine["Alive"]}

"""What a run is doing, cell by cell: an actor that stages report to, and snapshots of it for whoever shows them."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plumbline.pipelines.cells.cells import Outcome

MOST_LINES = 100_000
"""Of the log that wait for the driver; of more, the oldest are dropped."""


class NodeProgress(NamedTuple):
    """How far one node is."""

    cells: int
    rows: int
    failed_rows: int
    seconds: float
    """From the node's first cell to its last report."""
    calls: int = 0
    """Of its models that have been answered, also about cells that are at work."""
    missing: int = 0
    """The cells that it is to compute."""
    expected_calls: int = 0
    """Of its models for all of them, about."""

    def plus(self, other: "NodeProgress") -> "NodeProgress":
        """Both together."""
        return NodeProgress._make(map(sum, zip(self, other, strict=True)))


@dataclass(kw_only=True, slots=True)
class _Tally:
    cells: int = 0
    rows: int = 0
    failed_rows: int = 0
    calls: int = 0
    began: float = field(default_factory=time.monotonic)
    reported: float = field(default_factory=time.monotonic)


class Tallies:
    """What the nodes of a run have done so far."""

    def __init__(self) -> None:
        self._of_node: dict[str, _Tally] = {}

    def begin(self, node: str) -> None:
        """A node begins its first shard, or another one."""
        self._of_node.setdefault(node, _Tally())

    def call(self, node: str, calls: int) -> None:
        """So many calls of a node's models have been answered."""
        self.begin(node)
        self._of_node[node].calls += calls

    def finish(self, node: str, rows: int, outcomes: Collection[Outcome]) -> None:
        """A node is done with a shard of so many rows, whatever became of its cells."""
        self.begin(node)
        tally = self._of_node[node]
        tally.cells += len(outcomes)
        tally.rows += rows
        tally.failed_rows += sum(rows if outcome.state == "failed" else outcome.errors for outcome in outcomes)
        tally.reported = time.monotonic()

    def snapshot(self) -> dict[str, NodeProgress]:
        """Every node that has begun."""
        return {
            node: NodeProgress(tally.cells, tally.rows, tally.failed_rows, tally.reported - tally.began, tally.calls)
            for node, tally in self._of_node.items()
        }


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


class ProgressLog:
    """Counts what stages report; run as an actor, so that it outlives them and tells what they were doing."""

    def __init__(self) -> None:
        from plumbline.pipelines.running.counters import Counters  # imports Ray, which what shows progress does without

        self.counters = Counters()
        self.waiting: Counter[str] = Counter()
        self.lines: deque[Mapping[str, Any]] = deque(maxlen=MOST_LINES)
        self.tallies = Tallies()
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

    def take_lines(self) -> Sequence[Mapping[str, Any]]:
        """The lines that came since the last time."""
        lines = list(self.lines)
        self.lines.clear()
        return lines

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
        self.tallies.begin(node)
        begun = self.begun[node, shard]
        if begun.machines:
            self.counters.again(node)
        begun.machines.append(machine)

    def started_row(self, node: str, shard: str, row: int | None) -> None:
        """A node begins one row of a shard on its own; None where it has finished the last one."""
        self.begun[node, shard].row = row

    def called(self, node: str, calls: int) -> None:
        """So many calls of a node's models have been answered."""
        self.tallies.call(node, calls)

    def finished(self, node: str, shard: str, rows: int, outcomes: Mapping[str, Outcome], seconds: float) -> None:
        """A node is done with a shard, whatever became of its cells, by metric; `seconds` they were with its models."""
        self.counters.finished(node, rows, outcomes, seconds)
        self.waiting[node] = max(0, self.waiting[node] - 1)
        self.counters.waiting(node, self.waiting[node])
        self.begun.pop((node, shard), None)
        self.tallies.finish(node, rows, outcomes.values())

    def interrupted(self) -> None:
        """All processes have been ended, through no fault of the shards that they were working on."""
        for begun in self.begun.values():
            begun.machines = begun.machines[:-1]
            begun.row = None
        self.loading.clear()

    def failed_to_start(self, node: str, message: str) -> None:
        """A node's actor could not load what it needs."""
        self.start_failures[node] = message

    def snapshot(self) -> Mapping[str, NodeProgress]:
        """Every node that has begun."""
        return self.tallies.snapshot()

    def start_failure(self) -> str | None:
        """Why some node could not start, if one could not."""
        return next((f"{node}: {message}" for node, message in self.start_failures.items()), None)


def living_machines() -> set[str]:
    """The ids of the cluster's machines that are not lost."""
    import ray  # what shows progress imports this file too, and with nothing to compute no Ray

    return {machine["NodeID"] for machine in ray.nodes() if machine["Alive"]}

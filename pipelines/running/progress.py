"""What a run is doing, cell by cell: an actor that stages report to, and snapshots of it for whoever shows them."""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipelines.cells.cells import Outcome


class NodeProgress(NamedTuple):
    """How far one node is."""

    cells: int
    rows: int
    failed_rows: int
    seconds: float
    """From the node's first cell to its last report."""


@dataclass(kw_only=True, slots=True)
class _Tally:
    cells: int = 0
    rows: int = 0
    failed_rows: int = 0
    began: float = field(default_factory=time.monotonic)
    reported: float = field(default_factory=time.monotonic)


class History(NamedTuple):
    """What befell a shard in this run before."""

    begun: int
    """How often it was begun and not finished."""
    deadly: tuple[int, ...]
    """The rows, counted from the shard's first, that ended the process which worked on them."""


class ProgressLog:
    """Counts what stages report; run as an actor, so that it outlives them and tells what they were doing."""

    def __init__(self) -> None:
        self.tallies: dict[str, _Tally] = {}
        self.begun: Counter[tuple[str, str]] = Counter()
        self.rows: dict[tuple[str, str], int] = {}
        self.deadly: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self.loading: Counter[str] = Counter()
        self.start_failures: dict[str, str] = {}

    def starting(self, node: str) -> int:
        """An actor of a node begins to load; gives the number that began and are not ready, this one included."""
        self.loading[node] += 1
        return self.loading[node]

    def ready(self, node: str) -> None:
        """An actor of a node has loaded."""
        self.loading[node] -= 1

    def history(self, node: str, shard: str) -> History:
        """What befell a shard on a node; a row that was begun there and not finished is deadly from now on."""
        if (node, shard) in self.rows:
            self.deadly[node, shard].append(self.rows.pop((node, shard)))
        return History(self.begun[node, shard], tuple(self.deadly[node, shard]))

    def started(self, node: str, shard: str) -> None:
        """A node begins a shard."""
        self.tallies.setdefault(node, _Tally())
        self.begun[node, shard] += 1

    def started_row(self, node: str, shard: str, row: int | None) -> None:
        """A node begins one row of a shard on its own; None where it has finished the last one."""
        if row is None:
            self.rows.pop((node, shard), None)
        else:
            self.rows[node, shard] = row

    def finished(self, node: str, shard: str, rows: int, outcomes: list[Outcome]) -> None:
        """A node is done with a shard, whatever became of its cells."""
        tally = self.tallies.setdefault(node, _Tally())
        del self.begun[node, shard]
        tally.cells += len(outcomes)
        tally.rows += rows
        tally.failed_rows += sum(rows if outcome.state == "failed" else outcome.errors for outcome in outcomes)
        tally.reported = time.monotonic()

    def failed_to_start(self, node: str, message: str) -> None:
        """A node's actor could not load what it needs."""
        self.start_failures[node] = message

    def snapshot(self) -> Mapping[str, NodeProgress]:
        """Every node that has begun."""
        return {
            node: NodeProgress(tally.cells, tally.rows, tally.failed_rows, tally.reported - tally.began)
            for node, tally in self.tallies.items()
        }

    def start_failure(self) -> str | None:
        """Why some node could not start, if one could not."""
        return next((f"{node}: {message}" for node, message in self.start_failures.items()), None)

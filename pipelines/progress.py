"""What a run is doing, cell by cell: an actor that stages report to, and snapshots of it for whoever shows them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipelines.cells import Outcome


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


class ProgressLog:
    """Counts what stages report; run as an actor, so that it outlives them and tells what they were doing."""

    def __init__(self) -> None:
        self.tallies: dict[str, _Tally] = {}
        self.begun: dict[str, set[str]] = {}
        self.start_failures: dict[str, str] = {}

    def started(self, node: str, shard: str) -> None:
        """A node began a shard."""
        self.tallies.setdefault(node, _Tally())
        self.begun.setdefault(node, set()).add(shard)

    def finished(self, node: str, shard: str, rows: int, outcomes: list[Outcome]) -> None:
        """A node is done with a shard, whatever became of its cells."""
        tally = self.tallies.setdefault(node, _Tally())
        self.begun.setdefault(node, set()).discard(shard)
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

    def unfinished(self) -> Mapping[str, str]:
        """Shards that were begun and not finished, with the node that has them; forgets them."""
        shards = {shard: node for node, begun in self.begun.items() for shard in begun}
        self.begun.clear()
        return shards

    def start_failure(self) -> str | None:
        """Why some node could not start, if one could not."""
        return next((f"{node}: {message}" for node, message in self.start_failures.items()), None)

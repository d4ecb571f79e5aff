"""Retries of shards, up to `cluster.max_attempts`: how a shard is tried depends on its earlier attempts.

If a worker dies on a shard, the shard is retried while nothing else runs in its process, because another shard there
may have caused the death. After a second death its rows are tried one by one, so that a further death shows which row
to leave out. After `max_attempts` deaths the shard fails and is not tried again. Losing a machine does not count as a
death, but a shard fails if it has lost more than `max_attempts` machines.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from plumbline.pipelines.store.cells import Outcome


class ShardHistory(NamedTuple):
    """Earlier attempts at a shard."""

    deaths: int
    """Number of times that a process died while computing the shard."""
    losses: int
    """Number of times that the machine computing the shard was lost."""
    deadly_rows: tuple[int, ...]
    """Rows that killed their process, as indices within the shard."""
    stopping: bool = False
    """True if the run is stopping and the worker must not start the shard."""
    outcomes: Mapping[str, Outcome] | None = None
    """Outcomes by metric, if the shard was finished before its worker died on a later shard of the same bundle."""

    @property
    def splits_rows(self) -> bool:
        """True if the shard's rows must be tried one by one."""
        return self.deaths > 1

    def explain_giving_up(self, max_attempts: int) -> str:
        """Return the reason why the shard is not retried, or an empty string if it may be."""
        if self.deaths >= max_attempts:
            return f"the worker died {self.deaths} times on this shard"
        if self.losses > max_attempts:
            return f"the machine that computed this shard was lost {self.losses} times"
        return ""


NO_HISTORY = ShardHistory(0, 0, ())


@dataclass(kw_only=True, slots=True)
class UnfinishedShard:
    """A shard that has been started but not finished, with the machine of each attempt."""

    machines: list[str] = field(default_factory=list)
    row: int | None = None
    """Row that is currently being tried on its own."""
    deadly_rows: list[int] = field(default_factory=list)

    def read_history(self, live_machines: Collection[str]) -> ShardHistory:
        """Return the history of all earlier attempts, which the next attempt needs.

        A row that was started but not finished is counted as having killed its worker, unless its machine was lost.
        """
        if self.row is not None and self.machines[-1] in live_machines:
            self.deadly_rows.append(self.row)
        self.row = None
        deaths = sum(machine in live_machines for machine in self.machines)
        return ShardHistory(deaths, len(self.machines) - deaths, tuple(self.deadly_rows))

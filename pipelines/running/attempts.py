"""Attempts at a shard, `cluster.max_attempts` at most: the earlier attempts of a run decide about the next one.

A shard whose worker died is repeated while nothing else runs in its process, because another shard there may have been
at fault. After a second death its rows are tried one by one, so that the next death shows which row to leave out. After
`max_attempts` deaths the shard fails without another attempt. A lost machine does not count as a death, but a shard
that loses more machines than that fails too.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from plumbline.pipelines.store.cells import Outcome


class History(NamedTuple):
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

    @property
    def splits_rows(self) -> bool:
        """True if the shard's rows must be tried one by one."""
        return self.deaths > 1

    def reason_to_give_up(self, max_attempts: int) -> str:
        """Return why the shard is not tried again, or an empty string."""
        if self.deaths >= max_attempts:
            return f"the worker died {self.deaths} times on this shard"
        if self.losses > max_attempts:
            return f"the machine was lost {self.losses} times under this shard"
        return ""


NO_HISTORY = History(0, 0, ())


@dataclass(kw_only=True, slots=True)
class UnfinishedShard:
    machines: list[str] = field(default_factory=list)
    row: int | None = None
    """Row that is being tried alone."""
    deadly: list[int] = field(default_factory=list)

    def read_history(self, list_machines: Collection[str]) -> History:
        """Return the attempts as a history, for the next attempt.

        A row that was started and not finished counts as deadly from now on, unless its machine was lost.
        """
        if self.row is not None and self.machines[-1] in list_machines:
            self.deadly.append(self.row)
        self.row = None
        deaths = sum(machine in list_machines for machine in self.machines)
        return History(deaths, len(self.machines) - deaths, tuple(self.deadly))

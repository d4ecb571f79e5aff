"""Events of a run while a plan is computed, and the totals that displays keep of them."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from plumbline.pipelines.plans.plan import NodePlan
from plumbline.pipelines.running.errors import one_line

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CellsExpected:
    """A node has this many more cells to compute, with about this many calls of its models."""

    node: str
    cells: int
    calls: int


@dataclass(frozen=True, slots=True)
class ShardStarted:
    node: str
    at: float = field(default_factory=time.monotonic)
    benchmark: str = ""


@dataclass(frozen=True, slots=True)
class CallsAnswered:
    """The models of a node have answered this many more calls."""

    node: str
    calls: int


@dataclass(frozen=True, slots=True)
class ShardFinished:
    """A node has finished its cells of a shard, successfully or not."""

    node: str
    cells: int
    rows: int
    failed_rows: int
    worked: float = 0.0
    """Seconds that the node's models worked on it."""
    waited: float = 0.0
    """Seconds that the models waited for its rows to be read and decoded."""
    calls: int = 0
    """Calls that the models answered for it."""
    at: float = field(default_factory=time.monotonic)
    benchmark: str = ""


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """The run begins a phase without computing; it lasts until the next event."""

    what: str
    """Description of the phase in a few words, such as "starting Ray"."""


Event = PhaseStarted | CellsExpected | ShardStarted | CallsAnswered | ShardFinished
Watch = Callable[[Event], None]
"""Function that is called with every event, in order."""


class NodeProgress(NamedTuple):
    """The progress of one node."""

    cells: int = 0
    rows: int = 0
    failed_rows: int = 0
    seconds: float = 0.0
    """Seconds from the node's first shard to its last finished one, without the time between two rounds."""
    worked: float = 0.0
    """Seconds that its models worked, summed over all workers."""
    waited: float = 0.0
    """Seconds that its models waited for rows to be read and decoded, summed over all workers."""
    calls: int = 0
    """Calls that its models have answered, including those for unfinished cells."""
    missing: int = 0
    expected_calls: int = 0
    """Estimated number of calls for all of these cells."""


class Totals:
    """Sums over the events, by node."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.nodes: dict[str, NodeProgress] = {}
        self._started: dict[str, float] = {}
        self._earlier_seconds: dict[str, float] = {}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Add one more event. Cells that are reported twice, because their worker died, are counted once."""
        if isinstance(event, PhaseStarted):
            return
        node, state = event.node, self.nodes.get(event.node, NodeProgress())
        match event:
            case CellsExpected(cells=cells, calls=calls):
                # a new round begins: the time until its first shard is not counted
                self._started.pop(node, None)
                self._earlier_seconds[node] = state.seconds
                state = state._replace(missing=state.missing + cells, expected_calls=state.expected_calls + calls)
            case ShardStarted(at=at):
                self._started.setdefault(node, at)
            case CallsAnswered(calls=calls):
                state = state._replace(calls=state.calls + calls)
            case ShardFinished(cells=cells, rows=rows, failed_rows=failed_rows, at=at):
                state = state._replace(
                    cells=min(state.cells + cells, state.missing),
                    rows=state.rows + rows,
                    failed_rows=state.failed_rows + failed_rows,
                    worked=state.worked + event.worked,
                    waited=state.waited + event.waited,
                    seconds=self._earlier_seconds.get(node, 0.0) + at - self._started.setdefault(node, at),
                )
        self.nodes[node] = state


def expect_cells(nodes: Iterable[NodePlan]) -> list[CellsExpected]:
    """Return an event for each node with missing cells."""
    return [CellsExpected(item.node.name, item.missing, item.model_calls) for item in nodes if item.missing]


def to_all(*displays: Watch) -> Watch:
    """Return a watch that passes every event to each display.

    A display that fails is logged once. It stops neither the other displays nor the run.
    """
    failed: set[int] = set()

    def watch(event: Event) -> None:
        for number, display in enumerate(displays):
            try:
                display(event)
            except Exception as error:
                if number not in failed:
                    LOG.warning("the progress cannot be shown: %s", one_line(error), exc_info=error)
                failed.add(number)

    return watch

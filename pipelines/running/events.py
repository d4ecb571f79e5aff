"""Events that report the progress of a plan's computation, and the totals that progress displays show."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from plumbline.pipelines.plans.plan import NodePlan
from plumbline.pipelines.running.errors import format_error

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CellsExpected:
    """Event: a node has more cells to compute; `calls` estimates the model calls and encoded images for these cells."""

    node: str
    cells: int
    calls: int


@dataclass(frozen=True, slots=True)
class ShardStarted:
    """Event: a node has started to compute its cells of a shard."""

    node: str
    at: float = field(default_factory=time.monotonic)
    benchmark: str = ""


@dataclass(frozen=True, slots=True)
class CallsAnswered:
    """Event: a node's models have answered more calls."""

    node: str
    calls: int


@dataclass(frozen=True, slots=True)
class ShardFinished:
    """Event: a node has finished its cells of a shard, successfully or not."""

    node: str
    cells: int
    rows: int
    failed_rows: int
    worked: float = 0.0
    """Seconds that the node's models spent computing the shard."""
    waited: float = 0.0
    """Seconds that the models waited for the shard's rows to be read and decoded."""
    calls: int = 0
    """Number of model calls answered for the shard."""
    at: float = field(default_factory=time.monotonic)
    benchmark: str = ""


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """Event: the run begins a phase without computation, which lasts until the next event."""

    what: str
    """Description of the phase in a few words, such as "starting Ray"."""


Event = PhaseStarted | CellsExpected | ShardStarted | CallsAnswered | ShardFinished
Watch = Callable[[Event], None]
"""Function that is called with every event, in order."""


class NodeProgress(NamedTuple):
    """Progress of one node."""

    cells: int = 0
    rows: int = 0
    failed_rows: int = 0
    seconds: float = 0.0
    """Seconds from the start of the node's first shard to the end of its last shard, without time between rounds."""
    worked: float = 0.0
    """Seconds that the node's models spent computing, summed over all workers."""
    waited: float = 0.0
    """Seconds that the node's models waited for rows to be read and decoded, summed over all workers."""
    calls: int = 0
    """Number of calls that the node's models have answered, including calls for unfinished cells."""
    missing: int = 0
    expected_calls: int = 0
    """Estimated number of calls for all of the node's cells."""


class ProgressTotals:
    """Totals of the events by node."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.nodes: dict[str, NodeProgress] = {}
        self._started: dict[str, float] = {}
        self._earlier_seconds: dict[str, float] = {}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Add an event. Cells that are reported twice because their worker died are counted once."""
        if isinstance(event, PhaseStarted):
            return
        node, state = event.node, self.nodes.get(event.node, NodeProgress())
        match event:
            case CellsExpected(cells=cells, calls=calls):
                # a new round begins; do not count the time before its first shard
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


def list_expected_cells(nodes: Iterable[NodePlan]) -> list[CellsExpected]:
    """Return a CellsExpected event for each node with missing cells."""
    return [CellsExpected(item.node.name, item.missing, item.steps) for item in nodes if item.missing]


def combine_displays(*displays: Watch) -> Watch:
    """Return a function that passes each event to all displays.

    If a display fails, its error is logged once, and the other displays and the run continue.
    """
    failed: set[int] = set()

    def watch(event: Event) -> None:
        for number, display in enumerate(displays):
            try:
                display(event)
            except Exception as error:
                if number not in failed:
                    LOG.warning(
                        "a progress display failed: %s",
                        format_error(error),
                        exc_info=error,
                    )
                failed.add(number)

    return watch

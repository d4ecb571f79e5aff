"""What happens while a plan is computed, one event after the other, and the totals that each display keeps of it."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from plumbline.pipelines.plans.plan import NodePlan
from plumbline.pipelines.running.errors import one_line

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CellsExpected:
    """A node is to compute so many more cells, with about so many calls of its models."""

    node: str
    cells: int
    calls: int


@dataclass(frozen=True, slots=True)
class ShardStarted:
    """A node starts on a shard."""

    node: str
    at: float = field(default_factory=time.monotonic)
    benchmark: str = ""


@dataclass(frozen=True, slots=True)
class CallsAnswered:
    """The models of a node have answered so many more calls."""

    node: str
    calls: int


@dataclass(frozen=True, slots=True)
class ShardFinished:
    """A node is done with its cells of a shard, whatever became of them."""

    node: str
    cells: int
    rows: int
    failed_rows: int
    worked: float = 0.0
    """Seconds that the node's models worked on it."""
    waited: float = 0.0
    """Seconds that they waited for its rows to be read and decoded."""
    calls: int = 0
    """Calls that they answered on it."""
    at: float = field(default_factory=time.monotonic)
    benchmark: str = ""


@dataclass(frozen=True, slots=True)
class PhaseStarted:
    """The run begins something that no node counts, which lasts until the next event."""

    what: str
    """The phase in a few words, such as "starting Ray"."""


Event = PhaseStarted | CellsExpected | ShardStarted | CallsAnswered | ShardFinished
Watch = Callable[[Event], None]
"""Is called with every event, in order."""


class NodeProgress(NamedTuple):
    """How far one node is."""

    cells: int = 0
    rows: int = 0
    failed_rows: int = 0
    seconds: float = 0.0
    """From the node's first shard to its last finished one, without the time between two rounds."""
    worked: float = 0.0
    """Seconds that its models worked, those of all workers together."""
    waited: float = 0.0
    """Seconds that they waited for rows to be read and decoded."""
    calls: int = 0
    """Calls that its models have answered, also for cells that are not finished."""
    missing: int = 0
    """The cells that it is to compute."""
    expected_calls: int = 0
    """About how many calls all of them take."""


class Totals:
    """The events so far, added up by node."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.nodes: dict[str, NodeProgress] = {}
        self._started: dict[str, float] = {}
        self._earlier_seconds: dict[str, float] = {}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Counts one more event. Cells whose worker died after it had reported them are counted once."""
        if isinstance(event, PhaseStarted):
            return
        node, state = event.node, self.nodes.get(event.node, NodeProgress())
        match event:
            case CellsExpected(cells=cells, calls=calls):
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


def expected_cells(nodes: Iterable[NodePlan]) -> Iterator[CellsExpected]:
    """What each of the nodes with something to compute has before it."""
    for item in nodes:
        if item.missing:
            yield CellsExpected(item.node.name, item.missing, item.model_calls)


def to_all(*displays: Watch) -> Watch:
    """Passes every event to each display; one that fails is logged once, and ends neither the others nor the run."""
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

"""Prints the progress of a sweep as a line or a bar for each stage."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Timer
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from plumbline.jobs.display.console import say
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.running.events import Event, NodeProgress, PhaseStarted, ProgressTotals
from plumbline.pipelines.sweeps.planning import PlannedSweep

LINE_INTERVAL, MAX_LINE_INTERVAL = 30.0, 600.0
"""Seconds between progress lines in a log. The interval doubles each time, up to the maximum, to keep the log short."""
PHASE_DELAY_SECONDS = 10.0
"""Seconds after which a phase, such as starting workers, gets a line in a log; shorter phases get none."""
BAR_WIDTH = 20
MIN_FINISHING_SECONDS = 4.0
"""Seconds needed for the tables and the report of the smallest run; most of them are spent on imports."""
FINISHING_SECONDS_PER_ROW = 4e-4
"""Additional seconds per score; measured with jobs.sweep sweep=shapes metric=[edge_density], with and without limit=40.
"""


def estimate_reporting_seconds(sweeps: Iterable[PlannedSweep]) -> float:
    """Estimate the seconds needed for the tables and reports of these sweeps once their cells have been computed."""
    rows = [sum(item.images for item in planned.plan.nodes if item.node.stage == "scores") for planned in sweeps]
    return sum(MIN_FINISHING_SECONDS + FINISHING_SECONDS_PER_ROW * count for count in rows)


@contextmanager
def show_phase(console: Console, phase: str, *, verbose: bool) -> Iterator[None]:
    """Show this phase on a terminal until the context ends; in a log, print a line if `verbose`."""
    if verbose and not console.is_terminal:
        say(console, phase)
    with console.status(escape(phase)) if console.is_terminal else nullcontext():
        yield


class ProgressBars(Progress):
    """A bar for each stage, and a line below them."""

    last_line: Callable[[], str] = staticmethod(str)

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bars and the line below them."""
        yield self.make_tasks_table(self.tasks)
        if line := self.last_line():
            yield Text(line)


class ProgressDisplay:
    """Progress of a sweep: for each stage, the cells, rows per second, time left, model calls and failed rows.

    The last line shows the current phase if the run is between stages, and otherwise the total time left.
    """

    def __init__(self, console: Console, *, afterwards: float = 0.0, verbose: bool = False) -> None:
        """Show progress on this console.

        Args:
            console: a terminal, or a log.
            afterwards: seconds for the tables and the report, after all cells have been computed.
            verbose: True to log a line for each phase immediately, and not only for long phases.
        """
        self.console, self.verbose = console, verbose
        self.bars = ProgressBars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR_WIDTH),
            MofNCompleteColumn(),
            TextColumn("cells  {task.fields[rate]:>16}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[calls]}{task.fields[failed]} failed rows"),
            console=console,
            disable=not console.is_terminal,
        )
        self.bars.last_line = self._describe_phase_or_time_left
        self.afterwards = afterwards
        self.totals = ProgressTotals()
        self.tasks: dict[str, TaskID] = {}
        self.interval, self.last_line = LINE_INTERVAL, time.monotonic()
        self.late_phase = Timer(PHASE_DELAY_SECONDS, str)
        self.phase: str | None = None
        self.phase_began = 0.0

    def __enter__(self) -> "ProgressDisplay":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.late_phase.cancel()
        self.bars.stop()

    def update(self, event: Event) -> None:
        """Show an event; in a log, print a line at intervals and when a stage is complete."""
        if isinstance(event, PhaseStarted):
            self.phase, self.phase_began = event.what, time.monotonic()
            if not self.console.is_terminal:
                self.late_phase.cancel()
                if self.verbose:
                    say(self.console, event.what)
                else:
                    self.late_phase = Timer(PHASE_DELAY_SECONDS, say, (self.console, event.what))
                    self.late_phase.daemon = True
                    self.late_phase.start()
            return
        self.phase = None
        self.late_phase.cancel()
        self.totals.add(event)
        is_done = self._update_bar(event.node, self.totals.nodes[event.node])
        if not self.console.is_terminal:
            self._print_progress_line(event.node if is_done else None)

    def _describe_phase_or_time_left(self) -> str:
        if self.phase is not None:
            return f"{self.phase}, {format_minutes(time.monotonic() - self.phase_began)}"
        return _describe_time_left(self.totals.nodes.values(), self.afterwards)

    def _update_bar(self, name: str, state: NodeProgress) -> bool:
        """Update a stage's bar, or add it; return True if the stage has just become complete."""
        rate = describe_rate(name, state.rows, state.seconds)
        fields: dict[str, Any] = {"rate": rate, "calls": _format_calls(state), "failed": state.failed_rows}
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(escape(name), total=state.missing, **fields)
        before = self.bars.tasks[self.tasks[name]].completed
        self.bars.update(self.tasks[name], total=state.missing, completed=state.cells, **fields)
        return before < state.cells == state.missing

    def _print_progress_line(self, done: str | None) -> None:
        due = time.monotonic() - self.last_line > self.interval
        for name, state in self.totals.nodes.items():
            is_working = (state.cells or state.calls) and state.cells < state.missing
            if name == done or (due and is_working):
                left = _estimate_seconds_left(state)
                self.console.print(
                    f"{name}: {state.cells}/{state.missing} cells, {describe_rate(name, state.rows, state.seconds)}, "
                    f"{'?' if left is None else format_minutes(left)} left, "
                    f"{_format_calls(state)}{state.failed_rows} failed rows"
                )
        if due:
            self.interval, self.last_line = min(2 * self.interval, MAX_LINE_INTERVAL), time.monotonic()
            if line := _describe_time_left(self.totals.nodes.values(), self.afterwards):
                say(self.console, line)


def _describe_time_left(nodes: Iterable[NodeProgress], afterwards: float) -> str:
    """Describe the time left for the whole run; empty if it is unknown, `at least ...` if a model has not started."""
    unfinished = [state for state in nodes if state.cells < state.missing]
    known = [left for state in unfinished if (left := _estimate_seconds_left(state)) is not None]
    if not known:
        return ""
    is_partial = any(state.expected_calls and not state.cells for state in unfinished)
    tail = ", with tables and report" if afterwards else ""
    return f"{'at least' if is_partial else 'about'} {format_minutes(max(known) + afterwards)} left in all{tail}"


def _format_calls(state: NodeProgress) -> str:
    """Return text with the number of model calls and encoded images so far, and the expected number.

    Calls for unfinished cells count as well.
    """
    return f"{state.calls} of about {state.expected_calls} steps, " if state.expected_calls and state.calls else ""


def _estimate_seconds_left(state: NodeProgress) -> float | None:
    return state.seconds / state.cells * (state.missing - state.cells) if state.cells else None


def format_minutes(seconds: float) -> str:
    """Format seconds as minutes and seconds: 1:20."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def describe_rate(node: str, rows: int, seconds: float) -> str:
    """Format the speed of a stage with its unit, such as images/s; the unit is rows/s if the stage is not installed."""
    stage = node.partition(":")[0]
    unit = f"{STAGES[stage].row_kind}/s" if stage in STAGES else "rows/s"
    return f"{rows / seconds:.1f} {unit}" if seconds > 0 and rows else f"- {unit}"

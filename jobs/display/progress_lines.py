"""A sweep at work: a line or a bar for each stage."""

import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.running.events import Event, NodeProgress, Totals

LINE_INTERVAL = 10.0
BAR = 20
"""Characters."""


class ProgressDisplay:
    """One line per stage that is reported: cells done and total, rows per second, time left, model calls so far,
    failed rows.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR),
            MofNCompleteColumn(),
            TextColumn("cells  {task.fields[rate]:>16}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[calls]}{task.fields[failed]} failed rows"),
            console=console,
            disable=not console.is_terminal,
        )
        self.totals = Totals()
        self.tasks: dict[str, TaskID] = {}
        self.last_line = time.monotonic()

    def __enter__(self) -> "ProgressDisplay":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def update(self, event: Event) -> None:
        """Shows what an event changes; in a log, a line every ten seconds and one when a stage is complete."""
        self.totals.add(event)
        is_done = self._advance(event.node, self.totals.nodes[event.node])
        if not self.console.is_terminal:
            self._log(event.node if is_done else None)

    def _advance(self, name: str, state: NodeProgress) -> bool:
        """Draws a stage's bar; whether that stage is complete, and was not before."""
        fields: dict[str, Any] = {"rate": _rate(name, state), "calls": _calls(state), "failed": state.failed_rows}
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(escape(name), total=state.missing, **fields)
        before = self.bars.tasks[self.tasks[name]].completed
        self.bars.update(self.tasks[name], total=state.missing, completed=state.cells, **fields)
        return before < state.cells == state.missing

    def _log(self, done: str | None) -> None:
        due = time.monotonic() - self.last_line > LINE_INTERVAL
        for name, state in self.totals.nodes.items():
            is_working = (state.cells or state.calls) and state.cells < state.missing
            if name == done or (due and is_working):
                self.console.print(
                    f"{name}: {state.cells}/{state.missing} cells, {_rate(name, state)}, "
                    f"{_time_left(state)} left, {_calls(state)}{state.failed_rows} failed rows"
                )
        if due:
            self.last_line = time.monotonic()


def _calls(state: NodeProgress) -> str:
    """The calls of its models that have been answered, for cells at work too, beside what the plan expects."""
    return f"{state.calls} of about {state.expected_calls} calls, " if state.expected_calls and state.calls else ""


def _time_left(state: NodeProgress) -> str:
    if not state.cells:
        return "?"
    seconds = state.seconds / state.cells * (state.missing - state.cells)
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _rate(name: str, state: NodeProgress) -> str:
    unit = f"{STAGES[name.partition(':')[0]].over}/s"
    return f"{state.rows / state.seconds:.1f} {unit}" if state.seconds > 0 and state.rows else f"- {unit}"

"""During a sweep the terminal shows the running stages and the remaining time."""

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.pipelines.running.events import CellsExpected, Event, PhaseStarted, ShardFinished, ShardStarted

EXPECTED_EVENTS: list[Event] = [CellsExpected("answers:vqa", 10, 400), CellsExpected("scores", 10, 0)]
HALF_DONE_EVENTS: list[Event] = [
    ShardStarted("answers:vqa", at=0.0),
    *[ShardFinished("answers:vqa", 1, 4, 0, at=12.0 * n) for n in range(1, 6)],
]


def render(events: Sequence[Event], *, terminal: bool = True) -> str:
    """Return the text shown after these events, on a terminal or in a verbose log."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=140, highlight=False)
    with ProgressDisplay(console, afterwards=20.0, verbose=True) as display:
        for event in events:
            display.last_line = -1e9  # in a log, the next line is due
            display.update(event)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_starting_stages_are_named_until_the_first_cell_is_at_work(terminal: bool) -> None:
    starting = [*EXPECTED_EVENTS, PhaseStarted("starting Ray"), PhaseStarted("starting the workers of answers:vqa")]
    assert "starting the workers of answers:vqa" in render(starting, terminal=terminal)
    last = render([*starting, ShardStarted("answers:vqa")]).rpartition("answers:vqa ")[2]
    assert "starting" not in last


@pytest.mark.parametrize("terminal", [True, False])
def test_the_time_left_includes_tables_and_report(terminal: bool) -> None:
    assert "about 1:20 left in all, with tables and report" in render(
        [*EXPECTED_EVENTS, *HALF_DONE_EVENTS], terminal=terminal
    )
    others = [*EXPECTED_EVENTS, CellsExpected("similarities:clip", 5, 20), *HALF_DONE_EVENTS]
    assert "at least 1:20 left in all, with tables and report" in render(others, terminal=terminal), (
        "clip has not begun"
    )

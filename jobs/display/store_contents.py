"""Prints the contents of a store: its runs, the files that may be removed, and the progress of running sweeps."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from plumbline.jobs.display.console import EMPTY, say, show_table, text_table, warn
from plumbline.operators.base.sentences import plural
from plumbline.operators.results.summary import part_of
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.maintenance.garbage import Collected
from plumbline.pipelines.maintenance.working_sweeps import RunningSweep, StageState
from plumbline.pipelines.store.runs import Run
from plumbline.pipelines.store.store import CellCount
from plumbline.pipelines.store.suites import Suite

WATCH_SECONDS = 2.0
SECONDS_BETWEEN_LINES = 10.0
SUITES_SHOWN = 5
SILENT_SECONDS = 60.0
"""Silence of a sweep after which it is mentioned: the sweep may have died, or its storage may be out of reach."""


def show_collected(console: Console, collected: Collected) -> None:
    """Print the files that may be removed by stage and reason, the runs that are not kept, and sweeps at work."""
    for sweep, host in collected.in_use.items():
        say(console, f"sweep {sweep} is at work on {host}: the cells that it may use are left alone")
    if collected.runs:
        say(console, f"runs that are not kept: {', '.join(collected.runs)}")
    rows = [(stage, why, str(amount.files), decimal(amount.size)) for (stage, why), amount in collected.free.items()]
    if not rows:
        say(console, f"{collected.store}: nothing may go")
        return
    show_table(console, collected.store, ("of", "why", "files", "bytes"), rows, numbers=slice(2, None))
    files = sum(amount.files for amount in collected.free.values())
    size = decimal(sum(amount.size for amount in collected.free.values()))
    done = "removed" if collected.deleted else "may go; add delete=true to remove them"
    say(console, f"{files} files, {size}, {done}")


def watch(console: Console, poll: Callable[[], Sequence[RunningSweep]], wait: Callable[[float], object]) -> None:
    """Show running sweeps until they have ended: in place on a terminal, and otherwise as lines from time to time."""
    sweeps = poll()
    if not sweeps:
        say(console, "no sweep is running")
        return
    if not console.is_terminal:
        while sweeps:
            _log(console, sweeps)
            wait(SECONDS_BETWEEN_LINES)
            sweeps = poll()
        return
    with Live(_screen(sweeps), console=console, auto_refresh=False) as live:
        while sweeps:
            live.update(_screen(sweeps), refresh=True)
            wait(WATCH_SECONDS)
            sweeps = poll()


def _log(console: Console, sweeps: Sequence[RunningSweep]) -> None:
    for sweep in sweeps:
        for name, state in sweep.status.stages.items():
            say(console, f"{_name(sweep)} {name}: {', '.join(_stage_cells(name, state))}")
        if not sweep.status.stages:
            say(console, f"{_name(sweep)}: nothing to compute, the run is being written")


def _name(sweep: RunningSweep) -> str:
    return sweep.status.run or f"{sweep.status.host}:{sweep.status.process}"


def _screen(sweeps: Iterable[RunningSweep]) -> RenderableType:
    tables: list[RenderableType] = []
    for sweep in sweeps:
        silent = f", silent for {_minutes(sweep.silent)}" if sweep.silent > SILENT_SECONDS else ""
        title = f"{sweep.status.benchmark}: {_name(sweep)} on {sweep.status.host} since {sweep.status.began}{silent}"
        rows = [(name, *_stage_cells(name, state)) for name, state in sweep.status.stages.items()]
        names = ("stage", "cells to compute", "rate", "time", "model calls", "failed rows")
        tables.append(text_table(title, names, rows, numbers=slice(1, None)))
    return Group(*tables, Text("Ctrl-C ends the view, and no sweep"))


def _stage_cells(name: str, state: StageState) -> tuple[str, str, str, str, str]:
    """Return a stage's cells, rate, time left, model calls and failed rows as text."""
    unit = f"{STAGES[stage].over}/s" if (stage := name.partition(":")[0]) in STAGES else "rows/s"
    rate = f"{state.rows / state.seconds:.1f} {unit}" if state.seconds > 0 and state.rows else f"- {unit}"
    left = state.seconds_left
    return (
        f"{state.done}/{state.missing}",
        rate,
        f"{EMPTY if left is None else _minutes(left)} left",
        f"{state.calls} calls",
        f"{state.failed_rows} failed rows",
    )


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def show_unfinished(console: Console, sweeps: Iterable[RunningSweep]) -> None:
    """Print the sweeps at work, and the killed ones, with the number of their cells in the store."""
    for sweep in sweeps:
        said = sweep.status
        state = f"was killed, last heard of {_minutes(sweep.silent)} ago" if sweep.killed else "at work"
        cells = f"{sweep.committed} of {plural(sweep.cells, 'cell')} committed"
        then = "run the same command to go on" if sweep.killed else "--watch follows it"
        say(console, f"{_name(sweep)}: {said.benchmark}, {state} on {said.host} since {said.began}, {cells}; {then}")


def show_no_runs(console: Console, cells: CellCount) -> None:
    """Print that a store has no run yet, and how many cells a new sweep could use."""
    count = f"{cells.found}{'' if cells.all else ' or more'}"
    if cells.found:
        say(console, f"no runs yet, and {count} committed cells; run the same command to go on")
    else:
        console.print("no runs yet; start one with: plumbline sweep sweep=shapes")


def show_runs(console: Console, runs: Sequence[Run]) -> None:
    """Print the runs with their coverage and failures, the newest last, and the problems of unreadable runs.

    Each run takes a few lines, which a narrow terminal breaks between words.
    """
    for run in runs:
        name = f"[bold]{escape(run.run_id)}[/]{' (latest)' if run.latest else ''}"
        if run.manifest is None:
            console.print(f"{name}: damaged", soft_wrap=True)
            continue
        console.print(f"{name}: {escape(_run_outcome(run.manifest))}")
        for line in _run_lines(run.manifest):
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    for run in runs:
        if run.problem:
            warn(console, run.problem)


def show_suites(console: Console, store: str, suites: Sequence[Suite]) -> None:
    """Print the suites with their runs and pages."""
    for suite in suites:
        benchmarks = ", ".join(f"{benchmark} {run_id}" for benchmark, run_id in suite.runs.items())
        console.print(f"suite [bold]{escape(suite.suite_id)}[/]: {escape(benchmarks)}, exit {suite.exit_code}")
        say(console, f"  {store}/{suite.folder}/report.html")


def _run_outcome(manifest: Mapping[str, Any]) -> str:
    """Return a run's benchmark, coverage and exit code, without values that an old manifest lacks."""
    part, coverage = part_of(manifest), manifest.get("counts", {}).get("coverage")
    return ", ".join(
        [
            f"{manifest.get('benchmark', EMPTY)}{f' ({part})' if part else ''}",
            *([] if coverage is None else [f"coverage {coverage:.1%}"]),
            f"exit {manifest.get('exit_code', EMPTY)}",
        ]
    )


def _run_lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield a run's note, its generators and metrics, its cells, and its errors."""
    counts, generators = manifest.get("counts", {}), len(manifest.get("generators", ()))
    if note := manifest.get("note"):
        yield f"note: {note}"
    metrics = ", ".join(manifest.get("metrics", ())) or EMPTY
    yield f"{plural(generators, 'generator')} by {metrics}"
    states = ("computed", "cached", "failed")
    yield "cells: " + ", ".join(f"{counts.get(f'cells_{state}', EMPTY)} {state}" for state in states)
    if errors := manifest.get("errors", {}):
        yield f"errors: {', '.join(f'{count} {kind}' for kind, count in errors.items())}"

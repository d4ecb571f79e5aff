"""Shows the runs of a store, and sweeps that are running or were killed."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from plumbline.jobs.command import Command, JobTerminated, run_job
from plumbline.jobs.display.console import EMPTY_CELL, make_console, make_table, say, warn
from plumbline.jobs.display.progress_lines import describe_rate, format_minutes
from plumbline.operators.base.sentences import format_quantity
from plumbline.operators.results.summary import describe_part
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.maintenance.running_sweeps import (
    RunningSweep,
    StageState,
    list_running_sweeps,
    list_unfinished_sweeps,
)
from plumbline.pipelines.plans.sweep_config import StatusConfig
from plumbline.pipelines.store.runs import Run, list_runs
from plumbline.pipelines.store.store import open_existing_store
from plumbline.pipelines.store.suites import read_newest_suites

COMMAND = Command(
    "status",
    "Show the runs of a store, their coverage and their failures.",
    StatusConfig,
    first="store",
    stopping="",
    stopped="stopped watching",
)


WATCH_INTERVAL_SECONDS = 2.0
LINE_INTERVAL_SECONDS = 10.0
MAX_LISTED_SUITES = 5
SILENT_SECONDS = 60.0
"""Seconds without a heartbeat after which a sweep is shown as silent. Such a sweep may have died, or cannot reach its
storage.
"""


def main(config: StatusConfig) -> int:
    """Show the runs, and sweeps without a run; with `watch`, first follow running sweeps until they end.

    Pressing Ctrl-C while sweeps are followed ends the job.
    """
    store, console = open_existing_store(config), make_console()
    if config.watch:
        try:
            watch(console, lambda: list_running_sweeps(store, time.time()), time.sleep)
        except JobTerminated:
            raise
        except KeyboardInterrupt:
            return 0
    runs = list_runs(store)
    began = [(str(run.manifest.get("benchmark")), str(run.manifest.get("began"))) for run in runs if run.manifest]
    # a killed sweep is finished if a later sweep of its benchmark, or of one of its benchmarks, has made a run
    unfinished = [
        sweep
        for sweep in list_unfinished_sweeps(store, time.time())
        if not sweep.killed
        or not any(name in sweep.status.benchmark.split(", ") and start >= sweep.status.began for name, start in began)
    ]
    if not runs and not unfinished:
        if (cells := store.count_cells(STAGES)).found:
            count = f"{cells.found}{'' if cells.all else ' or more'}"
            say(console, f"no runs yet, and {count} committed cells; run the same command to continue")
        else:
            say(console, "no runs yet; start one with: plumbline sweep sweep=shapes")
    show_runs(console, runs)
    for sweep in unfinished:
        status = sweep.status
        state = f"was killed, last seen {format_minutes(sweep.silent_seconds)} ago," if sweep.killed else "running"
        cells_done = f"{sweep.committed} of {format_quantity(sweep.cells, 'cell')} committed"
        advice = "run the same command to continue" if sweep.killed else "--watch follows it"
        host = f"on {status.host} since {status.began}"
        say(console, f"{_describe_sweep(sweep)}: {status.benchmark}, {state} {host}, {cells_done}; {advice}")
    for suite in list(islice(read_newest_suites(store), MAX_LISTED_SUITES))[::-1]:
        benchmarks = ", ".join(f"{benchmark} {run_id}" for benchmark, run_id in suite.runs.items())
        console.print(f"suite [bold]{escape(suite.suite_id)}[/]: {escape(benchmarks)}, exit {suite.exit_code}")
        say(console, f"  {store.place.url}/{suite.folder}/report.html")
    return 0


def watch(console: Console, poll: Callable[[], Sequence[RunningSweep]], wait: Callable[[float], object]) -> None:
    """Show running sweeps until they have ended: updated in place on a terminal, as occasional lines in a log."""
    sweeps = poll()
    if not sweeps:
        say(console, "no sweep is running")
        return
    while sweeps and not console.is_terminal:
        for sweep in sweeps:
            for name, state in sweep.status.stages.items():
                say(console, f"{_describe_sweep(sweep)} {name}: {', '.join(_format_stage(name, state))}")
            if not sweep.status.stages:
                say(console, f"{_describe_sweep(sweep)}: nothing to compute, the run is being written")
        wait(LINE_INTERVAL_SECONDS)
        sweeps = poll()
    if not sweeps:
        return
    with Live(_render_sweeps(sweeps), console=console, auto_refresh=False) as live:
        while sweeps:
            live.update(_render_sweeps(sweeps), refresh=True)
            wait(WATCH_INTERVAL_SECONDS)
            sweeps = poll()


def _describe_sweep(sweep: RunningSweep) -> str:
    return sweep.status.run or f"{sweep.status.host}:{sweep.status.process}"


def _render_sweeps(sweeps: Iterable[RunningSweep]) -> RenderableType:
    tables: list[RenderableType] = []
    for sweep in sweeps:
        silent = f", silent for {format_minutes(sweep.silent_seconds)}" if sweep.silent_seconds > SILENT_SECONDS else ""
        status = sweep.status
        title = f"{status.benchmark}: {_describe_sweep(sweep)} on {status.host} since {status.began}{silent}"
        rows = [(name, *_format_stage(name, state)) for name, state in sweep.status.stages.items()]
        names = ("stage", "cells to compute", "rate", "time", "model calls", "failed rows")
        tables.append(make_table(title, names, rows, numbers=slice(1, None)))
    return Group(*tables, Text("Ctrl-C ends this view; the sweeps go on"))


def _format_stage(name: str, state: StageState) -> tuple[str, str, str, str, str]:
    """Return a stage's row of the table: progress in cells, rate, time left, model calls and failed rows."""
    left = state.seconds_left
    return (
        f"{state.done}/{state.missing}",
        describe_rate(name, state.rows, state.seconds),
        f"{EMPTY_CELL if left is None else format_minutes(left)} left",
        f"{state.calls} calls",
        f"{state.failed_rows} failed rows",
    )


def show_runs(console: Console, runs: Sequence[Run]) -> None:
    """Print the runs with their coverage and failures, newest last; for runs that cannot be read, print the problem."""
    for run in runs:
        name = f"[bold]{escape(run.run_id)}[/]{' (latest)' if run.latest else ''}"
        if run.manifest is None:
            console.print(f"{name}: damaged", soft_wrap=True)
            continue
        manifest, counts = run.manifest, run.manifest.get("counts", {})  # any value may be missing
        part, coverage = describe_part(manifest), counts.get("coverage")
        benchmark = f"{manifest.get('benchmark', EMPTY_CELL)}{f' ({part})' if part else ''}"
        covered = "" if coverage is None else f", coverage {coverage:.1%}"
        console.print(f"{name}: {escape(benchmark)}{covered}, exit {manifest.get('exit_code', EMPTY_CELL)}")
        generators = format_quantity(len(manifest.get("generators", ())), "generator")
        cells = (f"{counts.get(f'cells_{state}', EMPTY_CELL)} {state}" for state in ("computed", "cached", "failed"))
        lines = [f"note: {manifest['note']}"] if manifest.get("note") else []
        lines += [
            f"{generators} by {', '.join(manifest.get('metrics', ())) or EMPTY_CELL}",
            f"cells: {', '.join(cells)}",
        ]
        if errors := manifest.get("errors", {}):
            lines.append(f"errors: {', '.join(f'{count} {kind}' for kind, count in errors.items())}")
        for line in lines:
            console.print(Padding(Text(line), (0, 0, 0, 2)))  # a narrow terminal breaks it between words
    for run in runs:
        if run.problem:
            warn(console, run.problem)


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

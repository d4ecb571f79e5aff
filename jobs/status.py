"""Shows the runs of a store and the sweeps at work or killed; with watch=true how far running sweeps are."""

import sys
import time
from collections.abc import Sequence
from itertools import islice

from plumbline.jobs.command import Command, Terminated, run_job
from plumbline.jobs.display.console import make_console
from plumbline.jobs.display.store_contents import (
    SUITES_SHOWN,
    show_no_runs,
    show_runs,
    show_suites,
    show_unfinished,
    watch,
)
from plumbline.operators.stages.table import STAGES
from plumbline.pipelines.maintenance.working_sweeps import RunningSweep, running_sweeps, unfinished_sweeps
from plumbline.pipelines.plans.sweep_config import StatusConfig
from plumbline.pipelines.store.runs import Run, list_runs
from plumbline.pipelines.store.store import open_existing_store
from plumbline.pipelines.store.suites import newest_suites

COMMAND = Command(
    "status",
    "Show the runs of a store, their coverage and their failures.",
    StatusConfig,
    first="store",
    stopping="",
    stopped="stopped watching",
)


def main(config: StatusConfig) -> int:
    """Show the runs, and sweeps without a run; with `watch`, first show running sweeps until they end or Ctrl-C."""
    store, console = open_existing_store(config), make_console()
    if config.watch:
        try:
            watch(console, lambda: running_sweeps(store, time.time()), time.sleep)
        except Terminated:
            raise
        except KeyboardInterrupt:
            return 0
    runs = list_runs(store)
    unfinished = [
        sweep for sweep in unfinished_sweeps(store, time.time()) if not sweep.killed or not _is_made(sweep, runs)
    ]
    if not runs and not unfinished:
        show_no_runs(console, store.count_cells(STAGES))
    show_runs(console, runs)
    show_unfinished(console, unfinished)
    show_suites(console, store.place.url, list(islice(newest_suites(store), SUITES_SHOWN))[::-1])
    return 0


def _is_made(sweep: RunningSweep, runs: Sequence[Run]) -> bool:
    """Return True if a sweep that began at the same second or later has made the run of a killed sweep."""
    manifests = [run.manifest for run in runs if run.manifest is not None]
    return any(
        made.get("benchmark") in sweep.status.benchmark.split(", ") and str(made.get("began")) >= sweep.status.began
        for made in manifests
    )


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

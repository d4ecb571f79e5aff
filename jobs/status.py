"""Shows the runs of a store, their coverage and their failures; with watch=true how far running sweeps are."""

import sys
import time
from itertools import islice

from plumbline.jobs.command import Command, Terminated, run_job
from plumbline.jobs.display.console import make_console
from plumbline.jobs.display.store_contents import SUITES_SHOWN, show_runs, show_suites, watch
from plumbline.pipelines.cells.runs import list_runs
from plumbline.pipelines.cells.store import open_existing_store
from plumbline.pipelines.cells.suites import newest_suites
from plumbline.pipelines.maintenance.working_sweeps import running_sweeps
from plumbline.pipelines.plans.sweep_config import StatusConfig

COMMAND = Command("status", "Show the runs of a store, their coverage and their failures.", StatusConfig, first="store")


def main(config: StatusConfig) -> int:
    """Prints one line per run; while watching, the sweeps that run, until they have ended or Ctrl-C."""
    store, console = open_existing_store(config), make_console()
    if config.watch:
        try:
            watch(console, lambda: running_sweeps(store, time.time()), time.sleep)
        except Terminated:
            raise
        except KeyboardInterrupt:
            return 0
    show_runs(console, list_runs(store))
    show_suites(console, store.place.url, list(islice(newest_suites(store), SUITES_SHOWN))[::-1])
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

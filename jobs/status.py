"""Shows the runs of a store, their coverage and their failures."""

import sys

from jobs.command import Command, run_job
from jobs.console import make_console, show_runs
from pipelines.cells.runs import list_runs
from pipelines.cells.store import open_store
from pipelines.config import StatusConfig

COMMAND = Command("status", "Show the runs of a store, their coverage and their failures.", StatusConfig)


def main(config: StatusConfig) -> int:
    """Prints one line per run."""
    show_runs(make_console(), list_runs(open_store(config.store, config.storage)))
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Shows the runs of a store, their coverage and their failures."""

import sys

from jobs.command import Command, run_job
from jobs.console import make_console, show_runs
from pipelines.config import StatusConfig
from pipelines.storage import locate
from pipelines.store import Store
from pipelines.sweep import list_runs

COMMAND = Command("status", "Show the runs of a store, their coverage and their failures.", StatusConfig)


def main(config: StatusConfig) -> int:
    """Prints one line per run."""
    store = Store(url=locate(config.store, config.storage).url, storage=config.storage)
    show_runs(make_console(), list_runs(store))
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

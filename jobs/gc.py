"""Lists what nothing in a store refers to any more, and removes it on request."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console
from plumbline.jobs.display.store_contents import show_collected
from plumbline.pipelines.maintenance.garbage import collect_garbage
from plumbline.pipelines.maintenance.gc_config import GcConfig

COMMAND = Command(
    "gc",
    "List what no kept run of a store refers to, and why it may go; with delete=true remove it.\n"
    "keep_runs.last=30 and its like choose the runs to keep; docs/keeping.md tells the whole of it.",
    GcConfig,
    first="store",
)


def main(config: GcConfig) -> int:
    """Show the removable or removed files by stage and reason."""
    show_collected(make_console(), collect_garbage(config))
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

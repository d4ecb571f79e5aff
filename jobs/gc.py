"""Lists files that no run of a store needs, and removes them on request."""

import sys

from rich.filesize import decimal

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table
from plumbline.pipelines.maintenance.garbage import collect_garbage
from plumbline.pipelines.maintenance.gc_config import GcConfig

COMMAND = Command(
    "gc",
    "List the files that no kept run of a store needs, and why; delete=true removes them.\n"
    "keep_runs.last=30 and similar options choose the runs to keep (docs/keeping.md).",
    GcConfig,
    first="store",
)


def main(config: GcConfig) -> int:
    """Show removable files by stage and reason, the runs that are not kept, and running sweeps."""
    console, collected = make_console(), collect_garbage(config)
    for sweep, host in collected.in_use.items():
        say(console, f"sweep {sweep} is running on {host}: the cells that it may use are kept")
    if collected.runs:
        say(console, f"runs that are not kept: {', '.join(collected.runs)}")
    rows = [(stage, why, str(amount.files), decimal(amount.size)) for (stage, why), amount in collected.free.items()]
    if not rows:
        say(console, f"{collected.store}: nothing can be removed")
        return 0
    show_table(console, collected.store, ("stage", "why", "files", "bytes"), rows, numbers=slice(2, None))
    files = sum(amount.files for amount in collected.free.values())
    size = decimal(sum(amount.size for amount in collected.free.values()))
    done = "removed" if collected.deleted else "not needed; add delete=true to remove them"
    say(console, f"{files} files, {size}, {done}")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

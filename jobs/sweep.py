"""Runs one sweep: sharded Parquet in, ranked generators out."""

import sys

from jobs.command import Command, run_job
from jobs.console import ProgressDisplay, make_console, show_leaderboards, show_plan
from pipelines.config import SweepConfig
from pipelines.sweep import plan_sweep, run_sweep

COMMAND = Command("sweep", "Score every image of a benchmark with every metric, and rank the generators.", SweepConfig)


def main(config: SweepConfig) -> int:
    """Shows the plan, computes what is missing, shows the leaderboards; 0 complete, 2 within budget, 1 over it."""
    console = make_console()
    planned = plan_sweep(config)
    show_plan(console, planned)
    if config.dry_run:
        return 0
    with ProgressDisplay(console, planned.plan) as display:
        finished = run_sweep(planned, display.update)
    show_leaderboards(console, finished)
    if finished.findings is not None:
        from jobs.findings import show_agreement  # imports scipy

        show_agreement(console, finished.findings)
    console.print(f"computed {finished.computed} cells, run {finished.run_id}, exit code {finished.exit_code}")
    return finished.exit_code


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

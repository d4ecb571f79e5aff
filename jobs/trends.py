"""Writes a store's trends page: how each generator's means change over runs and checkpoints."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.report.trends import TrendsConfig, write_trends
from plumbline.pipelines.store.store import open_existing_store

COMMAND = Command(
    "trends", "Write the page of trends of a store: over its runs, and over checkpoints.", TrendsConfig, first="store"
)


def main(config: TrendsConfig) -> int:
    """Write the page and show its address."""
    console = make_console()
    store = open_existing_store(config)
    made, url = write_trends(
        store,
        benchmark=config.benchmark,
        checkpoints=config.checkpoints,
        runs=config.runs,
        settings=config.settings,
    )
    for warning in made.page.warnings:
        warn(console, warning)
    for sentence in made.page.breaks.rows:
        console.print(str(sentence), markup=False, soft_wrap=True)
    say(console, f"trends of {format_quantity(made.runs, 'run')} of {made.page.benchmark}: {url}")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

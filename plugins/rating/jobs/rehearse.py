"""Replays finished scores or ratings to find how many prompts an adaptive sweep would have needed."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table
from plumbline.jobs.overrides import LISTS
from plumbline.plugins.rating.rehearsing import RehearseConfig, rehearse_all, write_page

COMMAND = Command(
    "rehearse",
    "Tell how many prompts would have done to rank the generators: of a run or of people's ratings, looked at\n"
    "in many random orders as an adaptive sweep looks, with how often it would have been wrong.",
    RehearseConfig,
    LISTS,
    first="scores",
)


def main(config: RehearseConfig) -> int:
    """Show the tables, write them to a page if one is configured, and summarise the result in a sentence."""
    console = make_console()
    found = rehearse_all(config)
    for table in found.tables:
        show_table(console, table.title, table.names, table.rows, numbers=slice(3, None))
        say(console, table.caption)
    if config.page is not None:
        write_page(config, found.tables)
        say(console, f"written to {config.page}")
    for answer in found.answers:
        say(console, answer)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

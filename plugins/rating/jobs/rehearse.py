"""Replays finished scores or ratings to find how many prompts an adaptive sweep would have needed."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table
from plumbline.jobs.overrides import LIST_SYNONYMS
from plumbline.plugins.rating.rehearsing import RehearseConfig, rehearse_all_judges, write_page

COMMAND = Command(
    "rehearse",
    "Estimate how many prompts would have been enough to rank the generators, from a run or from people's ratings.\n"
    "Replays the scores in many random orders as an adaptive sweep, and counts the wrong decisions.",
    RehearseConfig,
    LIST_SYNONYMS,
    first="scores",
)


def main(config: RehearseConfig) -> int:
    """Show the tables, write them to a page if one is configured, and summarise the result in a sentence."""
    console = make_console()
    rehearsal = rehearse_all_judges(config)
    for table in rehearsal.tables:
        show_table(console, table.title, table.names, table.rows, numbers=slice(3, None))
        say(console, table.caption)
    if config.page is not None:
        write_page(config, rehearsal.tables)
        say(console, f"written to {config.page}")
    for answer in rehearsal.answers:
        say(console, answer)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

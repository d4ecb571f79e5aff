"""Shows the pages of a store in a web browser: its runs, their scores, images, questions and trends."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.plugins.viewer.viewing import ViewConfig, view

COMMAND = Command(
    "view",
    "Show the pages of a store in a web browser: runs, scores, images, questions, trends, and two runs side by side\n"
    "(plugins/viewer/README.md). Listens on this machine alone unless host= says otherwise, which needs a token. It\n"
    "writes the notes that people leave on images, and nothing else; with notes=false not even these.",
    ViewConfig,
    extra="view",
    first="store",
    stopped="stopped showing",
)


def main(config: ViewConfig) -> int:
    """Shows the pages until it is told to stop."""
    console = make_console()
    view(config, lambda address: say(console, f"the pages of {config.store}: {address}"))
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

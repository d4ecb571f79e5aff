"""Shows the pages of a store in a web browser."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.plugins.viewer.viewing import ViewConfig, serve_viewer

COMMAND = Command(
    "view",
    "Show the pages of a store in a web browser: runs, scores, images, questions, trends, and two runs side by side\n"
    "(plugins/viewer/README.md). It listens on this machine only, unless host= names an address, which needs a token.\n"
    "It writes nothing but people's notes on images; with notes=false it writes nothing at all.",
    ViewConfig,
    extra="view",
    first="store",
    stopped="stopped showing",
)


def main(config: ViewConfig) -> int:
    """Serve the pages until a signal stops the process; return 0."""
    console = make_console()
    serve_viewer(config, lambda address: say(console, f"the pages of {config.store}: {address}"))
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Serves a study in which people rate images: by Likert, words, questions, side by side, or a vote."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.jobs.overrides import LISTS
from plumbline.pipelines.rating.rate_config import RateConfig
from plumbline.pipelines.rating.rating import rate

COMMAND = Command(
    "rate",
    "Serve a study in which people rate the images of a run, or of a folder (images=PATH as jobs.score takes it),\n"
    "in a web browser (docs/rating.md). The answers are kept in the study's folder, STORE/studies/NAME; the same\n"
    "command goes on with it. Listens on this machine alone unless host= says otherwise, which needs a token.",
    RateConfig,
    LISTS,
    first="study",
    stopped="stopped; every answer is kept, run the same command to go on",
)


def main(config: RateConfig) -> int:
    """Serves until it is told to stop."""
    console = make_console()

    def ready(study: str, address: str) -> None:
        say(console, f"study {study}: {address}")
        say(console, f"progress, for whoever runs it: {address}/progress")

    rate(config, ready, lambda line: warn(console, line))
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Serves a study in which people rate images: by Likert, words, questions, side by side, or a vote."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.jobs.overrides import LISTS
from plumbline.operators.base.sentences import plural
from plumbline.plugins.rating.annotation_tools import export_tasks, import_answers
from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.rating import rate
from plumbline.plugins.rating.study import open_study

COMMAND = Command(
    "rate",
    "Serve a study in which people rate the images of a run, or of a folder (images=PATH as jobs.score takes it),\n"
    "in a web browser (plugins/rating/README.md). The answers are kept in the study's folder, STORE/studies/NAME; the\n"
    "same command goes on with it. Listens on this machine alone unless host= says otherwise, which needs a token.\n"
    "export_to=label_studio (or argilla) writes the tasks for that tool instead, import_from=FILE takes answers in.",
    RateConfig,
    LISTS,
    extra="view",
    first="study",
    stopped="stopped; every answer is kept, run the same command to go on",
)


def main(config: RateConfig) -> int:
    """Serves until it is told to stop; or writes the tasks for another tool, or takes in the answers from there."""
    console = make_console()

    def ready(study: str, address: str) -> None:
        say(console, f"study {study}: {address}")
        say(console, f"progress, for whoever runs it: {address}/progress")

    def tell(line: str) -> None:
        warn(console, line)

    if config.export_to is not None:
        exported = export_tasks(open_study(config, tell), config.export_to, config.raters)
        for note in exported.notes:
            tell(note)
        for file in exported.files:
            say(console, f"written: {file}")
        say(console, "when people have rated there, take their answers in: the same command with import_from=FILE")
    elif config.import_from is not None:
        imported = import_answers(open_study(config, tell), config.storage.locate(config.import_from))
        for note in imported.notes:
            tell(note)
        say(console, f"{plural(imported.kept, 'answer')} kept, {imported.known} known before")
    else:
        rate(config, ready, tell)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

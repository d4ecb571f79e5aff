"""Serves a web page where people rate images."""

import sys
from functools import partial

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.jobs.overrides import LIST_SYNONYMS
from plumbline.operators.base.sentences import format_quantity
from plumbline.plugins.rating.annotation_tools import export_tasks, import_answers
from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.rating import serve_study
from plumbline.plugins.rating.study import open_study

COMMAND = Command(
    "rate",
    "Serve a study in which people rate the images of a run, or of a folder (images=PATH as for jobs.score), in a web\n"
    "browser (plugins/rating/README.md). The answers are stored in the study's folder, STORE/studies/NAME; the same\n"
    "command continues it. It listens on this machine only, unless host= names an address, which needs a token.\n"
    "export_to=label_studio (or argilla) writes the tasks for that tool instead, import_from=FILE reads its answers.",
    RateConfig,
    LIST_SYNONYMS,
    extra="view",
    first="study",
    stopped="stopped; every answer is kept, run the same command to continue",
)


def main(config: RateConfig) -> int:
    """Serve the study until a signal stops the process, or export its tasks, or import answers; return 0."""
    console = make_console()

    def show_address(study: str, address: str) -> None:
        say(console, f"study {study}: {address}")
        say(console, f"progress (for you): {address}/progress")

    report = partial(warn, console)
    if config.export_to is not None:
        exported = export_tasks(open_study(config, report), config.export_to, config.raters)
        for note in exported.notes:
            report(note)
        for file in exported.files:
            say(console, f"written: {file}")
        say(console, "after people have rated there, import their answers with the same command and import_from=FILE")
    elif config.import_from is not None:
        imported = import_answers(open_study(config, report), config.storage.locate(config.import_from))
        for note in imported.notes:
            report(note)
        say(console, f"{format_quantity(imported.kept, 'answer')} added, {imported.known} already known")
    else:
        serve_study(config, show_address, report)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

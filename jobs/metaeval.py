"""Tells how far metrics agree with people: ratings and scores in, correlations and accuracies with intervals out."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.jobs.display.findings import show_findings
from plumbline.jobs.overrides import LISTS
from plumbline.pipelines.judging.metaeval import run_metaeval
from plumbline.pipelines.judging.protocols import MetaevalConfig

COMMAND = Command(
    "metaeval",
    "Compare scores with people's ratings, choices or error graphs: how far does each metric agree?\n"
    "protocol=NAME chooses what is computed, protocol.path=PATH is the benchmark's release, and\n"
    "run=latest takes the scores of a run, scores=PATH anybody's; without either the release's own are judged.",
    MetaevalConfig,
    LISTS,
    first="protocol",
)


def main(config: MetaevalConfig) -> int:
    """Judges, shows and writes; 0."""
    console = make_console()
    show_findings(console, run_metaeval(config))
    say(console, f"written to {config.output}/")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

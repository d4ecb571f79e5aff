"""Compares metrics with people's judgements: correlations and accuracies, with confidence intervals."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console
from plumbline.jobs.display.findings import show_agreement, show_conclusion, show_findings, show_written_files
from plumbline.jobs.overrides import LIST_SYNONYMS
from plumbline.pipelines.metaeval.metaeval import run_metaeval
from plumbline.pipelines.metaeval.protocols import MetaevalConfig

COMMAND = Command(
    "metaeval",
    "Compare scores with people's ratings, choices or error graphs: how far does each metric agree?\n"
    "protocol=NAME chooses the statistics, and protocol.path=PATH is the benchmark's release. run=latest\n"
    "judges the scores of a run, scores=PATH judges a table; by default, the release's own scores are judged.",
    MetaevalConfig,
    LIST_SYNONYMS,
    extra="people",
    first="protocol",
)


def main(config: MetaevalConfig) -> int:
    """Judge the metrics, write all tables, and show the conclusion with the main table or with all tables."""
    console, findings = make_console(), run_metaeval(config)
    show = show_findings if config.verbose else show_agreement
    show(console, findings)
    show_written_files(console, findings, "" if config.verbose else " (verbose=true prints it too)")
    show_conclusion(console, findings)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

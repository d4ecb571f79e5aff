"""Tells an experiment tracker or a model's repository of a run: means with intervals, models' digests, the report."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.plugins.exports.sinks.publishing import PublishConfig, publish_run

COMMAND = Command(
    "publish",
    "Tell MLflow, SwanLab, Weights & Biases or a model's repository on the Hugging Face Hub of a run.",
    PublishConfig,
    first="run",
)


def main(config: PublishConfig) -> int:
    """Says where the run stands; where the sink fails, that is an error of this command alone."""
    say(make_console(), f"published: {publish_run(config)}")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

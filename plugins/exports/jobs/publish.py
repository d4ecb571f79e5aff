"""Publishes a run to an experiment tracker or to a model's repository."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.plugins.exports.sinks.publishing import PublishConfig, publish_run

COMMAND = Command(
    "publish",
    "Publish a run to MLflow, SwanLab, Weights & Biases or a model's repository on the Hugging Face Hub.",
    PublishConfig,
    first="run",
)


def main(config: PublishConfig) -> int:
    """Publish the run and print its address; return 0."""
    say(make_console(), f"published: {publish_run(config)}")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

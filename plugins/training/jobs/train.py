"""Trains a CLIP-FlanT5 or a LLaVA in two stages, or a checkpoint on people's ratings."""

import sys
from typing import Annotated, Any

from pydantic import Discriminator

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.jobs.display.findings import show_agreement, show_conclusion, show_written_files
from plumbline.pipelines.base.exit_codes import COMPLETE, WITHIN_BUDGET
from plumbline.plugins.training.planning import plan_training
from plumbline.plugins.training.training_config import FinetuneConfig, StageConfig

AnyTraining: Any = Annotated[StageConfig | FinetuneConfig, Discriminator("kind")]
COMMAND = Command(
    "train",
    "Train a CLIP-FlanT5 or a LLaVA in stage 1 (captions) or 2 (questions), or finetune a checkpoint on people's\n"
    "ratings of images (finetune), with workers on Ray.",
    AnyTraining,
    extra="ray",
    stopped="stopped; the same command continues from the last state",
)


def main(config: StageConfig | FinetuneConfig) -> int:
    """Train and print the progress. Return 0, or 2 if unreadable rows were left out."""
    from plumbline.plugins.training.training import run_training  # imports Ray, which may not be installed

    console = make_console()
    planned = plan_training(config)
    say(console, planned.summary)
    trained = run_training(planned, lambda line: say(console, line))
    if trained.findings is not None:
        show_agreement(console, trained.findings)
        show_written_files(console, trained.findings)
        show_conclusion(console, trained.findings)
    say(console, f"trained: {trained.checkpoint}")
    return WITHIN_BUDGET if trained.failed else COMPLETE


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

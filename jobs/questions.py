"""Writes a benchmark's questions ahead of any image, and tells how good they are."""

import sys

from plumbline.jobs.command import KEPT, Command, run_job
from plumbline.jobs.display.console import make_console
from plumbline.jobs.display.leaderboards import show_questions
from plumbline.jobs.display.plan_table import show_plan
from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.jobs.logs import write_log
from plumbline.jobs.overrides import SWEEP_KEYS
from plumbline.pipelines.base.exit_codes import COMPLETE, OVER_BUDGET, WITHIN_BUDGET
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sweeps.questions import plan_questions, write_questions

COMMAND = Command(
    "questions",
    "Write what the metrics ask about each prompt, without any image, and tell how good the questions are.\n"
    "A sweep over the same prompts in the same store finds them written.",
    SweepConfig,
    SWEEP_KEYS,
    first="prompts",
    stopped=KEPT,
)


def main(config: SweepConfig) -> int:
    """Call `_run`, and write its log."""
    with write_log(config.log, [config.storage.key, config.storage.secret]):
        return _run(config)


def _run(config: SweepConfig) -> int:
    """Show the plan, write missing questions, and show their quality; return 0 if every prompt has some, else 2."""
    console = make_console()
    planned = plan_questions(config)
    show_plan(console, planned)
    if config.dry_run:
        return 0
    with ProgressDisplay(console) as display:
        written = write_questions(planned, display.update)
    show_questions(console, written, planned.store.place.url)
    if written.failed:
        return OVER_BUDGET
    return WITHIN_BUDGET if any(quality.failed for quality in written.quality.values()) else COMPLETE


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

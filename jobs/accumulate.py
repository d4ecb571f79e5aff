"""Computes scores from released answers; a question counts only if its parent questions are answered correctly."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.pipelines.base.exit_codes import COMPLETE, WITHIN_BUDGET
from plumbline.pipelines.metaeval.accumulation import AccumulateConfig, write_accumulated_scores

COMMAND = Command(
    "accumulate",
    "Compute scores from released answers: from a row per image and question to a row per image and model.\n"
    "answers=PATH is a table, or with format=dsg, tifa or t2iscorescore the released files. The functions in\n"
    "pipelines/metaeval/answers.py say which columns they read.",
    AccumulateConfig,
)


def main(config: AccumulateConfig) -> int:
    """Write the scores; return 0 if every image has a score, else 2."""
    console = make_console()
    scores, notes = write_accumulated_scores(config)
    for note in notes:
        say(console, note)
    null = scores.column("score").null_count
    say(console, f"{len(scores)} scores, {null} of them null, written to {config.output}")
    return WITHIN_BUDGET if null else COMPLETE


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Makes scores of released answers, by whether a question counts where those above it fail."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.pipelines.base.exit_codes import COMPLETE, WITHIN_BUDGET
from plumbline.pipelines.metaeval.accumulation import AccumulateConfig, write_accumulated

COMMAND = Command(
    "accumulate",
    "Make scores of released answers: a row for every image and question in, one for every image and model out.\n"
    "answers=PATH is a table, or with format=dsg, tifa or t2iscorescore the files as they were released; what each\n"
    "reads stands at its function in pipelines/metaeval/answers.py.",
    AccumulateConfig,
)


def main(config: AccumulateConfig) -> int:
    """Write the scores; return 0 if every image has a score, else 2."""
    console = make_console()
    scores, notes = write_accumulated(config)
    for note in notes:
        say(console, note)
    null = scores.column("score").null_count
    say(console, f"{len(scores)} scores, {null} of them null, written to {config.output}")
    return WITHIN_BUDGET if null else COMPLETE


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

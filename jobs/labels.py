"""Tells which images people should still rate to tell generators apart, beside a metric that has scored them all."""

import sys

from jobs.command import Command, run_job
from jobs.console import make_console, say, show_table
from jobs.words import LISTS
from pipelines.judging.labelling import LabelsConfig, plan_labels, shown_labels, write_labels

COMMAND = Command(
    "labels",
    "Tell how many images people should still rate, and which, to tell generators apart: a metric that scored all of\n"
    "them makes each rating worth a little more (prediction-powered inference), and replaces none.",
    LabelsConfig,
    LISTS,
    first="protocol",
)


def main(config: LabelsConfig) -> int:
    """Shows what is known, and writes what to rate next; 0 where every pair is decided, else 2."""
    console = make_console()
    plan = plan_labels(config)
    table = shown_labels(config, plan)
    show_table(console, table.title, table.names, table.rows, numbers=slice(1, 5))
    say(console, table.caption)
    write_labels(config, plan)
    say(console, f"{len(plan.next_prompts)} images to rate next, in this order, written to {config.output}")
    return 2 if any(pair.better is None for pair in plan.pairs) else 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Lists the images that people should rate next to decide which generators are better."""

import sys

from rich.console import Console

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table, warn
from plumbline.jobs.overrides import LIST_SYNONYMS
from plumbline.operators.base.sentences import format_quantity
from plumbline.plugins.rating.labelling import LabelPlan, LabelsConfig, plan_labels, tabulate_pairs, write_next_images

COMMAND = Command(
    "labels",
    "List the images that people should rate next to decide which generators are better. A metric's scores narrow the\n"
    "intervals of people's ratings a little (prediction-powered inference), but do not replace any rating.",
    LabelsConfig,
    LIST_SYNONYMS,
    first="protocol",
)


def main(config: LabelsConfig) -> int:
    """Show the known differences, and write the images to rate next; return 0 if every pair is decided, otherwise 2."""
    console = make_console()
    plan = plan_labels(config)
    table = tabulate_pairs(config, plan)
    show_table(console, table.title, table.names, table.rows, numbers=slice(1, 5))
    say(console, table.caption)
    write_next_images(config, plan)
    say(console, f"{len(plan.next_prompts)} images to rate next, in this order, written to {config.output}")
    return _show_undecided_pairs(console, plan, config.output)


def _show_undecided_pairs(console: Console, plan: LabelPlan, output: str) -> int:
    undecided = [pair for pair in plan.pairs if pair.better is None]
    if not undecided:
        return 0
    unrated = sum(not pair.rated for pair in undecided)
    nobody = f" (for {unrated}, nobody has rated both generators on the same prompt)" if unrated else ""
    warn(
        console,
        f"exit code 2: {len(undecided)} of {format_quantity(len(plan.pairs), 'pair')} are undecided{nobody}; "
        f"have people rate "
        f"the images of {output} and run this again, or name only the generators to compare, as in generators=[A,B]",
    )
    return 2


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

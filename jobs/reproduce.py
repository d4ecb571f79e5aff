"""Recomputes published numbers from the released files, and shows the differences."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.pipelines.metaeval.reproduction import (
    ReproductionConfig,
    reproduce_published_numbers,
    write_reproduction,
)

COMMAND = Command(
    "reproduce",
    "Recompute published numbers from the released files, and write both side by side.",
    ReproductionConfig,
    extra="people",
)


def main(config: ReproductionConfig) -> int:
    """Write the comparison; return 0 if every number is reproduced or its difference is explained, else 1."""
    console = make_console()
    checks = reproduce_published_numbers(config)
    write_reproduction(checks, config)
    unmatched = [check for check in checks if not check.matches]
    for check in unmatched:
        ours, published = (f"{value:.{check.decimals}f}" for value in (check.ours, check.published))
        say(console, f"{check.location}: published {published}, ours {ours}; {check.reason or 'reason unknown'}")
    say(
        console,
        f"{len(checks) - len(unmatched)} of {len(checks)} published numbers are reproduced; see {config.output}",
    )
    return 0 if all(check.reason for check in unmatched) else 1


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Makes the embedded pack: the shapes benchmark, its tiny checkpoints and their accuracies, from fixed seeds."""

import sys

from jobs.command import Command, run_job
from jobs.console import make_console
from pipelines.pack import PackConfig, make_pack

COMMAND = Command("train", "Make the embedded pack: the shapes benchmark and its tiny checkpoints.", PackConfig)


def main(config: PackConfig) -> int:
    """Makes the steps that are asked for, telling what it does."""
    console = make_console()
    make_pack(config, lambda message: console.print(message, markup=False))
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Converts released weights (a pickle, or tensors with other names) to a checkpoint that a sweep can load."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console
from plumbline.plugins.reward_models.conversion import ConvertConfig, convert

COMMAND = Command("convert", "Convert released weights to a checkpoint with safetensors and no code.", ConvertConfig)


def main(config: ConvertConfig) -> int:
    """Convert the weights and list the files that were written; return 0."""
    console = make_console()
    for file in convert(config):
        console.print(f"{file} {file.stat().st_size / 1e6:.1f} MB", markup=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

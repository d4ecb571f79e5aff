"""Writes a run's scores to an Iceberg or Lance table, replacing scores for the same images and metrics."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.operators.base.sentences import format_quantity
from plumbline.plugins.exports.exports import ExportConfig, export_scores

COMMAND = Command(
    "export", "Write a run's scores to an Iceberg or Lance table that other tools can query.", ExportConfig, first="run"
)


def main(config: ExportConfig) -> int:
    """Export the run; print the number of rows after each commit, the totals and the table's address; return 0."""
    console = make_console()
    exported = export_scores(
        config, lambda written: console.print(f"{format_quantity(written, 'row')} written", markup=False)
    )
    removed = f", {format_quantity(exported.removed, 'row')} of missing images removed" if exported.removed else ""
    say(
        console,
        f"run {exported.run_id}: {exported.written:,} of {format_quantity(exported.rows, 'row')} written{removed}",
    )
    say(console, f"table: {exported.url}")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

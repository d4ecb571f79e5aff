"""Writes a run's scores into an Iceberg or a Lance table, in place of those of the same images and metrics."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.operators.base.sentences import plural
from plumbline.plugins.exports.exports import ExportConfig, export_scores

COMMAND = Command(
    "export", "Write a run's scores into a table that others query: Iceberg or Lance.", ExportConfig, first="run"
)


def main(config: ExportConfig) -> int:
    """Tells each commit, then the counts and where the table is."""
    console = make_console()
    ended = export_scores(config, lambda written: console.print(f"{plural(written, 'row')} written", markup=False))
    removed = f", {plural(ended.removed, 'row')} of missing images removed" if ended.removed else ""
    say(console, f"run {ended.run_id}: {ended.written:,} of {plural(ended.rows, 'row')} written{removed}")
    say(console, f"table: {ended.url}")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Converts image files or tars to the sharded Parquet that a sweep reads."""

import sys

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table
from plumbline.pipelines.ingest.ingest import IngestResult, ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.shards import ShardRecord

COMMAND = Command(
    "ingest",
    "Convert image files, with a table or with their prompts in files, or WebDataset tars to a sweep's Parquet.",
    IngestConfig,
)
MAX_LISTED_REJECTIONS = 5


def main(config: IngestConfig) -> int:
    """Ingest the input and show the totals; return 0 if nothing failed, 2 if failures are within the budget, else 1."""
    console = make_console()

    def show_shard(record: ShardRecord) -> None:
        state = "written" if record.written else "exists already"
        say(console, f"{record.path}: {record.rows} rows, {record.bytes / 1e6:.1f} MB, {state}")

    ended = ingest(config, show_shard)
    rows = []
    for generator in sorted({record.generator for record in ended.shards}):
        own = [record for record in ended.shards if record.generator == generator]
        n_written, n_rows = sum(record.written for record in own), sum(record.rows for record in own)
        megabytes = f"{sum(record.bytes for record in own) / 1e6:.1f}"
        rows.append([generator, str(len(own)), str(n_written), str(n_rows), megabytes])
    show_table(console, "ingested", ("generator", "shards", "written now", "rows", "MB"), rows, numbers=slice(1, None))
    for line in (*ended.origin_lines, *map(str, ended.pairs)):
        say(console, line)
    show_rejections(console, ended)
    for generator in ended.unfinished:
        say(console, f"{generator}: an ingest into this output is unfinished; run it again")
    say(console, f"written to {ended.url}/")
    say(console, "  <generator>/*.parquet, prompts.parquet, rejected.parquet, manifest.json")
    return ended.exit_code


def show_rejections(console: Console, ended: IngestResult) -> None:
    """Show the totals, the rejections by kind with the first few examples, and the damaged files."""
    for line in ended.total_lines:
        say(console, line)
    for kind, count in ended.kinds.items():
        console.print(f"[yellow]{count} rows rejected[/]: {escape(kind)}")
    for rejection in ended.rejected[:MAX_LISTED_REJECTIONS]:
        say(console, f"  {rejection}")
    for file in ended.damaged:
        say(console, f"{file}: an unknown number of rows was lost, which exceeds any failure budget")


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Takes image files or tars in: any folder or bucket to the sharded Parquet that a sweep reads."""

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.pipelines.ingest.ingest import Ingested, ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.shards import ShardRecord

COMMAND = Command(
    "ingest",
    "Make a sweep's Parquet of image files with a table or beside their prompts, or of WebDataset tars.",
    IngestConfig,
)
MAX_SHOWN = 5


def main(config: IngestConfig) -> int:
    """Ingest, show each shard and the totals; return 0 if complete, 2 within and 1 over the budget."""
    console = make_console()
    ended = ingest(config, lambda record: _show_shard(console, record))
    _show(console, ended)
    return ended.exit_code


def _show_shard(console: Console, record: ShardRecord) -> None:
    state = "written" if record.written else "stands already"
    console.print(f"{record.path}: {record.rows} rows, {record.bytes / 1e6:.1f} MB, {state}", markup=False)


def _show(console: Console, ended: Ingested) -> None:
    """Show a line per generator, example pairs, totals with rejections, and the paths."""
    table = Table("generator", "shards", "written now", "rows", "MB", title="ingested")
    for column in table.columns[1:]:
        column.justify = "right"
    for generator in sorted({record.generator for record in ended.shards}):
        table.add_row(escape(generator), *_counts([r for r in ended.shards if r.generator == generator]))
    console.print(table)
    for line in (*ended.origin_lines, *map(str, ended.pairs)):
        say(console, line)
    show_rejected(console, ended)
    for generator in ended.unfinished:
        console.print(f"{generator}: an ingest into this output has not ended; run it again", markup=False)
    console.print(f"written to {ended.url}/", markup=False, soft_wrap=True)
    console.print("  <generator>/*.parquet, prompts.parquet, rejected.parquet, manifest.json", markup=False)


def show_rejected(console: Console, ended: Ingested) -> None:
    """Show the totals, the rejections by kind with the first few, and the damaged files."""
    for line in ended.total_lines:
        say(console, line)
    for kind, count in ended.kinds.items():
        console.print(f"[yellow]{count} rows rejected[/]: {escape(kind)}")
    for rejection in ended.rejected[:MAX_SHOWN]:
        line = f", line {rejection.line}" if rejection.line is not None else ""
        console.print(f"  {rejection.file}{line}: {rejection.message}", markup=False, soft_wrap=True)
    for file in ended.damaged:
        console.print(f"{file}: rows are lost that nobody can count, which is over every budget", markup=False)


def _counts(records: list[ShardRecord]) -> list[str]:
    written = sum(record.written for record in records)
    rows, size = sum(record.rows for record in records), sum(record.bytes for record in records)
    return [str(len(records)), str(written), str(rows), f"{size / 1e6:.1f}"]


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Exports a run as training data: pairs, rankings or rewards in a trainer's format."""

import sys

from rich.markup import escape

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table, warn
from plumbline.pipelines.rewards.output import ExportedShardRecord
from plumbline.pipelines.rewards.rewards import export_rewards
from plumbline.pipelines.rewards.rewards_config import RewardsConfig

COMMAND = Command(
    "rewards",
    "Export a run as training data: pairs, rankings or rewards in a trainer's format.",
    RewardsConfig,
    first="run",
)


def main(config: RewardsConfig) -> int:
    """Export the run and show the totals; return 0 if nothing failed, 2 if failures are within the budget, else 1."""
    console = make_console()

    def show_shard(record: ExportedShardRecord) -> None:
        say(console, f"{record.name}: {record.examples} examples, {record.rows} rows")

    ended = export_rewards(config, show_shard)
    rows = [
        [name, str(split["examples"]), str(split["rows"]), str(len(split["files"]))]
        for name, split in ended.splits.items()
    ]
    show_table(console, "exported", ("split", "examples", "rows", "files"), rows, numbers=slice(1, None))
    for kind, count in ended.left_out.items():
        console.print(f"[yellow]{count} examples left out[/]: {escape(kind)}")
    for message in ended.messages:
        say(console, f"  {message}")
    if ended.unverified:
        missing = "because the cells that read them are gone"
        say(console, f"{ended.unverified} images were only checked by their ids, {missing}")
    for note in ended.notes:
        warn(console, note)
    state = "written to" if ended.written else "exists already in"
    say(console, f"{state} {ended.url}/; manifest.json says how it was made")
    return ended.exit_code


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

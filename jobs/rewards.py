"""Writes training data of a run: pairs, rankings or rewards in a trainer's own format, with where they come from."""

import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.pipelines.rewards.output import ExportedShardRecord
from plumbline.pipelines.rewards.rewards import Exported, export_rewards
from plumbline.pipelines.rewards.rewards_config import RewardsConfig

COMMAND = Command(
    "rewards",
    "Write training data of a run: pairs, rankings or rewards, as trainers read them.",
    RewardsConfig,
    first="run",
)


def main(config: RewardsConfig) -> int:
    """Export, show each shard and the totals; return 0 if complete, 2 within and 1 over the budget."""
    console = make_console()
    ended = export_rewards(config, lambda record: _show_shard(console, record))
    _show(console, ended)
    return ended.exit_code


def _show_shard(console: Console, record: ExportedShardRecord) -> None:
    console.print(f"{record.name}: {record.examples} examples, {record.rows} rows", markup=False)


def _show(console: Console, ended: Exported) -> None:
    table = Table("split", "examples", "rows", "files", title="exported")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, split in ended.splits.items():
        table.add_row(escape(name), str(split["examples"]), str(split["rows"]), str(len(split["files"])))
    console.print(table)
    for kind, count in ended.left_out.items():
        console.print(f"[yellow]{count} examples left out[/]: {escape(kind)}")
    for message in ended.messages:
        console.print(f"  {message}", markup=False, soft_wrap=True)
    if ended.unverified:
        console.print(
            f"{ended.unverified} images known by their ids alone: the cells that saw them are gone", markup=False
        )
    for note in ended.notes:
        warn(console, f"{note}; settings=ignore does not say so")
    state = "written to" if ended.written else "stands already in"
    say(console, f"{state} {ended.url}/; where it comes from: manifest.json")


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

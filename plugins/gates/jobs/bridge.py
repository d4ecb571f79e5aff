"""Shows whether two versions of a metric share a scale, can be converted to each other, or measure different things."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import STOPPED_MESSAGE, Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table, warn
from plumbline.jobs.display.plan_table import show_plan
from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.jobs.logs import log_to_file
from plumbline.jobs.overrides import SWEEP_KEYS
from plumbline.operators.base.sentences import format_interval, format_number, format_quantity, format_signed
from plumbline.pipelines.store.store import open_existing_store
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.plugins.gates.bridge_building import describe_bridge
from plumbline.plugins.gates.bridging import (
    BridgeSweepConfig,
    ScoredVersion,
    build_bridge,
    make_sweep_version,
    read_run_version,
    score_held_out_set,
    write_bridge,
)

COMMAND = Command(
    "bridge",
    "Relate the scores of a metric's old version to those of its new version: score one set of images with both\n"
    "versions, or take two runs of the same images. Trends and reports then join the two versions.",
    BridgeSweepConfig,
    SWEEP_KEYS,
    first="sweep",
    otherwise="sweep=shapes",
    stopped=STOPPED_MESSAGE,
)
MAX_SHOWN_GROUPS = 12


def main(config: BridgeSweepConfig) -> int:
    """Build a bridge; write a log of the command, and return 0."""
    with log_to_file(config.log, [config.storage.key, config.storage.secret]):
        return _compute_bridge(make_console(), config)


def _compute_bridge(console: Console, config: BridgeSweepConfig) -> int:
    """Score the versions that are not in a run, and write and show the bridge; return 0.

    If a sweep is needed to score the versions, a dry run only shows the plan of the sweep.
    """
    sweep = config.make_sweep()
    held: dict[str, ScoredVersion] = {}
    if sweep is None:
        store = open_existing_store(config)
    else:
        planned = plan_sweep(sweep)
        store = planned.store
        show_plan(console, planned)
        if config.dry_run:
            return 0
        with ProgressDisplay(console) as display:
            scores = score_held_out_set(planned, display.update)
        held = {metric: make_sweep_version(planned, scores, metric) for metric in sweep.metrics}
    old, new = (
        held[metric] if run is None else read_run_version(store, run, metric, f"bridge.{side}_run")
        for side, metric, run in config.bridge.list_sides()
    )
    built = build_bridge(store, config.bridge, old, new)
    bridge = built.bridge
    say(
        console,
        f"{format_quantity(bridge.images, 'image')} of {format_quantity(bridge.prompts, 'prompt')} and "
        f"{format_quantity(len(bridge.generators), 'generator')} were scored by both",
    )
    for sentence in describe_bridge(bridge):
        console.print(f"[bold]{escape(sentence.lead)}[/] {escape(sentence.rest)}", soft_wrap=True)
    _show_clear_misses(console, [row for row in built.groups.to_pylist() if row["clear"]])
    if not bridge.joins:
        warn(
            console, "trends and reports do not use this bridge, because it does not join the means of the two versions"
        )
    say(console, f"written to {write_bridge(store, built)}/")
    return 0


def _show_clear_misses(console: Console, groups: Sequence[Mapping[str, Any]]) -> None:
    cells = [
        [
            *(row["generator"], row["skill"], str(row["prompts"])),
            *(format_number(row[name]) for name in ("old", "mapped", "new")),
            f"{format_signed(row['miss'])} ({format_interval(row['low'], row['high'])})",
            f"{row['p_holm']:.2g}",
        ]
        for row in sorted(groups, key=lambda row: -abs(row["miss"]))[:MAX_SHOWN_GROUPS]
    ]
    if cells:
        names = ("generator", "skill", "prompts", "old", "mapped", "new", "new - mapped", "p (Holm)")
        show_table(console, "What the map does not explain", names, cells, numbers=slice(2, None))


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Builds a benchmark's prompts: tags them with skills, balances them, and has a model write more from templates."""

import sys

from rich.console import Console

from plumbline.jobs.command import STOPPED_MESSAGE, Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table, warn
from plumbline.jobs.display.leaderboards import show_usage
from plumbline.jobs.display.plan_table import show_plan
from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.jobs.logs import log_to_file
from plumbline.plugins.benchmark_builder.building import BuiltBenchmark, build_benchmark, plan_build, write_texts
from plumbline.plugins.benchmark_builder.building_config import BuildConfig

COMMAND = Command(
    "build_benchmark",
    "Build a benchmark's prompts like those of Gecko2K: have a language model tag the prompts in a file with skills\n"
    "(tagging=llm), draw prompts that balance skills and lengths (drawing=balanced drawing.count=1000), have a model\n"
    "write new prompts from a taxonomy's templates (generation=llm), drop near-duplicates, and show statistics.",
    BuildConfig,
    {"per_sub_skill": "generation.per_sub_skill", "count": "drawing.count"},
    extra="benchmarks",
    stopped=STOPPED_MESSAGE,
)
MAX_SHOWN_FAILURES = 5


def main(config: BuildConfig) -> int:
    """Build the benchmark; write a log of the command, and return the exit code."""
    with log_to_file(config.log, [config.storage.key, config.storage.secret]):
        return _plan_and_build(make_console(), config)


def _plan_and_build(console: Console, config: BuildConfig) -> int:
    planned = plan_build(config)
    repeated = len(planned.read.left_out)
    if config.prompts is not None:
        say(console, f"{len(planned.read.kept) + repeated} prompts read, {repeated} of them near-duplicates")
    for sweep in planned.writer_sweeps.values():
        show_plan(console, sweep)
    if config.dry_run:
        return 0
    written = {}
    for kind, sweep in planned.writer_sweeps.items():
        with ProgressDisplay(console) as display:
            written[kind] = write_texts(sweep, display.update)
    built = build_benchmark(planned, written)
    _show_benchmark(console, built)
    return built.exit_code


def _show_benchmark(console: Console, built: BuiltBenchmark) -> None:
    show_table(console, built.table.title, built.table.names, built.table.rows, numbers=slice(1, None))
    say(console, built.table.caption)
    show_usage(console, built.usage, built.costs)
    if built.failed:
        warn(
            console,
            f"{len(built.failed)} prompts could not be tagged or written; see tags.parquet and left_out.parquet:",
        )
        for line in built.failed[:MAX_SHOWN_FAILURES]:
            say(console, f"  {line}")
    left_out = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in built.left_out.items())
    say(console, f"{built.prompts} prompts{f'; left out: {left_out}' if left_out else ''}")
    say(console, f"written to {built.url}/")
    say(console, "  prompts.parquet, tags.parquet, left_out.parquet, statistics.md, manifest.json")


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

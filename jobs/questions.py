"""Writes a benchmark's questions before any image exists, and measures their quality."""

import sys

from rich.markup import escape

from plumbline.jobs.command import STOPPED_MESSAGE, Command, run_job
from plumbline.jobs.display.console import EMPTY_CELL, make_console, say, show_table
from plumbline.jobs.display.leaderboards import show_usage
from plumbline.jobs.display.plan_table import show_plan
from plumbline.jobs.display.progress_lines import ProgressDisplay
from plumbline.jobs.logs import log_to_file
from plumbline.jobs.overrides import SWEEP_KEYS
from plumbline.operators.results.question_quality import QuestionQuality
from plumbline.pipelines.base.exit_codes import COMPLETE, OVER_BUDGET, WITHIN_BUDGET
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sweeps.questions import plan_questions, write_questions

COMMAND = Command(
    "questions",
    "Write the metrics' questions about each prompt, without any image, and measure their quality.\n"
    "A sweep over the same prompts in the same store uses them.",
    SweepConfig,
    SWEEP_KEYS,
    first="prompts",
    stopped=STOPPED_MESSAGE,
)
TABLE_HEADINGS = (
    "metric",
    "prompts",
    "readable",
    "questions",
    "per prompt",
    "filtered",
    "doubted by NLI",
    "words covered",
)


def main(config: SweepConfig) -> int:
    """Show the plan, write missing questions and show their quality; return 0 if every prompt has questions, else 2."""
    console = make_console()
    with log_to_file(config.log, [config.storage.key, config.storage.secret]):
        planned = plan_questions(config)
        show_plan(console, planned)
        if config.dry_run:
            return 0
        with ProgressDisplay(console) as display:
            written = write_questions(planned, display.update)
        rows = [_describe_quality(name, quality) for name, quality in written.quality.items()]
        show_table(console, "questions", TABLE_HEADINGS, rows, numbers=slice(1, None))
        for name, message in written.failed.items():
            console.print(f"[red]failed[/] {escape(name)}: {escape(message)}", soft_wrap=True)
        show_usage(console, written.usage, written.costs)
        for name, paths in written.cells.items():
            say(console, f"{name}: {planned.store.place.url}/{paths[0].rpartition('/')[0]}/")
        if written.failed:
            return OVER_BUDGET
        return WITHIN_BUDGET if any(quality.failed for quality in written.quality.values()) else COMPLETE


def _describe_quality(name: str, quality: QuestionQuality) -> list[str]:
    def format_share(count: int, total: int) -> str:
        return f"{count} ({count / total:.1%})" if total else str(count)

    asked = quality.prompts - quality.failed
    per_prompt = f"{quality.questions / asked:.3f}" if asked else EMPTY_CELL
    doubted = format_share(quality.doubted, quality.questions)
    covered = format_share(quality.covered_words, quality.content_words)
    readable = format_share(asked, quality.prompts)
    counts = (str(quality.prompts), readable, str(quality.questions), per_prompt, str(quality.dropped))
    return [name, *counts, doubted, covered]


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

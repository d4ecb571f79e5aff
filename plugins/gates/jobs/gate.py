"""Checks a finished run against a file of rules: bounds on means, margins against another run, and coverage."""

import os
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base.exit_codes import COMPLETE, GATE_FAILED
from plumbline.pipelines.store.store import open_existing_store
from plumbline.plugins.gates.checks import GateResult
from plumbline.plugins.gates.gate_config import GateConfig, read_gate
from plumbline.plugins.gates.gating import run_gate
from plumbline.plugins.gates.markdown import to_markdown

COMMAND = Command(
    "gate",
    "Check a run against a file of rules; the exit code is 0 if it passes, 7 if it fails. A rule can bound a metric's\n"
    "mean, its loss or gain against another run or generator, and its coverage (plugins/gates/README.md).",
    GateConfig,
    first="run",
)
STEP_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
"""GitHub's environment variable for the path of a file whose Markdown is shown on the page of the workflow run."""
MAX_SHOWN_CHECKS = 60


def main(config: GateConfig) -> int:
    """Judge the run, or each of a suite's runs, by the rules; return 0 if all pass, otherwise 7.

    Runs of a suite to which no rule applies are skipped. Shows the findings, and writes the configured files.
    """
    console, store = make_console(), open_existing_store(config)
    gate = read_gate(config.storage.locate(config.rules))
    results = run_gate(store, gate, config)
    for result in results:
        show_gate(console, result)
    for name, address in (("junit", config.junit), ("summary", config.summary)):
        if address is not None:
            say(console, f"{name}: {address}")
    if step_summary := os.environ.get(STEP_SUMMARY_VARIABLE):
        with Path(step_summary).open("a", encoding="utf-8") as file:
            file.write(to_markdown(results))
        say(console, f"added to the summary of this step ({STEP_SUMMARY_VARIABLE})")
    return COMPLETE if all(result.passed for result in results) else GATE_FAILED


def show_gate(console: Console, result: GateResult) -> None:
    """Show the rules, the findings (worst first), and the result."""
    say(console, f"rules of {result.source}, one-sided alpha {result.alpha:g}:")
    for name, rule in result.rules.items():
        console.print(f"  [bold]{escape(name)}[/] {escape(rule)}", soft_wrap=True)
    checks = result.checks_worst_first
    rows = [
        (f"{check.outcome}{', fails' * (check.fails and check.outcome != 'failed')}", check.rule, check.generator,
         check.skill, check.found) for check in checks[:MAX_SHOWN_CHECKS]
    ]  # fmt: skip
    against = f" against {result.against}" if result.against else ""
    title = f"run {result.run_id} of {result.benchmark}{against}"
    show_table(console, title, ("outcome", "rule", "generator", "skill", "found"), rows)
    if len(checks) > MAX_SHOWN_CHECKS:
        say(
            console,
            f"{format_quantity(len(checks) - MAX_SHOWN_CHECKS, 'more check')} with the same or a better outcome",
        )
    console.print(f"[{'green' if result.passed else 'red'}]{escape(result.describe())}[/]", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

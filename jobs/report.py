"""Writes the report of a run: one page that opens anywhere, and its numbers as CSV and Markdown."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from jobs.command import Command, run_job
from jobs.console import EMPTY, make_console, say, show_tables, warn
from operators.report.tables import BoardRow
from operators.report.words import Sentence, plural
from pipelines.cells.store import open_store
from pipelines.report.report import ReportConfig, WrittenReport, write_report

COMMAND = Command("report", "Write the report of a run: which generator is best, at what, how sure.", ReportConfig)


def main(config: ReportConfig) -> int:
    """Writes the report and says what it says."""
    show_report(
        make_console(),
        write_report(
            open_store(config.store, config.storage),
            config.run,
            compare=config.compare,
            images=config.images,
            bradley_terry=config.bradley_terry,
        ),
    )
    return 0


def show_report(console: Console, report: WrittenReport) -> None:
    """The leaderboard over all metrics, the decision in a few lines, and where the page is."""
    title = "means; sharing a letter: not told apart (signed-rank test, Holm)"
    show_tables(console, title, {row.generator: _cells(row, report.metrics) for row in report.board.rows})
    if report.board.left_out:
        console.print(f"{plural(report.board.left_out, 'more generator')} in summary.csv")
    for sentence in report.decision:
        _show_sentence(console, sentence)
    for warning in report.warnings:
        warn(console, warning)
    if report.changes:
        say(console, f"since run {report.compared}:")
    for sentence in report.changes:
        _show_sentence(console, sentence, indent="  ")
    say(console, f"report: {report.url} ({report.size / 1e6:.1f} MB)")


def _show_sentence(console: Console, sentence: Sentence, indent: str = "") -> None:
    console.print(f"{indent}[bold]{escape(sentence.lead)}[/] {escape(sentence.rest)}".rstrip(), soft_wrap=True)


def _cells(row: BoardRow, metrics: Sequence[str]) -> dict[str, str]:
    means = {
        metric: f"{cell.text} {cell.group}".strip() if cell is not None else EMPTY
        for metric, cell in zip(metrics, row.cells, strict=True)
    }
    return {"mean rank": EMPTY if row.mean_rank is None else f"{row.mean_rank:.1f}", **means}


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

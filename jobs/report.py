"""Writes the report of a run: a page in a single file, and its numbers as CSV and Markdown."""

import sys

from rich.console import Console

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import EMPTY_CELL, make_console, say, show_sentence, show_table, show_tables, warn
from plumbline.jobs.display.findings import show_agreement
from plumbline.operators.base.sentences import format_quantity
from plumbline.operators.report.page import Page, ReportSection
from plumbline.pipelines.metaeval.metaeval import judge_run
from plumbline.pipelines.report.report import ReportConfig, WrittenReport, write_report
from plumbline.pipelines.store.runs import find_run
from plumbline.pipelines.store.store import open_existing_store

COMMAND = Command(
    "report",
    "Write the report of a run: which generator is best, at which skills, and with what certainty. With\n"
    "protocol=NAME protocol.path=PATH, the run is compared with people's judgements first.",
    ReportConfig,
    first="run",
)
MAX_FINDINGS, MAX_AGREEMENT = 2, 1
"""Maximum number of findings that a sweep shows about generators, and about agreement with human ratings."""


def main(config: ReportConfig) -> int:
    """Compare the run with human ratings if a protocol is set, write the report, and show the results."""
    console, store = make_console(), open_existing_store(config)
    if config.protocol is not None:
        show_agreement(console, judge_run(store, find_run(store, config.run), config.protocol))
    report = write_report(
        store,
        config.run,
        compare=config.compare,
        reward=config.reward,
        baseline=config.baseline,
        images=config.images,
        bradley_terry=config.bradley_terry,
        settings=config.settings,
        cluster=config.cluster,
    )
    show_report(console, report)
    return 0


def show_report(console: Console, report: WrittenReport, *, full: bool = True) -> None:
    """Show the leaderboard over all metrics, the findings, and the address of the page.

    Unless `full`, only the first findings are shown, so that a sweep's output fits on a screen.
    """
    page = report.page
    show_tables(console, page.leaderboard_title, page.leaderboard)
    if page.generators.left_out:
        console.print(f"{format_quantity(page.generators.left_out, 'more generator')} in summary.csv")
    _show_percentile_ranks(console, page)
    findings = [*page.decision.write_sentences()]
    shown = findings if full else findings[:MAX_FINDINGS]
    left_out = len(findings) - len(shown)
    for sentence in shown:
        show_sentence(console, sentence)
    for section in (section for section in page.sections if section.sentences):
        show_section(console, section)
    for warning in page.warnings:
        warn(console, warning)
    if page.changes is not None:
        say(console, f"since run {page.changes.run_id}:")
        for sentence in page.changes.sentences:
            show_sentence(console, sentence, indent="  ")
    if page.agreement is not None:
        findings = [*page.agreement.sentences, *page.agreement.contradictions]
        shown = findings if full else findings[:MAX_AGREEMENT]
        left_out += len(findings) - len(shown)
        say(console, "agreement with people (details are in metaeval/ next to the report):")
        for sentence in shown:
            show_sentence(console, sentence, indent="  ")
    if left_out:
        say(console, f"{format_quantity(left_out, 'more finding')} in the report")
    say(console, f"report: {report.url} ({report.size / 1e6:.1f} MB)")


def show_section(console: Console, section: ReportSection) -> None:
    """Show the first table and the findings of a section of the report."""
    table = section.tables[0]
    show_table(console, table.title, table.names, table.rows)
    for sentence in section.sentences:
        show_sentence(console, sentence)


def _show_percentile_ranks(console: Console, page: Page) -> None:
    rows: dict[str, dict[str, str]] = {name: {} for name in page.generators.rows}
    for column in page.columns:
        own = sum(row.n for row in column.by_generator.values())
        for name, row in column.by_generator.items():
            found = page.usual.locate(column.name, row.mean) if row.n and name in rows else None
            if found is not None and found.images > own:
                rows[name][f"{column.name} ({found.images:,})"] = f"{found.rank:.0%}"
    if any(rows.values()):
        unread = page.usual.left_out
        left = f"; {format_quantity(unread, 'run')} without readable scores left out" if unread else ""
        columns = dict.fromkeys(name for row in rows.values() for name in row)
        cells = {name: {column: row.get(column, EMPTY_CELL) for column in columns} for name, row in rows.items()}
        show_tables(console, "percentile ranks (images)", cells)
        say(console, f"percentile ranks of the means among the images scored so far on {page.benchmark}{left}")


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

"""Writes the report of a run: one page that opens anywhere, and its numbers as CSV and Markdown."""

import sys

from rich.console import Console

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import EMPTY, make_console, say, show_sentence, show_tables, warn
from plumbline.jobs.display.findings import show_agreement
from plumbline.operators.base.sentences import plural
from plumbline.operators.report.page import Page
from plumbline.pipelines.metaeval.metaeval import judge_run
from plumbline.pipelines.report.report import ReportConfig, WrittenReport, write_report
from plumbline.pipelines.store.runs import find_run
from plumbline.pipelines.store.store import open_existing_store

COMMAND = Command(
    "report",
    "Write the report of a run: which generator is best, at what, how sure. With protocol=NAME protocol.path=PATH\n"
    "people's judgements are read first: how far each metric agrees with them, and what they correct.",
    ReportConfig,
    first="run",
)


def main(config: ReportConfig) -> int:
    """Compare the run with people if a protocol is set, write the report, and show both."""
    console, store = make_console(), open_existing_store(config)
    if config.protocol is not None:
        show_agreement(console, judge_run(store, find_run(store, config.run), config.protocol))
    show_report(
        console,
        write_report(
            store,
            config.run,
            compare=config.compare,
            reward=config.reward,
            baseline=config.baseline,
            images=config.images,
            bradley_terry=config.bradley_terry,
            settings=config.settings,
            cluster=config.cluster,
        ),
    )
    return 0


def show_report(console: Console, report: WrittenReport) -> None:
    """Show the leaderboard over all metrics, the decision in a few lines, and the address of the page."""
    page = report.page
    show_tables(console, page.leaderboard_title, page.leaderboard)
    if page.generators.left_out:
        console.print(f"{plural(page.generators.left_out, 'more generator')} in summary.csv")
    _show_usual(console, page)
    for sentence in page.decision.sentences():
        show_sentence(console, sentence)
    for warning in page.warnings:
        warn(console, warning)
    if page.changes is not None:
        say(console, f"since run {page.changes.run_id}:")
        for sentence in page.changes.sentences:
            show_sentence(console, sentence, indent="  ")
    if page.agreement is not None:
        say(console, "beside people (all of it is in metaeval/ beside the report):")
        for sentence in (*page.agreement.sentences, *page.agreement.contradictions):
            show_sentence(console, sentence, indent="  ")
    say(console, f"report: {report.url} ({report.size / 1e6:.1f} MB)")


def _show_usual(console: Console, page: Page) -> None:
    """Show the percentile ranks of the means among all scores so far, for metrics that also scored other images."""
    rows: dict[str, dict[str, str]] = {name: {} for name in page.generators.rows}
    for column in page.columns:
        own = sum(row.n for row in column.by_generator.values())
        for name, row in column.by_generator.items():
            place = page.usual.locate(column.name, row.mean) if row.n and name in rows else None
            if place is not None and place.images > own:
                rows[name][f"{column.name} ({place.images:,})"] = f"{place.rank:.0%}"
    if any(rows.values()):
        left = f"; {plural(page.usual.left_out, 'run')} without readable scores left out" if page.usual.left_out else ""
        columns = dict.fromkeys(name for row in rows.values() for name in row)
        cells = {name: {at: row.get(at, EMPTY) for at in columns} for name, row in rows.items()}
        show_tables(console, "percentile ranks (images)", cells)
        say(console, f"percentile ranks of the means among the images scored so far on {page.benchmark}{left}")


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))

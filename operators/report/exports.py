"""The run's standings as CSV, and its decision and tables as Markdown."""

import csv
import io
import math
from collections.abc import Iterator, Sequence

from operators.comparison import Standing
from operators.report.page import Page
from operators.report.words import number
from operators.summary import OVERALL

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>|#~"} | {"\n": " ", "\r": " "})


def to_csv(standings: Sequence[Standing]) -> str:
    """One row per generator, metric and skill; text that a spreadsheet would compute is quoted by an apostrophe."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(Standing._fields)
    writer.writerows([_csv_value(value) for value in standing] for standing in standings)
    return buffer.getvalue()


def _csv_value(value: object) -> object:
    if isinstance(value, float):
        return "" if math.isnan(value) else value
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def to_markdown(page: Page) -> str:
    """The decision, what to know before trusting it, and the overall standings of each metric."""
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield f"# {_escaped(page.benchmark)}: run {_escaped(page.run_id)}"
    yield ""
    yield _escaped(" · ".join(page.facts))
    yield ""
    for sentence in page.decision.sentences():
        yield f"- **{_escaped(sentence.lead)}** {_escaped(sentence.rest)}".rstrip()
    for warning in page.warnings:
        yield f"- Note: {_escaped(warning)}"
    for metric in page.metrics:
        yield from _table(
            metric, [standing for standing in page.standings if (standing.metric, standing.skill) == (metric, OVERALL)]
        )
    if page.changes is not None:
        yield from ["", f"## Since run {_escaped(page.changes.run_id)}", ""]
        yield from (
            f"- **{_escaped(standing.lead)}** {_escaped(standing.rest)}".rstrip() for standing in page.changes.sentences
        )


def _table(metric: str, board: Sequence[Standing]) -> Iterator[str]:
    yield from ["", f"## {_escaped(metric)}", ""]
    rated = any(not math.isnan(standing.rating) for standing in board)
    yield "| rank | generator | mean | 95% interval | tie group | images | coverage |" + " Bradley-Terry |" * rated
    yield "|---:|---|---:|---:|---|---:|---:|" + "---:|" * rated
    for standing in sorted(board, key=lambda standing: math.inf if standing.rank is None else standing.rank):
        interval = f"{number(standing.low)} to {number(standing.high)}"
        cells = (
            "–" if standing.rank is None else str(standing.rank),
            _escaped(standing.generator),
            number(standing.mean),
            interval,
            standing.group,
            str(standing.n),
        )
        yield f"| {' | '.join(cells)} | {standing.coverage:.1%} |" + f" {number(standing.rating, 0)} |" * rated


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.translate(MARKDOWN)

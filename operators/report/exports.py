"""The run's standings as CSV, and its decision and tables as Markdown."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence

from operators.comparison import Standing
from operators.report.page import Page
from operators.report.words import Sentence, number
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
    yield from (f"# {_escaped(page.benchmark)}: run {_escaped(page.run_id)}", "", _escaped(" · ".join(page.facts)), "")
    yield from _listed(page.decision.sentences())
    yield from (f"- Note: {_escaped(warning)}" for warning in page.warnings)
    for metric in page.metrics:
        board = [row for row in page.standings if (row.metric, row.skill) == (metric, OVERALL)]
        yield from _table(metric, board)
    if page.changes is not None:
        yield from ["", f"## Since run {_escaped(page.changes.run_id)}", ""]
        yield from _listed(page.changes.sentences)


def _listed(sentences: Iterable[Sentence]) -> Iterator[str]:
    for sentence in sentences:
        yield f"- **{_escaped(sentence.lead)}** {_escaped(sentence.rest)}".rstrip()


def _table(metric: str, board: Sequence[Standing]) -> Iterator[str]:
    yield from ["", f"## {_escaped(metric)}", ""]
    rated = any(not math.isnan(row.rating) for row in board)
    yield "| rank | generator | mean | 95% interval | tie group | images | coverage |" + " Bradley-Terry |" * rated
    yield "|---:|---|---:|---:|---|---:|---:|" + "---:|" * rated
    for row in sorted(board, key=lambda row: math.inf if row.rank is None else row.rank):
        place, interval = "–" if row.rank is None else row.rank, f"{number(row.low)} to {number(row.high)}"
        cells = f"| {place} | {_escaped(row.generator)} | {number(row.mean)} | {interval} | {row.group} | {row.n} |"
        yield f"{cells} {row.coverage:.1%} |" + f" {number(row.rating, 0)} |" * rated


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.translate(MARKDOWN)

"""From the page's content to its files: one self-contained HTML that may load nothing, CSV and Markdown."""

import base64
import csv
import hashlib
import io
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from operators.comparison import Standing
from operators.diagnosis.diagnosis import ShownTable
from operators.report.page import Page
from operators.report.tables import p_text
from operators.report.trends import Trends
from operators.report.words import count, number, plural, signed

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
TEMPLATES = Path(__file__).parent / "templates"
MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>|#~"} | {"\n": " ", "\r": " "})
"""What Markdown shows as it is where a backslash is before it."""


def render(page: Page) -> str:
    """A run's page as HTML: every text escaped, style and script inline, and nothing else allowed to run or load."""
    return _render("report.html.j2", page)


def render_trends(page: Trends) -> str:
    """The page of trends as HTML, by the same rules."""
    return _render("trends.html.j2", page)


def _render(template: str, page: Page | Trends) -> str:
    style, script = _asset("report.css"), _asset("report.js")
    return _environment().get_template(template).render(
        page=page, style=Markup(style), script=Markup(script), policy=_policy(script)
    )  # fmt: skip


def to_markdown(page: Page) -> str:
    """The decision, what to know before trusting it, and the overall standings of each metric."""
    return _environment().get_template("summary.md.j2").render(page=page)


def diagnosis_markdown(tables: Sequence[ShownTable], level: int = 2) -> str:
    """The tables of a diagnosis, with what they mean, under headings of this level."""
    return _environment().get_template("diagnosis.md.j2").render(tables=tables, mark="#" * level)


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


@lru_cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"markdown": lambda text: text.translate(MARKDOWN)}
    environment.filters |= {"number": number, "count": count, "signed": signed, "p": p_text, "plural": plural}
    return environment


def _asset(name: str) -> str:
    """A style or script of ours, which stands in the page as it is."""
    return (TEMPLATES / name).read_text("utf-8")


def _policy(script: str) -> str:
    """A Content-Security-Policy: no network, and of scripts only ours, told by its hash."""
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{known}'; "
        "base-uri 'none'; form-action 'none'"
    )

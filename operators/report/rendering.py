"""From the page's content to its files: one self-contained HTML that may load nothing, CSV and Markdown."""

import base64
import csv
import hashlib
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from plumbline.operators.base.sentences import (
    WHY_NO_INTERVAL,
    count,
    interval_sentence,
    interval_text,
    latex,
    number,
    p_text,
    plural,
    signed,
)
from plumbline.operators.diagnosis.diagnosis import ShownTable
from plumbline.operators.gates.checks import GateResult
from plumbline.operators.images.generation_settings import against
from plumbline.operators.report.page import Page
from plumbline.operators.report.page_tables import MAX_EFFECT_COLUMNS, MAX_NAMED_COLUMNS
from plumbline.operators.report.picked_images import KIND_WORDS
from plumbline.operators.report.suite import SuitePage
from plumbline.operators.report.trends import Trends
from plumbline.operators.results.comparison import Standing
from plumbline.operators.results.summary import OVERALL

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
FILE_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
"""What a page that was stored as a file may do where it is served: as little, whoever wrote it."""
MOST_IN_CSV = 400_000
"""Characters of the CSV that the page holds; a longer one it holds without the means at the skills."""
MOST_CHECKS = 100
"""Rows of a gate's Markdown, which GitHub shows up to a megabyte; JUnit XML has all."""
TEMPLATES = Path(__file__).parent / "templates"
_SELF = "'self'"
MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>|#~"} | {"\n": " ", "\r": " "})
"""What Markdown shows as it is where a backslash is before it."""
FROM_THE_RIGHT = r"\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
"""Characters of the scripts that are written from the right."""
NAME_FROM_THE_RIGHT = re.compile(
    rf"(?<![\w.+-])[\w.+-]*[{FROM_THE_RIGHT}](?:[\w.+{FROM_THE_RIGHT}-]*[\w{FROM_THE_RIGHT}])?"
)


class Download(NamedTuple):
    """A file that the page holds."""

    name: str
    label: str
    address: str
    """A data: address."""


def render(page: Page) -> str:
    """A run's page as HTML: every text escaped, style and script inline, and nothing else allowed to run or load."""
    return _render("report.html.j2", page, downloads=_downloads(page))


def _downloads(page: Page) -> list[Download]:
    """The leaderboard as files, for whoever has the page and not the run's folder."""
    table, said = to_csv(page.standings), "CSV, overall and by skill"
    if len(table) > MOST_IN_CSV:
        table, said = to_csv([row for row in page.standings if row.skill == OVERALL]), "CSV, overall"
    return [
        Download("leaderboard.csv", said, _data_address("text/csv", table)),
        Download("leaderboard.tex", "LaTeX", _data_address("application/x-tex", to_latex(page))),
    ]


def _data_address(kind: str, text: str) -> str:
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def render_trends(page: Trends) -> str:
    """The page of trends as HTML, by the same rules."""
    return _render("trends.html.j2", page)


def render_suite(page: SuitePage) -> str:
    """The page of a suite as HTML, by the same rules."""
    table = _data_address("text/csv", suite_csv(page))
    return _render("suite.html.j2", page, downloads=[Download("suite.csv", "CSV", table)])


def suite_markdown(page: SuitePage) -> str:
    """What a suite says in words, and every generator's means by metric and benchmark."""
    return template_environment().get_template("suite.md.j2").render(page=page)


def gate_markdown(results: Sequence[GateResult]) -> str:
    """What a gate says of runs, its rules and what they found, as a comment on a pull request shows it."""
    return template_environment().get_template("gate.md.j2").render(results=results, most=MOST_CHECKS)


def suite_csv(page: SuitePage) -> str:
    """One row per benchmark, generator and metric, as `to_csv` has them."""
    rows = ((benchmark, *row) for benchmark, standings in page.standings.items() for row in standings)
    return _csv(("benchmark", *Standing._fields), rows)


class ServedPages(NamedTuple):
    """HTML pages that a server shows. They may ask that server for images and pages and send it forms, and no other."""

    templates: Path
    """The folder with the templates, styles and scripts of these pages; they may also use those of a report."""
    styles: Sequence[str] = ()
    """Names of files, which follow the styles that all pages share."""
    scripts: Sequence[str] = ()
    """Names of files, which follow the script that all pages share."""

    def render(self, template: str, content: Mapping[str, Any]) -> str:
        """Return a page as HTML: every text escaped, style and script inline."""
        style = _assets("report.css", "served.css", *self.styles, folder=self.templates)
        return _fill(template, style, self._script(), self.policy(), content, self.templates)

    def policy(self) -> str:
        """Return the Content-Security-Policy of the pages."""
        return f"{_policy(self._script(), images=_SELF, forms=_SELF)}; connect-src {_SELF}"

    def _script(self) -> str:
        return _assets("report.js", *self.scripts, folder=self.templates)


def _render(template: str, page: Page | SuitePage | Trends, **content: Any) -> str:
    script = _assets("report.js")
    return _fill(template, _assets("report.css"), script, _policy(script), {"page": page, **content})


def _fill(
    template: str, style: str, script: str, policy: str, content: Mapping[str, Any], folder: Path = TEMPLATES
) -> str:
    page = template_environment(folder).get_template(template)
    return page.render(style=Markup(style), script=Markup(script), policy=policy, **content)


def to_markdown(page: Page) -> str:
    """The decision, what to know before trusting it, and the overall standings of each metric."""
    return template_environment().get_template("summary.md.j2").render(page=page)


def to_latex(page: Page) -> str:
    """The leaderboard over all metrics as a table with booktabs rules: means with letters, intervals and coverage."""
    return template_environment().get_template("leaderboard.tex.j2").render(page=page)


def diagnosis_markdown(tables: Sequence[ShownTable], level: int = 2) -> str:
    """The tables of a diagnosis, with what they mean, under headings of this level."""
    return template_environment().get_template("diagnosis.md.j2").render(tables=tables, mark="#" * level)


def to_csv(standings: Sequence[Standing]) -> str:
    """One row per generator, metric and skill; text that a spreadsheet would compute is quoted by an apostrophe."""
    return _csv(Standing._fields, standings)


def _csv(names: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_csv_value(value) for value in row] for row in rows)
    return buffer.getvalue()


def _csv_value(value: object) -> object:
    if isinstance(value, float):
        return "" if math.isnan(value) else value
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def isolated(text: str) -> Markup:
    """A sentence as HTML in which a name that is written from the right turns nothing round but itself."""
    return Markup(NAME_FROM_THE_RIGHT.sub(r"<bdi>\g<0></bdi>", str(escape(text))))


@lru_cache
def template_environment(folder: Path = TEMPLATES) -> Environment:
    """Return what fills the templates of a folder, which may also use those of reports."""
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"markdown": lambda text: text.translate(MARKDOWN), "latex": latex}
    environment.filters |= {"isolated": isolated}
    environment.filters |= {
        "number": number,
        "count": count,
        "signed": signed,
        "p": p_text,
        "interval": interval_text,
        "signed_interval": partial(interval_text, show=signed),
        "interval_sentence": interval_sentence,
        "plural": plural,
        "against": against,
    }
    environment.globals |= {
        "WHY_NO_INTERVAL": WHY_NO_INTERVAL,
        "KIND_WORDS": KIND_WORDS,
        "MAX_NAMED_COLUMNS": MAX_NAMED_COLUMNS,
        "MAX_EFFECT_COLUMNS": MAX_EFFECT_COLUMNS,
    }
    return environment


def _assets(*names: str, folder: Path = TEMPLATES) -> str:
    """Return styles or scripts, which stand in the page as they are: from the folder, or those that all pages share."""
    files = (next(place / name for place in (folder, TEMPLATES) if (place / name).is_file()) for name in names)
    return "".join(file.read_text("utf-8") for file in files)


def _policy(script: str, images: str = "data:", forms: str = "'none'") -> str:
    """A Content-Security-Policy: no network but for what is named, and of scripts only ours, told by its hash."""
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src {images}; style-src 'unsafe-inline'; script-src 'sha256-{known}'; "
        f"base-uri 'none'; form-action {forms}"
    )

"""Renders a report as files: a self-contained HTML page that loads nothing else, CSV, Markdown and LaTeX."""

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
    NO_INTERVAL_NOTE,
    ShownTable,
    describe_interval,
    escape_latex,
    format_count,
    format_interval,
    format_number,
    format_p_value,
    format_quantity,
    format_signed,
)
from plumbline.operators.images.generation_settings import describe_differences
from plumbline.operators.report.page import Page
from plumbline.operators.report.page_tables import MAX_EFFECT_COLUMNS, MAX_NAMED_COLUMNS
from plumbline.operators.report.picked_images import KIND_WORDS
from plumbline.operators.report.suite import SuitePage
from plumbline.operators.report.trends import Trends
from plumbline.operators.results.comparison import LeaderboardRow
from plumbline.operators.results.summary import OVERALL

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
FILE_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
"""Content-Security-Policy for serving a page from a stored file; strict, because anybody may have written the file."""
MAX_CSV_CHARACTERS = 400_000
"""Maximum number of characters of the CSV file inside the page. If the file is longer, means by skill are left out."""
TEMPLATES_FOLDER = Path(__file__).parent / "templates"
MARKDOWN_ESCAPES = str.maketrans(
    {character: f"\\{character}" for character in "\\`*_{}[]<>|#~"} | {"\n": " ", "\r": " "}
)
"""Escapes for characters with a special meaning in Markdown."""
RIGHT_TO_LEFT_CHARACTERS = r"\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
"""Unicode ranges of right-to-left scripts."""
RIGHT_TO_LEFT_NAME_PATTERN = re.compile(
    rf"(?<![\w.+-])[\w.+-]*[{RIGHT_TO_LEFT_CHARACTERS}](?:[\w.+{RIGHT_TO_LEFT_CHARACTERS}-]*[\w{RIGHT_TO_LEFT_CHARACTERS}])?"
)


class Download(NamedTuple):
    """A file that a reader can save from the page; its content is embedded in the page."""

    name: str
    label: str
    address: str
    """Data URI with the content of the file."""


def render_report(page: Page) -> str:
    """Return a run's report as HTML, with all text escaped and with inline styles and scripts.

    The page cannot load anything else.
    """
    table, label = to_csv(page.leaderboard_rows), "CSV, overall and by skill"
    if len(table) > MAX_CSV_CHARACTERS:
        table, label = to_csv([row for row in page.leaderboard_rows if row.skill == OVERALL]), "CSV, overall"
    downloads = [
        Download("leaderboard.csv", label, _make_data_uri("text/csv", table)),
        Download("leaderboard.tex", "LaTeX", _make_data_uri("application/x-tex", to_latex(page))),
    ]
    return _render_page("report.html.j2", page=page, downloads=downloads)


def render_trends(page: Trends) -> str:
    """Return the trends page as self-contained HTML, with all text escaped."""
    return _render_page("trends.html.j2", page=page)


def render_suite(page: SuitePage) -> str:
    """Return a suite's page as self-contained HTML, with all text escaped."""
    downloads = [Download("suite.csv", "CSV", _make_data_uri("text/csv", format_suite_csv(page)))]
    return _render_page("suite.html.j2", page=page, downloads=downloads)


def _render_page(template: str, **content: Any) -> str:
    script = _read_assets("report.js")
    return _fill_template(template, _read_assets("report.css"), script, _make_policy(script), content)


def _fill_template(
    template: str, style: str, script: str, policy: str, content: Mapping[str, Any], folder: Path = TEMPLATES_FOLDER
) -> str:
    page = make_template_environment(folder).get_template(template)
    return page.render(style=Markup(style), script=Markup(script), policy=policy, **content)


def _make_data_uri(kind: str, text: str) -> str:
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"


def format_suite_markdown(page: SuitePage) -> str:
    """Return a suite's conclusions, and every generator's means by metric and benchmark, as Markdown."""
    return make_template_environment().get_template("suite.md.j2").render(page=page)


def format_suite_csv(page: SuitePage) -> str:
    """Return the leaderboard rows of each benchmark as CSV: the column `benchmark`, then the columns of `to_csv`."""
    rows = ((benchmark, *row) for benchmark, own in page.leaderboard_rows.items() for row in own)
    return _format_csv(("benchmark", *LeaderboardRow._fields), rows)


class ServedPageRenderer(NamedTuple):
    """HTML pages that a local server sends to the browser.

    The pages can load images and pages from this server and send forms to it, but not to any other server.
    """

    templates: Path
    """Folder with the templates, styles and scripts of these pages, which can also use the templates of reports."""
    styles: Sequence[str] = ()
    """File names of styles to add after the shared styles."""
    scripts: Sequence[str] = ()
    """File names of scripts to add after the shared script."""

    def render(self, template: str, content: Mapping[str, Any]) -> str:
        """Return a page as HTML, with all text escaped and with inline styles and scripts."""
        style = _read_assets("report.css", "served.css", *self.styles, folder=self.templates)
        return _fill_template(template, style, self._read_script(), self.make_policy(), content, self.templates)

    def make_policy(self) -> str:
        """Return the Content-Security-Policy header that the server must send with the pages."""
        policy = _make_policy(self._read_script(), images="'self'", forms="'self'")
        return f"{policy}; connect-src 'self'"

    def _read_script(self) -> str:
        return _read_assets("report.js", *self.scripts, folder=self.templates)


def to_markdown(page: Page) -> str:
    """Return the conclusions, the warnings, and the overall leaderboard of each metric as Markdown."""
    return make_template_environment().get_template("summary.md.j2").render(page=page)


def to_latex(page: Page) -> str:
    """Return the leaderboard as a LaTeX table (booktabs), with means, letters, intervals and coverage."""
    return make_template_environment().get_template("leaderboard.tex.j2").render(page=page)


def format_tables_markdown(tables: Sequence[ShownTable], level: int = 2) -> str:
    """Return tables with their captions as Markdown, under headings of the given level."""
    return make_template_environment().get_template("diagnosis.md.j2").render(tables=tables, mark="#" * level)


def to_csv(rows: Sequence[LeaderboardRow]) -> str:
    """Return CSV with a row for each generator, metric and skill.

    Text that a spreadsheet would interpret as a formula is prefixed with an apostrophe.
    """
    return _format_csv(LeaderboardRow._fields, rows)


def _format_csv(names: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    def convert_cell(value: object) -> object:
        if isinstance(value, float):
            return "" if math.isnan(value) else value
        return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([convert_cell(value) for value in row] for row in rows)
    return buffer.getvalue()


def isolate_direction(text: str) -> Markup:
    """Return a string as HTML, isolated so that names in right-to-left scripts do not reorder the text around them."""
    return Markup(RIGHT_TO_LEFT_NAME_PATTERN.sub(r"<bdi>\g<0></bdi>", str(escape(text))))


@lru_cache
def make_template_environment(folder: Path = TEMPLATES_FOLDER) -> Environment:
    """Return the environment for templates in a folder; they can also use the templates of reports."""
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES_FOLDER]),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,  # a page is rendered once
    )
    environment.filters |= {
        "markdown": lambda text: text.translate(MARKDOWN_ESCAPES),
        "latex": escape_latex,
        "isolated": isolate_direction,
        "number": format_number,
        "count": format_count,
        "signed": format_signed,
        "p": format_p_value,
        "interval": format_interval,
        "signed_interval": partial(format_interval, show=format_signed),
        "describe_interval": describe_interval,
        "plural": format_quantity,
        "against": describe_differences,
    }
    environment.globals |= {
        "NO_INTERVAL_NOTE": NO_INTERVAL_NOTE,
        "KIND_WORDS": KIND_WORDS,
        "MAX_NAMED_COLUMNS": MAX_NAMED_COLUMNS,
        "MAX_EFFECT_COLUMNS": MAX_EFFECT_COLUMNS,
    }
    return environment


def _read_assets(*names: str, folder: Path = TEMPLATES_FOLDER) -> str:
    files = (next(at / name for at in (folder, TEMPLATES_FOLDER) if (at / name).is_file()) for name in names)
    return "".join(file.read_text("utf-8") for file in files)


def _make_policy(script: str, images: str = "data:", forms: str = "'none'") -> str:
    """Return a Content-Security-Policy that allows only this script, and these sources of images and form targets."""
    known = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src {images}; style-src 'unsafe-inline'; script-src 'sha256-{known}'; "
        f"base-uri 'none'; form-action {forms}"
    )

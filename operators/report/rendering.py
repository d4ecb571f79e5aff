"""From the page's content to one self-contained HTML file that may load nothing."""

import base64
import hashlib
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from operators.report.page import Page
from operators.report.tables import p_text
from operators.report.words import number, plural, signed

TEMPLATES = Path(__file__).parent / "templates"


def render(page: Page) -> str:
    """The page as HTML: every text escaped, style and script inline, and nothing else allowed to run or load."""
    style, script = _asset("report.css"), _asset("report.js")
    return _environment().get_template("report.html.j2").render(
        page=page, style=Markup(style), script=Markup(script), policy=_policy(script)
    )  # fmt: skip


@lru_cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "signed": signed, "p": p_text, "plural": plural}
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

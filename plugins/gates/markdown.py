"""Converts a gate's result to Markdown."""

from collections.abc import Sequence
from pathlib import Path

from plumbline.operators.report.rendering import make_template_environment
from plumbline.plugins.gates.checks import GateResult

TEMPLATES_FOLDER = Path(__file__).parent / "templates"
MAX_SHOWN_CHECKS = 100
"""Maximum number of rows in the Markdown, because GitHub shows at most a megabyte; the JUnit XML has all rows."""


def to_markdown(results: Sequence[GateResult]) -> str:
    """Return a gate's rules and results as Markdown for a comment on a pull request."""
    return (
        make_template_environment(TEMPLATES_FOLDER)
        .get_template("gate.md.j2")
        .render(results=results, most=MAX_SHOWN_CHECKS)
    )

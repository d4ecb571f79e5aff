"""Every command in README and docs is valid: its job, its keys, its choices and their values."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.jobs.command import command_of, run_job
from plumbline.jobs.table import JOBS

ROOT = Path(__file__).parent.parent
PLUGINS = ROOT / "docs/plugins.md"
"""A page whose commands need the example package, so tests/test_plugins.py runs them."""
PAPERS = ROOT / "docs/papers.md"
"""The page that comes last: a command that is also on another page belongs to that page."""
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted({*(ROOT / "docs").rglob("*.md"), *(ROOT / "plugins").glob("*/*.md")} - {PLUGINS, PAPERS}),
    PAPERS,
)
COMMAND = re.compile(rf"(?:plumbline |python -m jobs\.)(?P<job>{'|'.join(JOBS)})\b(?!-)(?P<rest>[^\n`;]*)")
OPTIONAL = re.compile(r"(?<= )\[(\S+=\S+?)(?: \| [^]]*)?\](?= |$)")
"""An optional part of a command in brackets, or the first of several alternatives."""
AFTERWARDS = re.compile(r" \d?> \S+| \|\| .*")
"""Redirections, and commands that run if the first one fails."""
UNDERSTOOD = re.compile(r"is required[ ;]|expected one input")
"""Error messages for incomplete commands, which a page abbreviates with `...` or shows as the job alone."""


def commands_by_page() -> dict[str, list[str]]:
    """Return the commands by page, joining continued lines and removing comments; each is listed on its first page."""
    pages: dict[str, str] = {}
    for page in PAGES:
        text = re.sub(r" *\\\n *", " ", page.read_text())
        for found in COMMAND.finditer(text):
            command = f"{found['job']} {found['rest'].split(' #')[0].strip()}".strip()
            if not command.endswith(("--help", "--help-all")):
                pages.setdefault(command, name_of(page))
    return {name_of(page): [command for command, first in pages.items() if first == name_of(page)] for page in PAGES}


def name_of(page: Path) -> str:
    """Return a page's path relative to the root, because pages in several folders have the same file name."""
    return str(page.relative_to(ROOT))


def all_commands() -> list[str]:
    return [command for commands in commands_by_page().values() for command in commands]


def command_parameters() -> Iterator[Any]:
    """Yield the commands; those that only docs/papers.md contains are run by make docs and make slow."""
    for page, commands in commands_by_page().items():
        for command in commands:
            yield pytest.param(command, marks=[pytest.mark.slow] if page == name_of(PAPERS) else [])


def words(command: str) -> list[str]:
    plain = OPTIONAL.sub(r"\1", AFTERWARDS.sub("", re.sub(r"(?<!\?P)<[a-z ]+>", "SOMETHING", command)))
    return [word for word in shlex.split(plain) if word != "..."]


@pytest.mark.parametrize("command", [*command_parameters()])
def test_a_command_of_the_pages_is_understood(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHT_HOOK", "https://example.org/hook")
    job, *arguments = words(command)
    code = run_job(command_of(job), lambda config: 0, arguments)
    said = capsys.readouterr().err
    partial = "..." in command or not arguments
    assert code == 0 or (partial and UNDERSTOOD.search(said)), said


def test_the_pages_show_many_commands_and_every_job() -> None:
    jobs = {command.split()[0] for command in all_commands()} | {"reproduce"}  # also run by make itself
    assert len(all_commands()) > 80
    assert jobs >= set(JOBS)

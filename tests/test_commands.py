"""Every command that README and docs tell is understood: its job, its keys, its choices and what they expect."""

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
"""Its commands want the example package, which tests/test_plugins.py installs and runs them with."""
PAPERS = ROOT / "docs/papers.md"
"""The last page: a command that another page has, too, belongs to that page."""
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted({*(ROOT / "docs").rglob("*.md"), *(ROOT / "plugins").glob("*/*.md")} - {PLUGINS, PAPERS}),
    PAPERS,
)
TOLD = re.compile(rf"(?:plumbline |python -m jobs\.)(?P<job>{'|'.join(JOBS)})\b(?!-)(?P<rest>[^\n`;]*)")
OPTIONAL = re.compile(r"(?<= )\[(\S+=\S+?)(?: \| [^]]*)?\](?= |$)")
"""A part of a command that may be left out, in brackets of its own, or the first of several such parts."""
AFTERWARDS = re.compile(r" \d?> \S+| \|\| .*")
"""Redirections, and commands that run if the first fails."""
UNDERSTOOD = re.compile(r"is required[ ;]|expected one input")
"""What is said of a command that leaves something out, where the page does so with `...` or shows the job alone."""


def told_by_page() -> dict[str, list[str]]:
    """The commands as they stand, lines that go on joined, remarks left out; each once, by the first page with it."""
    pages: dict[str, str] = {}
    for page in PAGES:
        text = re.sub(r" *\\\n *", " ", page.read_text())
        for found in TOLD.finditer(text):
            command = f"{found['job']} {found['rest'].split(' #')[0].strip()}".strip()
            if not command.endswith(("--help", "--help-all")):
                pages.setdefault(command, name_of(page))
    return {name_of(page): [command for command, first in pages.items() if first == name_of(page)] for page in PAGES}


def name_of(page: Path) -> str:
    """Return the path of a page from the root; pages of several folders have the same file name."""
    return str(page.relative_to(ROOT))


def told() -> list[str]:
    return [command for commands in told_by_page().values() for command in commands]


def told_as_parameters() -> Iterator[Any]:
    """Yield the commands; those that docs/papers.md alone has are run by make docs and make slow."""
    for page, commands in told_by_page().items():
        for command in commands:
            yield pytest.param(command, marks=[pytest.mark.slow] if page == name_of(PAPERS) else [])


def words(command: str) -> list[str]:
    plain = OPTIONAL.sub(r"\1", AFTERWARDS.sub("", re.sub(r"(?<!\?P)<[a-z ]+>", "SOMETHING", command)))
    return [word for word in shlex.split(plain) if word != "..."]


@pytest.mark.parametrize("command", [*told_as_parameters()])
def test_a_command_of_the_pages_is_understood(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHT_HOOK", "https://example.org/hook")
    job, *arguments = words(command)
    code = run_job(command_of(job), lambda config: 0, arguments)
    said = capsys.readouterr().err
    partial = "..." in command or not arguments
    assert code == 0 or (partial and UNDERSTOOD.search(said)), said


def test_the_pages_tell_many_commands_and_of_every_job() -> None:
    jobs = {command.split()[0] for command in told()} | {"reproduce"}  # by make
    assert len(told()) > 80
    assert jobs >= set(JOBS)

"""Every command in README and docs is valid: its job, its keys, its choices and their values."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.jobs.command import get_command, run_job
from plumbline.jobs.table import JOBS

ROOT = Path(__file__).parent.parent
PAGES_OF_OTHER_PACKAGES = {ROOT / "docs/plugins.md", ROOT / "plugins/environments/README.md"}
"""Pages with commands for packages that are not installed; tests/test_plugins.py and the plugin's own tests read these.
"""
PAPERS_FILE = ROOT / "docs/papers.md"
"""Page that is read last, so that a command on two pages is listed under the other page."""
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(
        {*(ROOT / "docs").rglob("*.md"), *(ROOT / "plugins").glob("*/*.md")} - PAGES_OF_OTHER_PACKAGES - {PAPERS_FILE}
    ),
    PAPERS_FILE,
)
COMMAND_PATTERN = re.compile(rf"(?:plumbline |python -m jobs\.)(?P<job>{'|'.join(JOBS)})\b(?!-)(?P<rest>[^\n`;]*)")
OPTIONAL_ARGUMENT_PATTERN = re.compile(r"(?<= )\[(\S+=\S+?)(?: \| [^]]*)?\](?= |$)")
"""Pattern of an optional part of a command in brackets; if there are alternatives, it captures only the first."""
REDIRECTION_PATTERN = re.compile(r" \d?> \S+| \|\| .*")
"""Pattern of the end of a command line that is not checked: a redirected output, or a command after `||`."""
UNDERSTOOD_MESSAGE_PATTERN = re.compile(r"is required[ ;]|expected one input")
"""Pattern of error messages accepted for incomplete commands: those with `...`, or with only the name of a job."""


def read_commands_by_page() -> dict[str, list[str]]:
    """Return the commands by page, with continued lines joined and comments removed.

    A command that occurs on several pages is only listed under the first. Commands that end with `--help` or
    `--help-all` are left out.
    """
    pages: dict[str, str] = {}
    for page in PAGES:
        text = re.sub(r" *\\\n *", " ", page.read_text())
        for found in COMMAND_PATTERN.finditer(text):
            command = f"{found['job']} {found['rest'].split(' #')[0].strip()}".strip()
            if not command.endswith(("--help", "--help-all")):
                pages.setdefault(command, name_page(page))
    return {
        name_page(page): [command for command, first in pages.items() if first == name_page(page)] for page in PAGES
    }


def name_page(page: Path) -> str:
    """Return a page's path relative to the root, because pages in several folders have the same file name."""
    return str(page.relative_to(ROOT))


def list_commands() -> list[str]:
    return [command for commands in read_commands_by_page().values() for command in commands]


def list_command_parameters() -> Iterator[Any]:
    """Yield the commands; those that only docs/papers.md contains are slow tests (make docs, make slow)."""
    for page, commands in read_commands_by_page().items():
        for command in commands:
            yield pytest.param(command, marks=[pytest.mark.slow] if page == name_page(PAPERS_FILE) else [])


def split_words(command: str) -> list[str]:
    plain = OPTIONAL_ARGUMENT_PATTERN.sub(
        r"\1", REDIRECTION_PATTERN.sub("", re.sub(r"(?<!\?P)<[a-z ]+>", "SOMETHING", command))
    )
    return [word for word in shlex.split(plain) if word != "..."]


@pytest.mark.parametrize("command", [*list_command_parameters()])
def test_every_command_on_the_pages_is_valid(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHT_HOOK", "https://example.org/hook")
    job, *arguments = split_words(command)
    code = run_job(get_command(job), lambda config: 0, arguments)
    said = capsys.readouterr().err
    partial = "..." in command or not arguments
    assert code == 0 or (partial and UNDERSTOOD_MESSAGE_PATTERN.search(said)), said


def test_the_pages_show_many_commands_and_every_job() -> None:
    jobs = {command.split()[0] for command in list_commands()} | {"reproduce"}  # also run by make itself
    assert len(list_commands()) > 80
    assert jobs >= set(JOBS)

"""Every command that README and docs tell is understood: its job, its keys, its choices and what they expect.

Those that need nothing but the embedded pack run, one after the other in one folder, as a reader would (slow). What
needs files of one's own, a bucket, a service or a GPU is left to the tests of its job, and so are jobs.serve and
jobs.view, which run until they are stopped.
"""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.command import Command, run_job

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
TOLD = re.compile(r"python -m jobs\.(?P<job>[a-z_]+)(?P<rest>[^\n`;]*)")
OPTIONAL = re.compile(r"(?<= )\[(\S+=\S+)\](?= |$)")
"""A part of a command that may be left out, in brackets of its own."""
REDIRECTED = re.compile(r" \d?> \S+")
UNDERSTOOD = re.compile(r"is required[ ;]|You must specify|expected one input")
"""What is said of a command that leaves something out, where the page does so with `...` or shows the job alone."""

OF_THE_PACK = re.compile(
    r"sweep=(shapes|gecko_ablation)|run=latest|store=(store|STORE)|/tmp/nights|protocol=shapes|scores=store/runs|"
    r"prompts=assets/|^report |output=store/"
)
ELSEWHERE = re.compile(
    r"s3://|\.\.\.|ratings\.csv|^(publish|serve|view)|NIGHT_HOOK|--watch|format=lance|checkpoints=|reward=METRIC"
)


def told() -> list[str]:
    """The commands as they stand, lines that go on joined, remarks left out."""
    commands: dict[str, None] = {}
    for page in PAGES:
        text = re.sub(r" *\\\n *", " ", page.read_text())
        for found in TOLD.finditer(text):
            commands[f"{found['job']} {found['rest'].split(' #')[0].strip()}".strip()] = None
    return [command for command in commands if not command.endswith("--help")]


def words(command: str) -> list[str]:
    plain = OPTIONAL.sub(r"\1", REDIRECTED.sub("", re.sub(r"(?<!\?P)<[a-z ]+>", "SOMETHING", command)))
    return [word for word in shlex.split(plain) if word != "..."]


@pytest.mark.parametrize("command", told())
def test_a_command_of_the_pages_is_understood(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIGHT_HOOK", "https://example.org/hook")
    job, *arguments = words(command)
    asked: Command = importlib.import_module(f"jobs.{job}").COMMAND
    code = run_job(asked, lambda config: 0, arguments)
    said = capsys.readouterr().err
    partial = "..." in command or not arguments
    assert code == 0 or (partial and UNDERSTOOD.search(said)), said


def of_the_pack() -> list[str]:
    """The commands with arguments that need the pack alone, in the order of the pages."""
    commands = [command for command in told() if " " in command]
    return [command for command in commands if OF_THE_PACK.search(command) and not ELSEWHERE.search(command)]


def first_run(folder: Path) -> str:
    return min(path.name for path in (folder / "store/runs").glob("2*"))


@pytest.mark.slow
def test_the_commands_about_the_pack_run_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    failed = []
    for command in of_the_pack():
        here = re.sub(r"<run id>|\b(RUN|ID)\b", lambda found: first_run(tmp_path), command)
        here = here.replace("/tmp/", f"{tmp_path}/").replace("STORE", "store").replace("OUT", "data/out")
        job, *arguments = words(here)
        ran = subprocess.run(
            [sys.executable, "-m", f"jobs.{job}", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        print(f"{ran.returncode} {command}")
        if ran.returncode != 0:
            failed.append(f"{command}: {ran.returncode}\n{ran.stdout[-500:]}{ran.stderr[-1500:]}")
    assert not failed, "\n\n".join(failed)


def test_the_pages_tell_many_commands_and_of_every_job() -> None:
    jobs = {command.split()[0] for command in told()} | {"reproduce"}  # by make
    assert len(told()) > 80 and len(of_the_pack()) > 35
    assert jobs >= {path.stem for path in (ROOT / "jobs").glob("*.py") if "COMMAND = Command(" in path.read_text()}

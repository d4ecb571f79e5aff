"""The core works without its plugins, and the command of a missing plugin names the package to install."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.jobs.table import PLUGIN_CHOICES, PLUGIN_JOBS
from plumbline.operators.base.extensions import PLUGINS_FOLDER
from tests.environment import ROOT

PLUGIN_NAMES = sorted(file.parent.name for file in PLUGINS_FOLDER.glob("*/__init__.py"))
CORE_COMMANDS_SCRIPT = """
import json, sys
from plumbline.jobs.__main__ import main
from plumbline.jobs.command import run_job
from plumbline.jobs.table import JOBS

assert main(["--help"]) == 0
for name, *words in json.loads(sys.argv[1]):
    code = run_job(JOBS[name].COMMAND, JOBS[name].main, words)
    assert code == 0, (name, code)
for name in JOBS:
    JOBS[name]
"""
"""Script that runs the commands in its argument, a JSON list of lists of words; each command must succeed."""
NIGHT_ARGUMENTS = ["nightly", "sweep=shapes", "limit=6", "metric=[clipscore,edge_density]", "cluster=here"]


def install_with_plugins(folder: Path, names: list[str]) -> dict[str, str]:
    """Install the core with only these plugins; return the environment of a process that uses this installation."""
    package = folder / "plumbline"
    package.mkdir()
    for part in (ROOT / "plumbline").iterdir():
        if part.name not in ("plugins", "__pycache__"):
            (package / part.name).symlink_to(part.resolve())
    (package / "plugins").mkdir()
    for name in ("__init__.py", *names):
        (package / "plugins" / name).symlink_to((PLUGINS_FOLDER / name).resolve())
    return os.environ | {"PYTHONPATH": str(folder)}


def run_core_commands(folder: Path, environment: dict[str, str]) -> str:
    """Run a sweep, a report, a nightly job, a reward export and a meta-evaluation; return their output."""
    store, shown = f"store={folder}/store", ["sweep=shapes", "limit=6"]
    commands = [
        ["sweep", *shown, "metric=[clipscore]", "cluster=here", store],
        ["sweep", *shown, "models=released", "--config"],
        ["report", store],
        [*NIGHT_ARGUMENTS, store],
        ["rewards", "format=pairs", "reward=clipscore", f"output={folder}/pairs", "held_out=0", store],
        ["metaeval", "protocol=shapes", f"output={folder}/judged", store],
        ["status", store],
    ]
    done = subprocess.run(
        [sys.executable, "-c", CORE_COMMANDS_SCRIPT, json.dumps(commands)], env=environment, cwd=folder,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_refusal(folder: Path, environment: dict[str, str], *words: str) -> str:
    """Run a command that fails, and return its error message, which must be a single line."""
    refused = subprocess.run(
        [sys.executable, "-m", "plumbline.jobs", *words], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert refused.returncode == 64
    (line,) = refused.stderr.splitlines()
    return line


def test_the_core_works_without_any_plugin_and_says_what_a_missing_command_needs(tmp_path: Path) -> None:
    environment = install_with_plugins(tmp_path, [])
    said = run_core_commands(tmp_path, environment)
    assert "plumbline sweep" in said and not any(f"  {job} " in said for job in PLUGIN_JOBS)
    for job, plugin in PLUGIN_JOBS.items():
        line = read_refusal(tmp_path, environment, job, "--help")
        assert line.startswith(f"error: {job}: a job of the plugin {plugin!r}, which is not installed; reinstall ")
    refused = subprocess.run(
        [sys.executable, "-m", "plumbline.jobs", *NIGHT_ARGUMENTS, f"store={tmp_path}/store", "nightly.gate=gate.yaml"],
        env=environment, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert refused.returncode == 1 and refused.stderr == (
        "error: nightly.gate: rules are a part of the plugin 'gates', which is not installed; reinstall plumbline-t2i, "
        "or restore the folder plugins/gates\n"
    )
    code = "import plumbline\ntry: plumbline.Evaluation\nexcept plumbline.ConfigError as error: print(error)"
    named = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert named.stdout == (
        "plumbline.Evaluation: a part of the plugin 'training_loop', which is not installed; reinstall plumbline-t2i, "
        "or restore the folder plugins/training_loop\n"
    )
    choices = ["metric=my_scorer:rate", "metrics.rate.environment={packages: [my-scorer]}"]
    assert read_refusal(tmp_path, environment, "score", f"images={tmp_path}", *choices) == (
        "error: metrics.rate.environment: a part of the plugin 'environments', which is not installed; reinstall "
        "plumbline-t2i, or restore the folder plugins/environments"
    )
    for group, plugin in PLUGIN_CHOICES.items():
        line = read_refusal(tmp_path, environment, "sweep", f"{group}=any", f"{group}.checkpoint=any")
        assert line.startswith(f"error: {group}=any: a choice of the plugin {plugin!r}, which is not installed; ")


@pytest.mark.slow
@pytest.mark.parametrize("name", PLUGIN_NAMES)
def test_the_core_and_the_other_plugins_work_if_one_plugin_is_missing(name: str, tmp_path: Path) -> None:
    said = run_core_commands(
        tmp_path, install_with_plugins(tmp_path, [other for other in PLUGIN_NAMES if other != name])
    )
    assert all((f"  {job} " in said) == (plugin != name) for job, plugin in PLUGIN_JOBS.items())


@pytest.mark.skipif(not PLUGIN_NAMES, reason="the plugins were removed")
def test_every_plugin_has_a_page_an_entry_and_tests() -> None:
    assert len(PLUGIN_NAMES) >= 5
    for name in PLUGIN_NAMES:
        folder = ROOT / "plugins" / name
        assert (folder / "README.md").is_file() and (folder / "entry_points.txt").is_file()
        assert [*folder.glob("tests/test_*.py")]
    assert set(PLUGIN_JOBS.values()) <= set(PLUGIN_NAMES)
    jobs = {file.stem: file.parts[-3] for file in (ROOT / "plugins").glob("*/jobs/*.py")}
    assert jobs == PLUGIN_JOBS
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE)
    listed = {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows}
    assert listed == {name: {job for job, plugin in PLUGIN_JOBS.items() if plugin == name} for name in PLUGIN_NAMES}

"""The command `plumbline` runs every job in the same way as `python -m jobs.NAME`."""

import os
import subprocess
import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest

from plumbline.jobs.__main__ import main
from plumbline.jobs.help import list_choice_names
from plumbline.jobs.table import JOBS, list_jobs
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.input_columns import InputColumnsConfig

ROOT = Path(__file__).parent.parent.parent
JOB_ENTRY = 'if __name__ == "__main__":\n    sys.exit(run_job('


def test_the_command_knows_every_job(capsys: pytest.CaptureFixture[str]) -> None:
    files = [file for folder in sys.modules["plumbline.jobs"].__path__ for file in Path(folder).glob("*.py")]
    assert set(JOBS) == {file.stem for file in files if JOB_ENTRY in file.read_text()}
    assert main([]) == 0
    told = capsys.readouterr().out
    assert "  plumbline score images=outputs  " in told
    lines = told.splitlines()[-len(JOBS) :]
    assert [line.split()[0] for line in lines] == list_jobs() and all(len(line.split()) > 3 for line in lines)


def test_a_job_gets_the_words_after_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["plumbline"])
    with pytest.raises(SystemExit) as ended:
        main(["status", "store=nowhere-at-all", "wach=true"])
    assert ended.value.code == 64
    assert "unknown config key 'wach'; did you mean watch?" in capsys.readouterr().err


def test_the_command_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"plumbline {version('plumbline-t2i')}\n"


def test_an_unknown_job_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweeep"]) == 64
    assert capsys.readouterr().err.startswith("error: sweeep: no job of that name; did you mean sweep")


@pytest.mark.parametrize(
    "typed, offered",
    [
        ("plumbline sco", {"score"}),
        (
            "plumbline sweep sweep=sha",
            {f"sweep={name}" for name in list_choice_names("sweep", None) if name[:3] == "sha"},
        ),
        ("plumbline ingest col", {"columns="} | {f"columns.{role}=" for role in InputColumnsConfig.__slots__}),
        ("plumbline gc sto", {"store=", "storage="} | {f"storage.{option.name}=" for option in fields(StorageConfig)}),
        ("plumbline score benchmark.columns.pro", {"benchmark.columns.prompt=", "benchmark.columns.prompt_id="}),
    ],
)
def test_completion_in_a_shell_offers_jobs_keys_and_choices(typed: str, offered: set[str], tmp_path: Path) -> None:
    """The test sends requests in the same way as argcomplete's shell functions."""
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": typed, "COMP_POINT": str(len(typed)), "COMP_TYPE": "9",
             "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "offered"), "_ARGCOMPLETE_IFS": "\n",
             "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "jobs"], cwd=ROOT, env=os.environ | asked, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert {word.strip() for word in (tmp_path / "offered").read_text().splitlines()} == offered

"""The command `plumbline` runs every job that there is, as `python -m jobs.NAME` does."""

import sys
from pathlib import Path

import pytest

from jobs.__main__ import JOBS, main

ENTRY = 'if __name__ == "__main__":\n    sys.exit(run_job('


def test_it_knows_every_job(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(sys.modules["jobs"].__path__[0])
    assert set(JOBS) == {file.stem for file in folder.glob("*.py") if ENTRY in file.read_text()}
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == [*JOBS] and all(len(line.split()) > 3 for line in lines)


def test_a_job_gets_the_words_after_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["plumbline"])
    with pytest.raises(SystemExit) as ended:
        main(["status", "store=nowhere-at-all", "wach=true"])
    assert ended.value.code == 64
    assert "unknown config key 'wach'; did you mean watch?" in capsys.readouterr().err


def test_a_job_that_there_is_not_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweeep"]) == 64
    assert capsys.readouterr().err.startswith("error: sweeep: no job of that name; did you mean sweep or serve? (")

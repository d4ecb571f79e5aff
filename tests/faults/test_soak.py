"""After a short soak on a real cluster, all tables equal those of undisturbed sweeps, and nothing is left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import ROOT
from tests.faults.driving import ORPHAN_SECONDS, wait_until
from tests.faults.hook import NOTES_VARIABLE
from tests.ray_head import find_marked_processes

SEED = 26
"""Seed that draws one sweep in a folder: a worker is killed, and a table of the run and a digest are damaged."""


@pytest.mark.slow
def test_a_short_soak_ends_in_the_undisturbed_tables_and_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "soak"
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.soak", str(SEED), "0", "--rounds", "1", "--folder", folder],
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["event"] == "summary"
    assert (lines[-1]["result"], lines[-1]["rounds"], lines[-1]["sweeps"]) == ("equal", 1, 1)
    assert wait_until(lambda: not find_marked_processes(NOTES_VARIABLE, str(folder / "notes")), ORPHAN_SECONDS)

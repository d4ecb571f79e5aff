"""Every benchmark begins and ends in a tiny size: what is wanted of speed and memory is for `make bench` to tell."""

import os
import re
import subprocess
import sys

import pytest

from tests.environment import ROOT

BENCHMARKS = ROOT / "tests/benchmarks"
SLOW = ("test_serve.py",)
COMMAND = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore")
ADDOPTS = "addopts=--import-mode=importlib --strict-markers"


def run_tiny(*files: str) -> str:
    """What pytest prints of the benchmarks in these files, which all succeed."""
    environment = {**os.environ, "BENCHMARKS": "tiny", "OMP_NUM_THREADS": "1"}
    command = [*COMMAND, *(f"tests/benchmarks/{file}" for file in files), "--override-ini", ADDOPTS, "-rp"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


def test_every_benchmark_begins_and_ends() -> None:
    files = sorted(path.name for path in BENCHMARKS.glob("test_*.py") if path.name not in SLOW)
    passed = re.findall(r"^PASSED tests/benchmarks/(\w+\.py)::", run_tiny(*files), re.MULTILINE)
    assert sorted(set(passed)) == files


@pytest.mark.slow
def test_every_benchmark_of_a_service_begins_and_ends() -> None:
    assert "PASSED" in run_tiny(*SLOW)

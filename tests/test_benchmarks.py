"""Every benchmark runs to completion at a tiny size; `make bench` measures speed and memory."""

import os
import re
import subprocess
import sys

import pytest

from tests.environment import ROOT

PYTEST_COMMAND = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore", "-rp")
ADDOPTS = "addopts=--import-mode=importlib --strict-markers"


@pytest.mark.slow
def test_every_benchmark_runs_to_its_end() -> None:
    environment = {**os.environ, "BENCHMARKS": "tiny", "OMP_NUM_THREADS": "1"}
    command = [*PYTEST_COMMAND, "tests/benchmarks", "--override-ini", ADDOPTS]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.findall(r"^PASSED tests/benchmarks/(\w+\.py)::", done.stdout, re.MULTILINE)
    assert set(passed) == {path.name for path in (ROOT / "tests/benchmarks").glob("test_*.py")}

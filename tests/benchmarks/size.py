"""The size of benchmarks: full, or tiny; a tiny benchmark runs only briefly and measures nothing."""

import io
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

ROOT = Path(__file__).parent.parent.parent
TINY = os.environ.get("BENCHMARKS") == "tiny"
HERE_OPTIONS: Sequence[str] = ("cluster=here",) if TINY else ()
"""Overrides that make a tiny sweep run in this process, so that it need not wait for workers; none at full size."""
RAY_FIXTURES = () if TINY else ("ray_cluster",)
"""Names of the fixtures for tests on Ray; at the tiny size, the tests run without Ray."""
T = TypeVar("T")


def choose_size(full: T, tiny: T) -> T:
    return tiny if TINY else full


def expect(holds: bool) -> None:
    """Assert that a target for speed or memory is reached, except at the tiny size, which measures nothing."""
    assert TINY or holds


def start_fresh_process() -> Executor:
    """Return a pool of one fresh process, or of one thread at the tiny size."""
    return ThreadPoolExecutor(1) if TINY else ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def run_module(module: str, *arguments: str, threads: int = 1) -> str:
    """Return the output of `python -m MODULE ...`; it runs in a separate process, or in this process if TINY."""
    if TINY:
        return _run_here(module, *arguments)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": f"{threads}"},
    )  # fmt: skip
    assert done.returncode == 0, f"{module}: exit code {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def read_output(benchmark: str, *arguments: str) -> Any:
    """Run a module of this folder, and return the JSON value in the last line of its output."""
    return json.loads(run_module(f"tests.benchmarks.{benchmark}", *arguments).splitlines()[-1])


def _run_here(module: str, *arguments: str) -> str:
    with redirect_stdout(io.StringIO()) as printed, patch.object(sys, "argv", [module, *arguments]):
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as ended:
            assert not ended.code, f"{module}: exit code {ended.code}\n{printed.getvalue()}"
    return printed.getvalue()


def list_one_row_arguments(place: str) -> list[str]:
    """Return the arguments of a sweep with one row per shard; the benchmark is in the subfolder `bench` of `place`."""
    return [
        "sweep=shapes",
        "metric=[vqascore,clipscore]",
        "shard_rows=1",
        "cluster.executor=ray",
        "benchmark.name=many",
        f"benchmark.prompts={place}/bench/prompts.parquet",
        f"benchmark.images={place}/bench/images",
        f"store={place}/store",
    ]

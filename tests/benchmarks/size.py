"""In which size benchmarks run: in full, or tiny, where each begins and ends in a moment and measures nothing."""

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
HERE: Sequence[str] = ("cluster=here",) if TINY else ()
"""Overrides of a sweep: what takes a moment need not wait for workers."""
RAY = () if TINY else ("ray_cluster",)
"""The fixtures of what else runs on Ray."""
T = TypeVar("T")


def sized(full: T, tiny: T) -> T:
    """What a benchmark takes, in full size or tiny."""
    return tiny if TINY else full


def wanted(holds: bool) -> None:
    """Asserts what is wanted of speed and memory, which a tiny size does not tell."""
    assert TINY or holds


def fresh_process() -> Executor:
    """A process that has imported nothing; where nothing is measured, a thread."""
    return ThreadPoolExecutor(1) if TINY else ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def run_module(module: str, *arguments: str, threads: int = 1) -> str:
    """Return what `python -m MODULE ...` prints, in a process of its own; in this one where TINY."""
    if TINY:
        return _printed_here(module, *arguments)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": f"{threads}"},
    )  # fmt: skip
    assert done.returncode == 0, f"{module}: exit code {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def said_by(benchmark: str, *arguments: str) -> Any:
    """The JSON in the last line that a module of this folder prints."""
    return json.loads(run_module(f"tests.benchmarks.{benchmark}", *arguments).splitlines()[-1])


def _printed_here(module: str, *arguments: str) -> str:
    with redirect_stdout(io.StringIO()) as printed, patch.object(sys, "argv", [module, *arguments]):
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as ended:
            assert not ended.code, f"{module}: exit code {ended.code}\n{printed.getvalue()}"
    return printed.getvalue()


def one_row_shards(place: str) -> list[str]:
    """How a sweep over a benchmark in `bench` below a place is called, whose shards have one row."""
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

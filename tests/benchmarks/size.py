"""In which size benchmarks run: in full, or tiny, where each begins and ends in a moment and measures nothing."""

import io
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar
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


def run_python(*arguments: str) -> str:
    """What `python -m MODULE ...` or `python -c CODE ...` prints, in a process of its own; in this one where TINY."""
    if TINY:
        return _printed_here(*arguments)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return done.stdout


def _printed_here(kind: str, code: str, *arguments: str) -> str:
    with redirect_stdout(io.StringIO()) as printed, patch.object(sys, "argv", [code, *arguments]):
        try:
            if kind == "-m":
                runpy.run_module(code, run_name="__main__")
            else:
                exec(code, {"__name__": "__main__"})
        except SystemExit as ended:
            assert not ended.code, f"{code}: exit code {ended.code}\n{printed.getvalue()}"
    return printed.getvalue()

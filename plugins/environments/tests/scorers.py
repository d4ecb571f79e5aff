"""Small scorers for tests: a package in two versions, a file of failing functions, and arguments that select them."""

from pathlib import Path

import pandas as pd

from tests.bench_of import Bench, read_prompt_rows
from tests.commands import find_newest_run_folder

N_PROMPTS = 9
TEXT_BY_PROMPT = {prompt["prompt_id"]: str(prompt["text"]) for prompt in read_prompt_rows(N_PROMPTS)}
SCORER_CODE = """
def rate(image, prompt):
    return {value} + len(prompt) / 1000

def three(a, b, c): ...
"""
BAD_SCORERS_CODE = """
import os, signal, sys, time
import plumbline

def dies(image, prompt):
    if len(prompt) % 3 == 0:
        print("out of luck", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return len(prompt)

def always(image, prompt):
    os._exit(3)

@plumbline.metric(score_range=(0, 50), better="lower", batches=True)
def batched(images, prompts):
    if any(len(prompt) % 3 == 0 for prompt in prompts):
        raise KeyError("three")
    return [{0: "7", 1: None}.get(len(prompt) % 4, float(len(prompt))) for prompt in prompts]

def talks(image, prompt):
    for pipe in range(3, 20):
        try:
            os.write(pipe, b"\\x7f\\xff\\xff\\xff")
        except OSError:
            pass
    return 1.0

@plumbline.metric(batches=True)
def floods(images, prompts):
    return ["x"] * 1_000_000

LOST = []

def loses(image, prompt):
    LOST.extend([True] * (len(prompt) % 3 == 0))
    if LOST:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return len(prompt)

def hangs(image, prompt):
    time.sleep(3600)
"""


def choose(name: str, folder: Path, *packages: str, timeout: float = 60) -> str:
    """Return the command-line argument that gives the metric `name` an environment with these packages."""
    listed = ",".join(f'"{package}"' for package in packages)
    return f"metrics.{name}.environment={{packages: [{listed}], folder: {folder}, timeout: {timeout}}}"


def read_scores(bench: Bench) -> pd.DataFrame:
    return pd.read_parquet(find_newest_run_folder(bench.store.place.url) / "scores.parquet")

"""Measures the CPU time and memory for the viewer's pages of a run, and the time to sort its table with pandas.

Runs in a separate process: python -m tests.benchmarks.pages_of_scores FOLDER MIDDLE
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.store.store import Store
from plumbline.plugins.viewer.browser import StoreBrowser
from plumbline.plugins.viewer.run_database import Database, RunRows, WantedRows
from tests.benchmarks.scripted_sweep import read_peak_megabytes


def time_call(call: Callable[[], object]) -> float:
    """Return the CPU seconds that a call takes."""
    began = time.process_time()
    call()
    return time.process_time() - began


def list_pages(middle: int) -> dict[str, WantedRows]:
    """Return the pages to measure, keyed by a description; `middle` is the middle prompt's number."""
    wanted: dict[str, dict[str, Any]] = {
        "first page": {},
        "lowest": {"sort": "lowest"},
        "a generator's lowest": {"generator": "cobalt", "sort": "lowest"},
        "the middle of the highest": {"sort": "highest"},
        "a range": {"low": 0.5, "high": 0.5 + 5 / middle},
        "a skill's highest": {"skill": "negation", "sort": "highest"},
        "words": {"words": f"TEAPOT {middle}"},
        "an id": {"words": f"cobalt-{middle:07d}"},
    }
    return {name: WantedRows(**one) for name, one in wanted.items()}


def read_page(rows: RunRows, name: str, wanted: WantedRows) -> None:
    first = rows.count(wanted) // 2 // 50 * 50 if "middle" in name else 0
    assert rows.find(wanted, first, 50)


def read_with_pandas(folder: Path, run_id: str) -> None:
    scores = pd.read_parquet(folder / "store/runs" / run_id / "scores.parquet")
    texts = pd.read_parquet(folder / "prompts.parquet", columns=["prompt_id", "text"])
    scores.merge(texts, on="prompt_id", how="left").sort_values("score").head(50)


def measure(folder: Path, middle: int) -> dict[str, Any]:
    run_id = (folder / "store/runs/latest").read_text().strip()
    browser = StoreBrowser(
        Store(StorageConfig().locate(str(folder / "store"))), Database(Path(tempfile.mkdtemp()), 1000)
    )
    took = {"opening": time_call(lambda: browser.open(run_id).result())}
    rows = browser.open(run_id).result().rows
    for name, wanted in list_pages(middle).items():
        took[name] = min(time_call(lambda name=name, wanted=wanted: read_page(rows, name, wanted)) for _ in range(3))
    of_prompt = f"prompt-{middle:06d}"
    apart = WantedRows(metric="clipscore", against="clipscore_2")
    took["what two metrics rank differently"] = time_call(lambda: read_page(rows, "", apart))
    took["its second page"] = time_call(lambda: rows.find(apart, 50, 50))
    took["a prompt with its ranks"] = min(time_call(lambda: rows.read_prompt_scores(of_prompt, 600)) for _ in range(3))
    peak = read_peak_megabytes()
    browser.close()
    return {"took": took, "whole": time_call(lambda: read_with_pandas(folder, run_id)), "peak": peak}


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))

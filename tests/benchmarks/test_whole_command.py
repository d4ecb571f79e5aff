"""A complete `jobs.sweep` on S3, from start to report, is faster than bare loops on the same machine."""

import json
import os
import threading
import time
from collections.abc import Sequence

import fsspec
import pytest

from tests.benchmarks.photographs import write_photographs
from tests.benchmarks.size import HERE_OPTIONS, choose_size, expect, run_module
from tests.s3 import S3Server

N_CORES = len(os.sched_getaffinity(0))
N_GENERATORS, N_PROMPTS, IMAGE_SIDE = choose_size((6, 500, 640), (1, 4, 64))
METRICS_BY_SWEEP = choose_size([["clipscore"], ["vqascore"], ["clipscore", "vqascore"]], [["clipscore"]])
"""Metrics of each sweep; the last sweep has enough calls for Ray."""
MIN_SPEED = 1.3
"""Minimum speed relative to bare loops in sequence."""
MAX_FIRST_SECONDS = 20.0
"""Maximum seconds until the first image scores are in the store."""


@pytest.fixture(scope="module")
def bench(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, fs = tmp_path_factory.mktemp("bench"), s3_server.filesystem()
    write_photographs(folder, N_GENERATORS, N_PROMPTS, IMAGE_SIDE)
    fs.mkdir("whole-command")
    fs.put(f"{folder}/images/", "whole-command/images/", recursive=True)
    fs.put(f"{folder}/prompts.parquet", "whole-command/prompts.parquet")
    return "s3://whole-command"


def time_bare_loops(metric: str, bench: str) -> float:
    began = time.monotonic()
    place = (f"{bench}/prompts.parquet", f"{bench}/images")
    printed = run_module("tests.benchmarks.bare_scores", metric, *place, threads=N_CORES)
    assert json.loads(printed.splitlines()[-1])["images"] == N_GENERATORS * N_PROMPTS
    return time.monotonic() - began


def time_sweep(metrics: Sequence[str], bench: str, store: str) -> tuple[float, float]:
    """Return the duration of a sweep, and the time until its first image cell is in the store, both in seconds."""
    line = [
        "sweep=own_images", "models=shapes", f"metric=[{','.join(metrics)}]", f"store={store}",
        f"benchmark.prompts={bench}/prompts.parquet", f"benchmark.images={bench}/images", *HERE_OPTIONS,
    ]  # fmt: skip
    found = threading.Event()
    first: list[float] = []

    def poll() -> None:
        fs = fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)
        while not found.wait(0.2):
            if any(fs.glob(f"{store}/{stage}/*/*/*.parquet") for stage in ("answers", "similarities")):
                first.append(time.monotonic() - began)
                return

    began = time.monotonic()
    looker = threading.Thread(target=poll, daemon=True)
    looker.start()
    run_module("jobs.sweep", *line, threads=N_CORES)
    whole = time.monotonic() - began
    found.set()
    looker.join()
    return whole, (first or [whole])[0]


@pytest.mark.parametrize("metrics", METRICS_BY_SWEEP, ids="+".join)
def test_a_whole_sweep_on_s3_is_faster_than_bare_loops(
    metrics: list[str], bench: str, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = [time_bare_loops(metric, bench) for metric in metrics]
    whole, first = time_sweep(metrics, bench, f"{bucket}/store")
    with capsys.disabled():
        print(
            f"\n{N_GENERATORS * N_PROMPTS} images of {IMAGE_SIDE} px on S3, {N_CORES} cores, "
            f"{' and '.join(metrics)}: bare loops take {sum(bare):.0f} s, the whole sweep {whole:.0f} s: it is "
            f"{sum(bare) / whole:.2f} times as fast ({MIN_SPEED} wanted); first scores after {first:.0f} s"
        )
    expect(sum(bare) / whole >= MIN_SPEED)
    expect(first < MAX_FIRST_SECONDS)

"""The number of requests that a sweep makes to S3 is bounded, because S3 limits the rate per prefix."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import fsspec
import pytest

from plumbline.jobs import sweep
from plumbline.pipelines.ingest import draft_workers
from plumbline.pipelines.ingest.ingest import ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import make_sweep_config, read_image_rows, read_prompt_rows, write_rows
from tests.benchmarks.size import choose_size
from tests.benchmarks.small_images import write_tars
from tests.faults.proxy import FaultProxy

METRICS = ("vqascore", "clipscore")
N_CELLS_PER_SHARD = 2 + len(METRICS)
"""Cells per image shard: answers, similarities, and the scores of both metrics."""
N_FEW_SHARDS, N_MANY_SHARDS = choose_size((2, 10), (1, 2))
"""Numbers of shards of four images."""
N_WRITES_PER_CELL = 1
"""Number of writes per cell."""
MAX_READS_PER_CELL = 2
"""Maximum number of reads per cell, including reads of its source and its dependencies, and reads for its run."""
MAX_ADDED_REQUESTS = 2
"""Maximum number of additional requests for reading a longer list of shards."""


def test_a_cell_takes_one_write_and_an_unchanged_night_reads_no_cell(
    proxy: FaultProxy, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few, many = (
        count_sweep_requests(proxy, tmp_path / str(shards), f"{bucket}/{shards}", shards)
        for shards in (N_FEW_SHARDS, N_MANY_SHARDS)
    )
    shard = {kind: (count - few[0][kind]) / (N_MANY_SHARDS - N_FEW_SHARDS) for kind, count in many[0].items()}
    with capsys.disabled():
        print(f"\nan images shard of {N_CELLS_PER_SHARD} cells: {describe_counts(shard)}")
        print(f"a run of {N_FEW_SHARDS} shards: {describe_counts(few[0])}")
        print(
            f"a night without new images: {describe_counts(few[1])} with {N_FEW_SHARDS} shards, "
            f"{describe_counts(many[1])} with {N_MANY_SHARDS}"
        )
    assert shard["PUT"] == N_CELLS_PER_SHARD * N_WRITES_PER_CELL
    assert shard["GET"] <= N_CELLS_PER_SHARD * MAX_READS_PER_CELL
    assert not shard["HEAD"], "every GET response already has the ETag that identifies a file"
    assert many[1].total() <= few[1].total() + MAX_ADDED_REQUESTS


def test_an_ingest_takes_the_same_number_of_requests_for_every_further_tar(
    proxy: FaultProxy,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(draft_workers, "RAY_START_DELAY", math.inf)
    few, many = (
        count_ingest_requests(proxy, tmp_path / str(tars), f"{bucket}/{tars}", tars)
        for tars in (N_FEW_SHARDS, N_MANY_SHARDS)
    )
    tar = {kind: (count - few[kind]) / (N_MANY_SHARDS - N_FEW_SHARDS) for kind, count in many.items()}
    with capsys.disabled():
        print(
            f"\na tar of 40 images, one shard: {describe_counts(tar)}; "
            f"an ingest of {N_FEW_SHARDS} of them: {describe_counts(few)}"
        )
    assert tar["PUT"] == 2, "the shard, and the record that the tar was read completely"
    assert tar["GET"] + tar["HEAD"] <= 2 * MAX_READS_PER_CELL


def count_ingest_requests(proxy: FaultProxy, folder: Path, bucket: str, tars: int) -> Counter[str]:
    write_tars(folder / "in", 40 * tars, 40)
    fsspec.filesystem("s3", use_listings_cache=False).put(f"{folder}/in/", f"{bucket}/in/", recursive=True)
    config = IngestConfig(output=f"{bucket}/out", generator="sdxl", tars=f"{bucket}/in")
    return count_requests(proxy, lambda: ingest(config, lambda record: None).exit_code)


def count_sweep_requests(
    proxy: FaultProxy, folder: Path, bucket: str, shards: int
) -> tuple[Counter[str], Counter[str]]:
    """Return the number of requests by kind, for a new sweep over `shards` shards and for a repetition of this sweep.

    The first counts include planning and running the sweep; when it is repeated, all scores and the report exist.
    """
    write_rows(folder / "prompts.parquet", read_prompt_rows(4 * shards), row_group=4 * N_MANY_SHARDS)
    write_rows(folder / "images/atlas/00000.parquet", read_image_rows("atlas", 4 * shards), row_group=4)
    fsspec.filesystem("s3", use_listings_cache=False).put(f"{folder}/", f"{bucket}/bench/", recursive=True)
    config = make_sweep_config(f"{bucket}/bench", f"{bucket}/store", f"metric=[{','.join(METRICS)}]")
    computed = count_requests(proxy, lambda: run_sweep(plan_sweep(config), lambda progress: None).exit_code)
    assert sweep.main(config) == 0  # its report reads some images of every run
    return computed, count_requests(proxy, lambda: sweep.main(config))


def count_requests(proxy: FaultProxy, call: Callable[[], int]) -> Counter[str]:
    """Return the number of requests that a call makes, by kind; the call must return 0.

    Heartbeats are left out, because their number depends on time.
    """
    before = len(proxy.requests)
    assert call() == 0
    return Counter(find_request_kind(request) for request in proxy.requests[before:] if "/sweeps/" not in request)


def find_request_kind(request: str) -> str:
    """Return the HTTP method of a request, or LIST if the request lists a folder."""
    method, target, _ = request.split()
    return "LIST" if "list-type" in parse_qs(urlsplit(target).query) else method


def describe_counts(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{count:g} {kind}" for kind, count in sorted(counts.items()) if count)

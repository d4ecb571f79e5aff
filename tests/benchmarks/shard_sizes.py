"""Compares sweeps over many small rows on S3: shards of 256 rows, and shards of the size that a sweep chooses.

The objects, requests and bytes that a sweep exchanges with a real S3 server are counted, and CPU time is measured.

python -m tests.benchmarks.shard_sizes [ROWS] [SHARD_ROWS]

SHARD_ROWS replaces the size that the second sweep would choose.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import make_sweep_config, read_prompt_rows, write_rows
from tests.benchmarks.small_images import encode_images
from tests.benchmarks.test_requests import find_request_kind
from tests.faults.proxy import FaultProxy, run_proxy
from tests.s3 import run_server

ROW_GROUP_SIZE, N_PROMPTS, AT_ONCE = 256, 256, 16_384
COLUMNS = (
    "rows of a shard", "objects a stage", "kB of one: statistics and scores", "PUT", "GET", "HEAD", "LIST", "GB read",
    "MB written", "CPU s",
)  # fmt: skip
METRIC_NAME = "edge_density"
"""A metric that decodes its images but calls no model."""


def write_images(path: Path, count: int) -> None:
    """Write a Parquet file of `count` rows, whose images are 64x64 JPEG files."""
    files, ids = encode_images(), [row["prompt_id"] for row in read_prompt_rows(N_PROMPTS)]
    schema = pa.schema([("image_id", pa.string()), ("prompt_id", pa.string()), ("image", pa.binary())])
    path.parent.mkdir(parents=True)
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for first in range(0, count, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, count))
            columns = [
                [f"atlas-{number:09d}" for number in numbers],
                [ids[number % N_PROMPTS] for number in numbers],
                [files[number % len(files)] for number in numbers],
            ]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP_SIZE)


def measure_sweep(proxy: FaultProxy, bucket: str, name: str, word: str) -> str:
    """Run a sweep over the images with a new store; return a table row with its requests, bytes and CPU time."""
    requests, sent = len(proxy.requests), Counter(proxy.bytes)
    began = time.process_time()
    planned = plan_sweep(make_sweep_config(f"{bucket}/bench", f"{bucket}/{name}", f"metric=[{METRIC_NAME}]", word))
    assert run_sweep(planned, lambda event: None).exit_code == 0
    spent = time.process_time() - began
    kinds = Counter(map(find_request_kind, proxy.requests[requests:]))
    files = fsspec.filesystem("s3", use_listings_cache=False)
    cells = [
        [entry["size"] for entry in files.find(f"{bucket}/{name}/{stage}", detail=True).values()]
        for stage in ("image_statistics", "scores")
    ]
    sizes = " and ".join(f"{sum(of_stage) / len(of_stage) / 1e3:,.0f}" for of_stage in cells)
    counts = " | ".join(f"{kinds[kind]:,}" for kind in ("PUT", "GET", "HEAD", "LIST"))
    moved = proxy.bytes - sent
    return (
        f"| {planned.config.shard_rows:,} | {len(cells[0]):,} | {sizes} | {counts} | "
        f"{moved['GET'] / 1e9:.2f} | {moved['PUT'] / 1e6:.1f} | {spent:.0f} |"
    )


def main(count: int, decided: str) -> None:
    with run_server() as server, run_proxy(proxy := FaultProxy(server, seed=0, share=0.0)) as endpoint:
        os.environ |= server.environment() | {"AWS_ENDPOINT_URL": endpoint}
        server.filesystem().mkdir("rows")
        with tempfile.TemporaryDirectory() as folder:
            write_rows(Path(folder) / "prompts.parquet", read_prompt_rows(N_PROMPTS))
            write_images(Path(folder) / "images/atlas/00000.parquet", count)
            fsspec.filesystem("s3", use_listings_cache=False).put(f"{folder}/", "s3://rows/bench/", recursive=True)
        print(f"{count:,} images of 64x64 pixels in row groups of {ROW_GROUP_SIZE}, scored by {METRIC_NAME}\n")
        print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
        for name, word in (("before", "shard_rows=256"), ("now", f"shard_rows={decided}")):
            print(measure_sweep(proxy, "s3://rows", name, word), flush=True)


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given else 1_000_000, *(given[1:] or ["null"]))

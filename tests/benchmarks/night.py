"""Measures nightly sweeps over many cells and image files on S3: requests, CPU seconds and memory.

python -m tests.benchmarks.night CELLS FILES

The cells have no rows, because planning and nightly sweeps without new images read no rows. The rest is real.
"""

import io
import itertools
import math
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from urllib3 import connection_from_url

from plumbline.pipelines.sweeps.unchanged_run import write_inputs_digest
from tests.bench_of import read_image_rows, read_prompt_rows
from tests.benchmarks.size import ROOT, list_one_row_arguments
from tests.benchmarks.test_requests import describe_counts, find_request_kind
from tests.benchmarks.test_scale import RUN_ID, plan_overrides, read_peak_memory, write_existing_run
from tests.faults.proxy import FaultProxy, run_proxy
from tests.s3 import S3Server, run_server

N_GENERATORS = 10
N_CELLS_PER_SHARD = 4
"""Cells over images for VQAScore and CLIPScore: answers, similarities, and the scores of both."""
BUCKET = "night"
SWEEP_ARGUMENTS = list_one_row_arguments(f"s3://{BUCKET}")
"""Arguments of a sweep over the image files in the bucket, with one row per shard."""
WRITER_THREADS = 8


class Uploader:
    """Client that uploads objects through the server's own interface: without signatures, and ten times as fast."""

    def __init__(self, server: S3Server) -> None:
        self.filer = connection_from_url(server.filer, maxsize=WRITER_THREADS)

    def write(self, path: str, content: bytes) -> None:
        answer = self.filer.request("PUT", f"/buckets/{BUCKET}/{quote(path)}", body=content)
        assert answer.status in (200, 201), (path, answer.status, answer.data)

    def write_all(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Write each (path, content) as an object.

        At most 10,000 objects are submitted at a time, because a pool keeps all its inputs in memory.
        """
        with ThreadPoolExecutor(WRITER_THREADS) as pool:
            remaining = iter(files)
            while some := list(itertools.islice(remaining, 10_000)):
                list(pool.map(lambda file: self.write(*file), some))


def make_parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=1)
    return sink.getvalue()


def make_image_files(shards: int, files: int) -> Iterable[tuple[str, bytes]]:
    """Yield the files of all generators; they contain `shards` rows, and each row is a shard."""
    row = {**read_image_rows("atlas", 1)[0], "image": b""}
    for file in range(files):
        rows = range(file * shards // files, (file + 1) * shards // files)
        content = make_parquet([{**row, "image_id": f"image-{number}"} for number in rows] or [row])
        yield f"bench/images/generator-{file % N_GENERATORS}/{file:06d}.parquet", content


class JobCost(NamedTuple):
    """Measured cost of one job, which ran in a separate process."""

    what: str
    requests: Counter[str]
    seconds: float
    """CPU seconds."""
    megabytes: float
    """Peak memory in MB."""

    def format_row(self) -> str:
        requests = f"{self.requests.total():,} ({describe_counts(self.requests)})"
        spent = "| |" if math.isnan(self.seconds) else f"| {self.seconds:.1f} s | {self.megabytes:.0f} MB |"
        return f"| {self.what} | {requests} {spent}"


def measure_job(label: str, proxy: FaultProxy, job: str, *line: str) -> JobCost:
    """Return the requests, CPU seconds and memory of a job, which runs in a separate process."""
    before, seen, peak, waiting = os.times(), len(proxy.requests), 0.0, threading.Event()
    process = subprocess.Popen([sys.executable, "-m", job, *line], cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(
            peak, read_peak_memory(process.pid)
        )  # at its end, the kernel would report the peak of a larger parent
        waiting.wait(0.1)
    assert process.returncode == 0, f"{job}: exit code {process.returncode}"
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return JobCost(label, Counter(map(find_request_kind, proxy.requests[seen:])), seconds, peak)


def measure_nights(server: S3Server, proxy: FaultProxy, cells: int, files: int) -> Iterator[JobCost]:
    """Yield the costs of the first plan (requests only), a night with nothing new, and a plan after one change."""
    uploads = Uploader(server)
    uploads.write("bench/prompts.parquet", make_parquet(read_prompt_rows(8)))
    uploads.write_all(make_image_files(cells // N_CELLS_PER_SHARD, files))
    sweep = plan_overrides(SWEEP_ARGUMENTS)
    held = f"{len(sweep.plan.cells):,} cells of {len(sweep.sources.image_shards):,} shards"
    yield JobCost(
        f"the first plan, of {held}: it opens every file",
        Counter(map(find_request_kind, proxy.requests)),
        math.nan,
        math.nan,
    )
    uploads.write_all((f"store/{cell.path}", b"-") for cell in sweep.plan.cells)
    write_existing_run(sweep)
    write_inputs_digest(sweep, RUN_ID)
    yield measure_job("a night with nothing new", proxy, "jobs.nightly", *SWEEP_ARGUMENTS)
    uploads.write_all(make_image_files(N_GENERATORS, 1))
    yield measure_job("a plan after one file has changed", proxy, "jobs.sweep", *SWEEP_ARGUMENTS, "dry_run=true")


def main(cells: int, files: int) -> None:
    with run_server() as server:
        os.environ.update(server.environment())
        server.filesystem().mkdir(BUCKET)
        proxy = FaultProxy(server, seed=0, share=0.0)
        with run_proxy(proxy) as endpoint:
            os.environ["AWS_ENDPOINT_URL"] = endpoint
            print("| what | requests | CPU | memory |\n|---|---|---|---|", flush=True)
            for night in measure_nights(server, proxy, cells, files):
                print(night.format_row(), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

"""A plan and a report read only small fractions of a benchmark on S3; the bytes are counted by a proxy."""

import random
import re
import time
from pathlib import Path

import fsspec
import pytest

from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import make_sweep_config, run_plan, save_scores
from tests.benchmarks.photographs import write_photographs
from tests.benchmarks.size import choose_size, expect
from tests.faults.proxy import FaultProxy

N_GENERATORS = choose_size(17, 2)
N_PROMPTS = choose_size(742, 8)
IMAGE_SIDE = choose_size(400, 64)
METRICS = ("vqascore", "clipscore")
MAX_PLAN_FRACTION, MAX_REPORT_FRACTION = 0.03, 0.03
"""Maximum fractions of the bytes of all images that a plan and a report may read."""
MAX_SECONDS = 10.0
"""Maximum CPU seconds for a report and for the proxy."""


def count_image_bytes(proxy: FaultProxy) -> int:
    """Return the number of bytes that have been read from the image files."""
    return sum(size for name, size in proxy.bytes.items() if name.startswith("GET ") and "/bench/images/" in name)


def test_plans_and_reports_read_little_of_the_images(
    proxy: FaultProxy, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photographs(tmp_path, N_GENERATORS, N_PROMPTS, IMAGE_SIDE)
    files = list((tmp_path / "images").glob("generator*/*.parquet"))
    size = sum(file.stat().st_size for file in files)
    fs = fsspec.filesystem("s3", use_listings_cache=False)
    fs.put(f"{tmp_path}/images/", f"{bucket}/bench/images/", recursive=True)
    fs.put(f"{tmp_path}/prompts.parquet", f"{bucket}/bench/prompts.parquet")
    config = make_sweep_config(f"{bucket}/bench", f"{bucket}/store", f"metric=[{','.join(METRICS)}]")

    before = count_image_bytes(proxy)
    planned = plan_sweep(config)
    plan = (count_image_bytes(proxy) - before) / size
    draws = random.Random(0)
    save_scores(planned, lambda generator, image: draws.random())
    done = run_plan(plan_sweep(config))

    before, began = count_image_bytes(proxy), time.process_time()
    written = write_report(planned.store, done.run_id)
    report, seconds = count_image_bytes(proxy) - before, time.process_time() - began
    page = fsspec.filesystem("s3", use_listings_cache=False).cat_file(written.url).decode()
    pictures = len(set(re.findall(r"data:image/webp;base64,[^\"')]+", page)))
    share = report / size
    with capsys.disabled():
        print(
            f"\n{N_GENERATORS * N_PROMPTS} images from {N_GENERATORS} generators, {size / 1e6:.0f} MB: the plan reads "
            f"{plan:.1%} of these bytes; the report with {pictures} pictures reads {share:.1%}, in {seconds:.1f} s of "
            "CPU, including the counting proxy"
        )
    expect(plan < MAX_PLAN_FRACTION)
    expect(share < MAX_REPORT_FRACTION)
    expect(seconds < MAX_SECONDS)

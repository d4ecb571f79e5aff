"""What planning and a report read of a benchmark on S3, as shares of its bytes, counted at the wire."""

import io
import random
import re
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image

from plumbline.pipelines.ingest.ingest import ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import run_plan, save_scores, sweep_config, write_rows
from tests.benchmarks.photographs import photograph
from tests.benchmarks.size import sized, wanted
from tests.faults.proxy import FaultProxy

GENERATORS = sized(17, 2)
PROMPTS = sized(742, 8)
SIDE = sized(400, 64)
METRICS = ("vqascore", "clipscore")
MOST_OF_A_PLAN, MOST_OF_A_REPORT = 0.03, 0.03
"""Shares of the bytes of all images."""
MOST_SECONDS = 10.0
"""CPU seconds for a report, and for the proxy beside it."""


def write_images(folder: Path) -> None:
    """Write the images of all generators as `jobs.ingest` does: each a different part of a few photographs."""
    draws = np.random.default_rng(0)
    photographs = [np.asarray(photograph(seed, SIDE)) for seed in range(8)]
    prompts = [{"prompt_id": f"p{number}", "text": f"scene {number}", "skills": []} for number in range(PROMPTS)]
    write_rows(folder / "prompts.parquet", prompts, row_group=PROMPTS)
    for number in range(GENERATORS):
        rows = []
        for prompt in prompts:
            shift = draws.integers(SIDE, size=2)
            picture = np.roll(photographs[draws.integers(8)], (int(shift[0]), int(shift[1])), (0, 1))
            Image.fromarray(picture).save(buffer := io.BytesIO(), "JPEG", quality=90)
            rows.append({"prompt_id": prompt["prompt_id"], "prompt": prompt["text"], "image": buffer.getvalue()})
        write_rows(folder / "tables" / f"{number}.parquet", rows, row_group=64)
        table = str(folder / "tables" / f"{number}.parquet")
        config = IngestConfig(output=str(folder / "images"), generator=f"generator{number}", table=table)
        assert ingest(config, lambda record: None).exit_code == 0


def read_of_images(proxy: FaultProxy) -> int:
    """Return how many bytes of the images' files were read so far."""
    return sum(size for name, size in proxy.bytes.items() if name.startswith("GET ") and "/bench/images/" in name)


def test_plans_and_reports_read_little_of_the_images(
    proxy: FaultProxy, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path)
    files = list((tmp_path / "images").glob("generator*/*.parquet"))
    size = sum(file.stat().st_size for file in files)
    fs = fsspec.filesystem("s3", use_listings_cache=False)
    fs.put(f"{tmp_path}/images/", f"{bucket}/bench/images/", recursive=True)
    fs.put(f"{tmp_path}/prompts.parquet", f"{bucket}/bench/prompts.parquet")
    config = sweep_config(f"{bucket}/bench", f"{bucket}/store", f"metric=[{','.join(METRICS)}]")

    before = read_of_images(proxy)
    planned = plan_sweep(config)
    plan = (read_of_images(proxy) - before) / size
    draws = random.Random(0)
    save_scores(planned, lambda generator, image: draws.random())
    done = run_plan(plan_sweep(config))

    before, began = read_of_images(proxy), time.process_time()
    written = write_report(planned.store, done.run_id)
    report, seconds = read_of_images(proxy) - before, time.process_time() - began
    page = fsspec.filesystem("s3", use_listings_cache=False).cat_file(written.url).decode()
    pictures = len(set(re.findall(r"data:image/webp;base64,[^\"')]+", page)))
    share = report / size
    with capsys.disabled():
        print(
            f"\n{GENERATORS * PROMPTS} images of {GENERATORS} generators, {size / 1e6:.0f} MB: plan {plan:.1%} of it, "
            f"report with {pictures} pictures {share:.1%}, in {seconds:.1f} s of CPU with the counting proxy's"
        )
    wanted(plan < MOST_OF_A_PLAN)
    wanted(share < MOST_OF_A_REPORT)
    wanted(seconds < MOST_SECONDS)

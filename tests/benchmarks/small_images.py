"""Measures an ingest of many small images from tars that is killed halfway, resumed, and then run again.

The output is JSON: python -m tests.benchmarks.small_images FOLDER IMAGES
"""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.benchmarks.size import ROOT
from tests.benchmarks.test_scale import list_processes, read_peak_memory

IMAGE_SIDE = 64
N_IMAGES_PER_TAR = 10_000
N_DIFFERENT_IMAGES = 512
"""Number of different images; the samples repeat them under different names."""


def encode_images() -> list[bytes]:
    """Return N_DIFFERENT_IMAGES JPEG files of 64x64 pixels: a smooth gradient with camera noise, about 1.3 kB each."""
    noise = np.random.default_rng(0)
    y, x = np.mgrid[:IMAGE_SIDE, :IMAGE_SIDE]
    images = []
    for index in range(N_DIFFERENT_IMAGES):
        smooth = np.stack([4 * x + index, 4 * y, 2 * (x + y)], -1)
        pixels = (smooth + noise.integers(-6, 6, smooth.shape)).clip(0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
        images.append(buffer.getvalue())
    return images


def write_tars(folder: Path, count: int, per_tar: int = N_IMAGES_PER_TAR) -> None:
    """Write `count` samples (an image and its prompt) to tars of `per_tar` samples; prompts repeat after 50,000."""
    images = encode_images()
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, count, per_tar):
        with tarfile.open(folder / f"{first // per_tar:05d}.tar", "w") as archive:
            for number in range(first, min(first + per_tar, count)):
                prompt = f"a prompt of some ten words about number {number % 50_000} of them".encode()
                for kind, content in (("jpg", images[number % N_DIFFERENT_IMAGES]), ("txt", prompt)):
                    header = tarfile.TarInfo(f"{number:08d}.{kind}")
                    header.size = len(content)
                    archive.addfile(header, io.BytesIO(content))


def run_ingest(folder: Path, until: int | None = None) -> dict[str, Any]:
    """Run the ingest to its end, or kill it once it has written `until` shards.

    Return its seconds, its exit code, the peak memory in MB of the driver and of the largest worker, and its last three
    lines of output.
    """
    command = [sys.executable, "-m", "jobs.ingest", f"tars={folder}/in", f"output={folder}/out", "generator=sdxl"]
    began, driver, workers = time.perf_counter(), 0.0, 0.0
    waiting = threading.Event()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        while process.poll() is None:
            waiting.wait(0.2)
            driver = max(driver, read_peak_memory(process.pid))
            workers = max([workers, *(read_peak_memory(pid) for pid in list_processes(process.pid, b"Drafter"))])
            if until is not None and len(list((folder / "out/sdxl").glob("*.parquet"))) >= until:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    seconds = time.perf_counter() - began
    last = (folder / "log").read_text().splitlines()[-3:]
    memory = {"driver_mb": round(driver), "worker_mb": round(workers)}
    return {"seconds": round(seconds, 1), "code": process.returncode, **memory, "said": last}


def count_shards(folder: Path) -> int:
    return len(list((folder / "out/sdxl").glob("*.parquet")))


def measure(folder: Path, count: int) -> dict[str, Any]:
    """Measure an ingest that is killed halfway, the ingest that continues it, and a repeated ingest.

    Return the measurements of the three runs, keyed by "killed", "resumed" and "again", with the number of shards after
    each run.
    """
    if not (folder / "in").exists():
        write_tars(folder / "in", count)
    killed = run_ingest(folder, until=count // 1024 // 2) | {"shards": count_shards(folder)}
    resumed = run_ingest(folder) | {"shards": count_shards(folder)}
    again = run_ingest(folder) | {"shards": count_shards(folder)}
    return {"killed": killed, "resumed": resumed, "again": again}


if __name__ == "__main__":
    print("\n" + json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2])), indent=1))

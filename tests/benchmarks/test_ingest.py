"""An ingest is shared among workers, and the driver's memory does not grow with the number of ids."""

import csv
import io
import math
import os
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from plumbline.pipelines.ingest import draft_workers
from plumbline.pipelines.ingest.ingest import ingest
from plumbline.pipelines.ingest.ingest_config import IngestConfig, WorkersConfig
from tests.benchmarks.size import RAY_FIXTURES, choose_size, expect, read_output

N_IMAGES = choose_size(1200, 72)
IMAGE_SIDE = choose_size(1024, 32)
N_IDS = choose_size(800_000, 2_000)
N_WORKERS = 2
MIN_SPEEDUP = 1.2
"""Minimum speed-up with two workers instead of one, on two cores shared with the driver and the disk."""


def encode_images(count: int, image_format: str) -> list[bytes]:
    """Return `count` image files of a smooth gradient with camera noise.

    At full size, a PNG file takes 1.7 MB and a JPEG file 0.16 MB.
    """
    noise = np.random.default_rng(0)
    y, x = np.mgrid[:IMAGE_SIDE, :IMAGE_SIDE]
    images = []
    for index in range(count):
        smooth = np.stack([(x + 30 * index) % 256, 2 * y % 256, (x + y) // 8 % 256], -1)
        pixels = (smooth + noise.integers(-6, 6, smooth.shape)).clip(0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, image_format, quality=90)
        images.append(buffer.getvalue())
    return images


def write_table_of_files(folder: Path) -> dict[str, Any]:
    """Write PNG files and a CSV with each file's name and prompt; return the options for ingesting the CSV."""
    images = encode_images(6, "PNG")
    with (folder / "table.csv").open("w") as stream:
        rows = csv.writer(stream)
        rows.writerow(["file", "prompt"])
        for index in range(N_IMAGES):
            (folder / f"{index}.png").write_bytes(images[index % len(images)])
            rows.writerow([f"{index}.png", f"a prompt of number {index}"])
    return {"table": str(folder / "table.csv"), "shard_rows": 32}


def write_compressed_tars(folder: Path) -> dict[str, Any]:
    """Write gzip-compressed tars of JPEG files with their prompts; return the options for ingesting the tars."""
    images = encode_images(6, "JPEG")
    for tar in range(12):
        with tarfile.open(folder / f"{tar:02d}.tar.gz", "w:gz", compresslevel=1) as archive:
            for index in range(N_IMAGES // 12):
                for kind, content in (("jpg", images[index % len(images)]), ("txt", b"a prompt %d" % index)):
                    header = tarfile.TarInfo(f"{index}.{kind}")
                    header.size = len(content)
                    archive.addfile(header, io.BytesIO(content))
    return {"tars": str(folder)}


@pytest.mark.usefixtures(*RAY_FIXTURES)
@pytest.mark.parametrize("make", [write_table_of_files, write_compressed_tars])
def test_two_workers_ingest_faster_than_one(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    options = make(tmp_path / "in")
    monkeypatch.setattr(draft_workers, "RAY_START_DELAY", choose_size(-1.0, math.inf))
    rates: dict[int, list[float]] = {1: [], N_WORKERS: []}
    for attempt in range(choose_size(2, 1)):
        for workers, tries in rates.items():
            config = IngestConfig(
                output=f"{tmp_path}/{attempt}-{workers}",
                generator="sdxl",
                cluster=WorkersConfig(num_cpus=workers),
                **options,
            )
            tries.append(measure_rate(config))
            shutil.rmtree(config.output)
    one, two = (max(tries) for tries in rates.values())
    copied = N_IMAGES / min(time_copy(tmp_path / "in", tmp_path / "copy") for _ in range(2))
    with capsys.disabled():
        print(
            f"\n{make.__name__}: one worker ingests {one:.0f} images/s, two {two:.0f} ({two / one:.2f} times as many); "
            f"copying and syncing the input's bytes: {copied:.0f} images/s (two workers reach "
            f"{two / copied:.2f} of that rate)"
        )
    expect(two / one > MIN_SPEEDUP)


def time_copy(folder: Path, target: Path) -> float:
    """Copy the files of `folder` to the disk, 32 at a time as in a shard; return the seconds that the copy takes."""
    began = time.perf_counter()
    files = sorted(folder.iterdir())
    for first in range(0, len(files), 32):
        with target.open("wb") as stream:
            for file in files[first : first + 32]:
                stream.write(file.read_bytes())
            stream.flush()
            os.fsync(stream.fileno())
    target.unlink()
    return time.perf_counter() - began


def measure_rate(config: IngestConfig) -> float:
    """Return the images per second from the first shard to the last, so that the startup of workers does not count."""
    stands: list[tuple[float, int]] = []
    ended = ingest(config, lambda record: stands.append((time.perf_counter(), record.rows)))
    assert ended.rows == N_IMAGES
    return sum(rows for _, rows in stands[1:]) / (stands[-1][0] - stands[0][0])


def test_memory_is_bounded_for_any_number_of_ids(capsys: pytest.CaptureFixture[str]) -> None:
    def measure_ids(count: int) -> tuple[float, float]:
        said = read_output("many_ids", str(count))
        return said["resident"], said["microseconds"]

    (few, _), (half, _), (all_ids, microseconds) = map(measure_ids, (1, N_IDS // 2, N_IDS))
    with capsys.disabled():
        print(
            f"\n{N_IDS:,} ids with a cache of 4 MiB take {(all_ids - few) / 1e6:.1f} MB more memory than one id; an id "
            f"in the second half takes {2 * (all_ids - half) / N_IDS:.1f} bytes; {microseconds:.1f} us per id"
        )
    expect(all_ids - few < 8e6 and all_ids - half < 2e6)

"""One sweep scores both animations and still images; animations do not change the keys of still images."""

import io
import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import read_image_rows, read_prompt_rows, run_bench, write_rows

SWEEP_WORDS = ("metric=[edge_density]", "cluster=here")


def animate(pictures: list[bytes]) -> bytes:
    first, *others = (Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures)
    sink = io.BytesIO()
    first.save(sink, "WEBP", save_all=True, append_images=others, lossless=True, duration=100)
    return sink.getvalue()


def read_scores(done: FinishedSweep) -> dict[str, float]:
    return {row["image_id"]: row["score"] for row in done.results.read_scores().to_pylist()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write still images and an animation of three of them, in random order; return the benchmark's folder."""
    folder, stills = tmp_path / "bench", read_image_rows("atlas", 7)
    write_rows(folder / "prompts.parquet", read_prompt_rows(7))
    taken = [still["image"] for still in stills[2:5]]
    rows: list[dict[str, Any]] = [*stills, {**stills[0], "image_id": "animation", "image": animate(taken)}]
    random.Random(5).shuffle(rows)
    write_rows(folder / "images" / "atlas" / "00000.parquet", rows)
    return folder


def test_an_animation_has_the_mean_score_of_its_frames(folder: Path) -> None:
    scores = read_scores(run_bench(folder, folder.parent / "store", *SWEEP_WORDS))
    taken = [scores[still["image_id"]] for still in read_image_rows("atlas", 7)[2:5]]
    assert scores["animation"] == pytest.approx(sum(taken) / 3, abs=1e-6)

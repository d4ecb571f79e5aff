"""Rows with several images are scored as the frames of a video or the views of a 3D model."""

from pathlib import Path

import pytest

from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import make_sweep_config, read_image_rows, read_prompt_rows, run_config, write_rows


def test_the_score_of_a_video_is_the_mean_of_its_frames_and_its_cells_are_reused(tmp_path: Path) -> None:
    """Rows contain lists of frames, in an ordinary Parquet file; a second sweep has nothing to compute."""
    folder, frames = tmp_path / "bench", read_image_rows("atlas", 3)
    write_rows(folder / "prompts.parquet", read_prompt_rows(1))
    prompt_id = read_prompt_rows(1)[0]["prompt_id"]
    alone = [{"image_id": f"frame-{n}", "prompt_id": prompt_id, "image": row["image"]} for n, row in enumerate(frames)]
    video = {"image_id": "video", "prompt_id": prompt_id, "image": [row["image"] for row in frames]}
    broken = {**video, "image_id": "broken", "image": [frames[0]["image"], b"no image"]}
    write_rows(folder / "images" / "frames" / "00000.parquet", alone)
    write_rows(folder / "images" / "videos" / "00000.parquet", [video, broken])
    config = make_sweep_config(folder, tmp_path / "store", "metric=[vqascore,clipscore,gecko]")
    done = run_config(config)
    scores = {(row["metric"], row["image_id"]): row["score"] for row in done.results.read_scores().to_pylist()}
    for metric in ("vqascore", "clipscore", "gecko"):
        of_frames = [scores[metric, f"frame-{number}"] for number in range(3)]
        assert scores[metric, "video"] == pytest.approx(sum(of_frames) / 3, abs=1e-6)
        assert scores[metric, "broken"] is None
    messages = {row["message"].partition(":")[0] for row in done.results.read_errors().to_pylist()}
    assert messages == {"image 2 of 2"}
    assert not plan_sweep(config).plan.missing

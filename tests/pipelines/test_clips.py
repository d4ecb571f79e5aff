"""A sweep scores video files and lists of frames alike, and a damaged video only fails its own row."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from plumbline.assets.making.tables import make_clip_tables
from plumbline.jobs.scorer import open_scorer
from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.images.decoding import ImageLimits, decode_each
from plumbline.operators.images.videos import Clips
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import run_config, write_rows
from tests.commands import load_job_config

CLIPS_FOLDER = Path(__file__).parents[2] / "assets" / "shapes_video"
METRIC_OPTION = "metric=[clipscore]"
N_PROMPTS = 10
"""Number of prompts that the tests use; the benchmark has 32."""


def make_clips_config(store: Path, *words: str) -> SweepConfig:
    return load_job_config("sweep", "sweep=shapes_video", f"store={store}", *words)


def run(store: Path, *words: str) -> FinishedSweep:
    return run_config(make_clips_config(store, *words))


def read_clips(generator: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(CLIPS_FOLDER / f"images/{generator}/00000.parquet").to_pylist()
    return rows


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedSweep:
    return run(tmp_path_factory.mktemp("clips"), f"benchmark.limit={N_PROMPTS}", "cluster=here")


def test_every_clip_has_its_scores_and_the_generators_are_in_their_true_order(finished: FinishedSweep) -> None:
    table = finished.results.read_scores().to_pandas()
    assert finished.exit_code == 0 and len(table) == N_PROMPTS * 3 * 2 and table["score"].notna().all()
    means = table.groupby(["metric", "generator"])["score"].mean().unstack()
    assert (means["reel"] > means["strip"]).all() and (means["strip"] > means["orbit"]).all()


def test_a_score_is_the_mean_over_evenly_spaced_frames(finished: FinishedSweep) -> None:
    scores = {
        row["image_id"]: row["score"]
        for row in finished.results.read_scores().to_pylist()
        if row["metric"] == "vqascore"
    }
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(CLIPS_FOLDER / "prompts.parquet").to_pylist()}
    scorer = open_scorer("metric=[vqascore]", "models=shapes")
    for clip in read_clips("strip")[:4]:
        alone = scorer.score_table(clip["image"], [texts[clip["prompt_id"]]] * 8)["score"].to_pylist()
        assert scores[clip["image_id"]] == pytest.approx(sum(alone) / 8, abs=1e-5)
    for clip in read_clips("reel")[:4]:
        frames = list(decode_each(clip["image"], ImageLimits(), Clips()))
        assert len(frames) == 4
        alone = scorer.score_table(frames, [texts[clip["prompt_id"]]] * 4)["score"].to_pylist()
        assert scores[clip["image_id"]] == pytest.approx(sum(alone) / 4, abs=1e-5)


def test_the_sampling_of_clips_is_in_the_keys_unless_it_is_the_default(tmp_path: Path) -> None:
    def list_paths(*words: str) -> set[str]:
        return {
            cell.path
            for cell in plan_sweep(make_clips_config(tmp_path, "dry_run=true", METRIC_OPTION, *words)).plan.cells
        }

    usual = list_paths()
    assert list_paths("clips.frames=4", "clips.shown=each") == usual
    assert not usual & list_paths("clips.frames=5")
    assert not usual & list_paths("clips.shown=grid")
    assert not usual & list_paths("clips.listed=sampled")


def test_a_grid_is_one_image_and_a_damaged_clip_is_one_error(tmp_path: Path) -> None:
    reels = read_clips("reel")[:3]
    reels[1]["image"] = reels[1]["image"][:-200]
    write_rows(tmp_path / "images/reel/00000.parquet", reels)
    done = run(
        tmp_path / "store",
        METRIC_OPTION,
        f"benchmark.images={tmp_path}/images",
        "clips.shown=grid",
        "max_failed=0.5",
        "benchmark.require_every_prompt=false",
    )
    (error,) = done.results.read_errors().to_pylist()
    assert (error["kind"], error["row"], error["image_id"]) == ("corrupt_video", 1, reels[1]["image_id"])
    scores = {row["image_id"]: row["score"] for row in done.results.read_scores().to_pylist()}
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(CLIPS_FOLDER / "prompts.parquet").to_pylist()}
    scorer = open_scorer(METRIC_OPTION, "models=shapes", "clips.shown=grid")
    alone = scorer.score_table([reels[0]["image"]], [texts[reels[0]["prompt_id"]]]).to_pylist()[0]["score"]
    assert scores[reels[0]["image_id"]] == pytest.approx(alone, abs=1e-6)
    each = open_scorer(METRIC_OPTION, "models=shapes").score_table([reels[0]["image"]], [texts[reels[0]["prompt_id"]]])
    assert alone != pytest.approx(each.to_pylist()[0]["score"], abs=1e-3)


def test_the_committed_clips_equal_those_that_the_code_makes() -> None:
    """Frames of video files may differ a little, because releases of the encoder differ."""
    for name, made in make_clip_tables(0).items():
        committed = pq.read_table(CLIPS_FOLDER / name)
        if "/reel/" not in name and "/orbit/" not in name:
            assert committed.equals(made), name
            continue
        assert committed.drop_columns("image").equals(made.drop_columns("image")), name
        for one, other in list(zip(committed["image"].to_pylist(), made["image"].to_pylist(), strict=True))[::8]:
            pairs = zip(*(decode_each(clip, ImageLimits(), Clips(frames=8)) for clip in (one, other)), strict=True)
            for frame, again in pairs:
                assert not isinstance(frame, RowError) and not isinstance(again, RowError)
                difference = sum(abs(a - b) for a, b in zip(frame.tobytes(), again.tobytes(), strict=True))
                assert difference / len(frame.tobytes()) < 4


def test_a_video_is_refused_for_a_model_of_images_before_anything_is_computed(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"clips\.shown: video requires a model that takes videos, .*the model for role 'vqa'"
    ):
        plan_sweep(make_clips_config(tmp_path, "clips.shown=video", "metric=[vqascore]"))

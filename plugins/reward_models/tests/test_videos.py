"""VideoAlign and X-CLIP score a video as a whole, and HPSv3 scores it frame by frame."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from plugins.reward_models.tests import tiny_rewards
from plugins.reward_models.tests.references import score_videoalign_video, score_x_clip_video
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits, decode_each
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.similarities.similarity import SimilarityConfig
from plumbline.operators.models.families import make_model_config
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from tests.operators import tiny
from tests.operators.images.test_videos import write_video


def make_scorer(folder: Path, *ratings: str | None, **clips: Any) -> Scorer:
    models = {"videoalign": make_model_config(family="videoalign", checkpoint=str(folder))}
    metrics = {
        str(name): SimilarityConfig(model="videoalign", measure="reward", rating=name) for name in (None, *ratings)
    }
    return Scorer(ScorerConfig(models=models, metrics=metrics, clips=Clips(**clips)))


@pytest.mark.parametrize("heads", [1, 3])
def test_videoalign_returns_the_original_ratings_for_frames_and_for_files(heads: int, tmp_path: Path) -> None:
    """Frames are sampled from a file at equal time intervals. If their number is odd, the last frame is repeated."""
    folder = tiny_rewards.save_videoalign(tmp_path / "videoalign", heads=heads)
    shown, clip = tiny.draw_frames(3), write_video(tmp_path / "clip", "mp4")
    sampled = [image for image in decode_each(clip, ImageLimits(), Clips(rate=2)) if isinstance(image, Image.Image)]
    assert len(sampled) == 4
    rows = make_scorer(folder, shown="video", rate=2).score_table(
        [shown, clip, b"cut"], ["a red circle", "two stars", "a"]
    )
    listed, filed, broken = rows.to_pylist()
    for row, clip_frames, text in ((listed, [*shown, shown[-1]], "a red circle"), (filed, sampled, "two stars")):
        with torch.inference_mode():
            expected = score_videoalign_video(folder, clip_frames, text)
        assert [rating["name"] for rating in row["ratings"]] == ["visual_quality", "motion_quality", "text_alignment"]
        assert [rating["value"] for rating in row["ratings"]] == pytest.approx(expected, abs=1e-4)
        assert row["score"] == pytest.approx(sum(expected), abs=1e-4)
    assert broken["score"] is None and broken["ratings"] is None and broken["error"]["kind"] == "corrupt_image"


@pytest.mark.parametrize(("count", "shown"), [(1, [0, 0, 0]), (2, [0, 0, 1]), (3, [0, 1, 2]), (6, [0, 2, 5])])
def test_x_clip_samples_as_many_frames_as_it_was_trained_on(count: int, shown: list[int], tmp_path: Path) -> None:
    folder, clips = (
        tiny_rewards.save_x_clip(tmp_path / "xclip"),
        [tiny.draw_frames(count), tiny.draw_frames(count, first=4)],
    )
    models = {"xclip": make_model_config(family="x_clip", checkpoint=str(folder))}
    metrics = {"xclipscore": SimilarityConfig(model="xclip")}
    scorer = Scorer(ScorerConfig(models=models, metrics=metrics, clips=Clips(shown="video", frames=count)))
    texts = ["a red circle", "two blue stars"]
    with torch.inference_mode():
        expected = [
            score_x_clip_video(folder, [clip[place] for place in shown], text)
            for clip, text in zip(clips, texts, strict=True)
        ]
    scores = [row["score"] for row in scorer.score_table(clips, texts).to_pylist()]
    assert scores == pytest.approx(expected, abs=1e-4) and scores[0] != pytest.approx(scores[1], abs=1e-3)


def test_videoaligns_ratings_are_separate_metrics_that_share_a_model_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, names = tiny_rewards.save_videoalign(tmp_path / "videoalign"), ("motion_quality", "text_alignment")
    scorer, calls = make_scorer(folder, *names, shown="video"), []
    model = scorer.nodes[0].stage.model  # type: ignore[attr-defined]
    compare = model.compare
    monkeypatch.setattr(model, "compare", lambda *asked: calls.append(asked) or compare(*asked))
    rows = scorer.score_table(
        [tiny.draw_frames(4), tiny.draw_frames(4, first=4)], ["a red circle", "two stars"]
    ).to_pylist()
    assert len(calls) == 1 and [row["metric"] for row in rows] == [name for name in ("None", *names) for _ in range(2)]
    for place, row in enumerate(rows[2:]):
        ratings = {rating["name"]: rating["value"] for rating in rows[place % 2]["ratings"]}
        assert row["score"] == ratings[row["metric"]]
    with pytest.raises(ConfigError, match=r"which has visual_quality and mot.*, not the rating 'beauty'"):
        make_scorer(folder, "beauty", shown="video")


@pytest.mark.parametrize("shown", ["each", "grid"])
def test_videoalign_is_refused_if_frames_are_shown_separately(shown: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"clips\.shown={shown}; set clips\.shown=video and clips\.rate=2"):
        make_scorer(tiny_rewards.save_videoalign(tmp_path), shown=shown)


def test_hpsv3_scores_a_video_by_the_mean_over_its_frames(tmp_path: Path) -> None:
    folder, clip = tiny_rewards.save_hpsv3(tmp_path / "hpsv3"), write_video(tmp_path / "clip", "mp4")
    models = {"hpsv3": make_model_config(family="hpsv3", checkpoint=str(folder))}
    metrics = {"hpsv3": SimilarityConfig(model="hpsv3", measure="reward")}
    hpsv3 = Scorer(ScorerConfig(models=models, metrics=metrics))
    shown = [image for image in decode_each(clip, ImageLimits(), Clips()) if isinstance(image, Image.Image)]
    each = hpsv3.score_table(shown, "a red circle")["score"].to_pylist()
    assert len(each) == 4 and hpsv3.score_table([clip], "a red circle")["score"].to_pylist() == pytest.approx(
        [np.mean(each)]
    )

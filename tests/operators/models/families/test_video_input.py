"""Videos are split into patches of two frames with their own tokens and positions, as in the released models."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits, decode_each
from plumbline.operators.images.videos import FRAME_SECONDS_KEY, SECONDS_PER_LISTED_FRAME, Clips
from plumbline.operators.metrics.judges.llmscore import LlmScoreConfig
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.models import loading
from plumbline.operators.models.calls import Message, Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.model import Engine
from plumbline.operators.models.networks.vlm import ChatVlm
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.operators.stages.captions import CaptionsStage
from plumbline.operators.stages.stage import StageOptions
from tests.operators import tiny
from tests.operators.images.test_videos import FRAME_SIZE, write_video
from tests.operators.stages.given import make_inputs, run_stage

MODEL_KINDS = ("qwen2_vl", "qwen2_5_vl")
TOKEN_SIDE = 8
"""Side length, in pixels, of the square that an image token of a tiny model covers."""
QUESTION = Question(0, "Does it move?", ("Yes", "No"))


@pytest.fixture(scope="module", params=MODEL_KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny.save_qwen2_vl(tmp_path_factory.mktemp(request.param), kind=request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> ChatVlm:
    config = make_model_config(family="vlm", checkpoint=str(folder))
    loaded = loading.load(resolve_model(config, on_gpu=False), "likelihood")
    assert isinstance(loaded, ChatVlm)
    return loaded


@pytest.fixture(scope="module")
def whole_model(folder: Path) -> Any:
    return AutoModelForImageTextToText.from_pretrained(folder).eval()


def read_patches(model: ChatVlm, pixels: Any) -> torch.Tensor:
    """Return the patches of a preprocessed video, as they are passed to the network."""
    return model.reader.make_vision_inputs([pixels])["pixel_values_videos"]


def split_into_patches(shown: list[Image.Image]) -> torch.Tensor:
    """Split frames into patches like transformers 5.19's Qwen2VLVideoProcessor.patchify, which requires torchvision."""
    pixels = (np.stack([np.asarray(image) for image in shown]) / 255 - tiny.IMAGE_MEAN) / tiny.IMAGE_STD
    video = torch.from_numpy(pixels).float().permute(0, 3, 1, 2)
    video = torch.cat([video, video[-1:].expand(-len(shown) % 2, -1, -1, -1)])
    times, (height, width) = len(video) // 2, (side // 4 for side in video.shape[2:])
    patches = video.view(times, 2, 3, height // 2, 2, 4, width // 2, 2, 4).permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return patches.reshape(times * height * width, 3 * 2 * 4 * 4)


@pytest.mark.parametrize("count", [2, 5, 8])
def test_patches_and_grid_equal_those_of_the_processor_for_videos(model: ChatVlm, count: int) -> None:
    shown = tiny.draw_frames(count)
    pixels = model.preprocess_video(shown, 0.5)
    assert pixels.inputs["video_grid_thw"].tolist() == [[(count + 1) // 2, 22, 28]]
    torch.testing.assert_close(read_patches(model, pixels), split_into_patches(shown), atol=1e-5, rtol=0)
    assert pixels.ids.count(model.prompts.video_id) == (count + 1) // 2 * 11 * 14  # type: ignore[arg-type]
    assert pixels.step == 1.0


@pytest.mark.parametrize(("size", "tokens"), [((40, 32), 128), ((112, 88), 154), ((640, 480), 768)])
def test_a_frame_takes_as_many_tokens_as_in_the_released_code(
    model: ChatVlm, size: tuple[int, int], tokens: int
) -> None:
    pixels = model.preprocess_video(tiny.draw_frames(2, width=size[0], height=size[1]), 0.5)
    found = len(read_patches(model, pixels)) // 4
    assert found >= 128 if tokens == 128 else found <= 768 if tokens == 768 else found == tokens


def compute_logprobs(model: ChatVlm, whole: Any, pixels: Any, choice: str, **positions: torch.Tensor) -> list[float]:
    """Return the log-probabilities of the choice's tokens, computed by the whole network over the whole prompt."""
    before = [*pixels.ids, *model.prompts.tokenize_after_image([Message("user", QUESTION.text)], pixels.closing)]
    chosen = model.prompts.tokenize_choice(QUESTION.text, choice)
    ids = torch.tensor([[*before, *chosen]])
    kinds = 2 * (ids == model.prompts.video_id).int()
    step = (
        {"second_per_grid_ts": torch.tensor([pixels.step])}
        if hasattr(whole.model.config.vision_config, "tokens_per_second")
        else {}
    )
    with torch.inference_mode():
        inputs = model.reader.make_vision_inputs([pixels])
        logits = whole(input_ids=ids, mm_token_type_ids=kinds, **inputs, **step, **positions).logits[0]
    rows = logits.log_softmax(-1)[len(before) - 1 : -1]
    return [float(row[token]) for row, token in zip(rows, chosen, strict=True)]


@pytest.mark.parametrize("count", [2, 3, 6])
def test_answers_about_a_video_equal_the_whole_models(model: ChatVlm, whole_model: Any, count: int) -> None:
    pixels = model.preprocess_video(tiny.draw_frames(count), 0.75)
    (answered,) = model.likelihood(model.encode([pixels]), [QUESTION])
    for choice, logprobs in zip(QUESTION.choices, answered, strict=True):
        assert logprobs == pytest.approx(compute_logprobs(model, whole_model, pixels, choice), abs=1e-4)


def test_text_after_a_long_video_is_positioned_after_its_last_moment(model: ChatVlm, whole_model: Any) -> None:
    """Transformers 5.3 to 5.19 position the text earlier, which huggingface/transformers#45381 corrects."""
    pixels = model.preprocess_video(tiny.draw_frames(2 * 40, width=64, height=128), 3.0)
    (prefix,) = model.encode([pixels])
    rate = getattr(whole_model.config.vision_config, "tokens_per_second", None)
    last = 39 if rate is None else int(39 * 6.0 * rate)
    assert prefix.next_position == len(model.prompts.before_video) + max(last, 15) + 1


def test_videos_of_one_size_are_encoded_together_with_the_same_result(model: ChatVlm) -> None:
    videos = [
        model.preprocess_video(tiny.draw_frames(4, first=4 * number), seconds)
        for number, seconds in enumerate((0.5, 2.0))
    ]
    videos.append(model.preprocess_video(tiny.draw_frames(2), 0.5))
    together = model.likelihood(model.encode(videos), [QUESTION._replace(image=place) for place in range(3)])
    for video, answered in zip(videos, together, strict=True):
        (alone,) = model.likelihood(model.encode([video]), [QUESTION])
        assert answered == [pytest.approx(choice, abs=1e-4) for choice in alone]


def test_the_order_of_frames_matters(model: ChatVlm) -> None:
    shown = tiny.draw_frames(4)
    videos = [model.preprocess_video(order, 0.5) for order in (shown, shown[::-1])]
    forwards, backwards = model.likelihood(model.encode(videos), [QUESTION, QUESTION._replace(image=1)])
    assert forwards[0][0] != pytest.approx(backwards[0][0], abs=1e-3)


def make_scorer(folder: Path, *, engine: Engine = "transformers", **clips: Any) -> Scorer:
    models = {"vqa": make_model_config(family="vlm", checkpoint=str(folder), engine=engine)}
    return Scorer(ScorerConfig(models=models, metrics={"vqascore": VqaScoreConfig()}, clips=Clips(**clips)))


def test_frames_a_video_file_and_an_image_are_each_scored_as_their_kind(
    folder: Path, model: ChatVlm, tmp_path: Path
) -> None:
    shown, clip = tiny.draw_frames(3), write_video(tmp_path / "clip", "mp4")
    scored = make_scorer(folder, shown="video", frames=4).score_table([shown, clip, shown[0]], ["a", "a", "a"])
    assert scored["error"].null_count == 3
    question = Question(0, VqaScoreConfig().complete_options(lambda role: resolve_kind(folder)).question("a"), ("Yes",))
    expected = [
        model.likelihood(model.encode([pixels]), [question])[0][0][0]
        for pixels in (model.preprocess_video(shown, SECONDS_PER_LISTED_FRAME), model.preprocess(shown[0]))
    ]
    listed, _, image = scored["score"].to_pylist()
    assert [listed, image] == pytest.approx(np.exp(expected), rel=1e-4)


def resolve_kind(folder: Path) -> Any:
    return resolve_model(make_model_config(family="vlm", checkpoint=str(folder)), on_gpu=False).profile


@pytest.mark.parametrize(
    ("kind", "engine"), [("llava", "transformers"), ("qwen3_vl", "transformers"), ("qwen2_vl", "vllm")]
)
def test_a_model_that_only_reads_images_is_refused_before_it_is_loaded(
    kind: str, engine: Engine, tmp_path: Path
) -> None:
    folder = tiny.save_llava(tmp_path) if kind == "llava" else tiny.save_qwen2_vl(tmp_path, kind=kind)
    with pytest.raises(ConfigError, match=r"clips\.shown: video requires a model that takes videos.*clips\.shown=each"):
        make_scorer(folder, engine=engine, shown="video")


def test_a_captioner_reads_a_video_as_one_input(model: ChatVlm, tmp_path: Path) -> None:
    """The video gets a single caption. Judges receive videos in the same way."""
    metric = LlmScoreConfig()
    filming = StageOptions(ImageLimits(), tiny.refuse_fetch, clips=Clips(shown="video", frames=2))
    stage = CaptionsStage({"llmscore": metric}, {"captioner": model}, filming)
    rows = pa.table({"image_id": ["i0"], "prompt_id": ["p0"], "image": [write_video(tmp_path / "clip", "mp4")]})
    (row,) = run_stage(stage, make_inputs("llmscore", shard_rows=rows)).to_pylist()
    assert row["error"] is None
    assert [(caption["width"], caption["height"]) for caption in row["captions"]] == [FRAME_SIZE]


def test_frames_of_a_file_represent_equal_parts_of_it(tmp_path: Path) -> None:
    """Each of the four frames sampled from a video of 2.5 seconds represents 0.625 seconds."""
    shown = list(decode_each(write_video(tmp_path / "clip", "mp4"), ImageLimits(), Clips(frames=4)))
    assert [image.info[FRAME_SECONDS_KEY] for image in shown if isinstance(image, Image.Image)] == pytest.approx(
        [0.625] * 4
    )

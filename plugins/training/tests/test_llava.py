"""A LLaVA is trained in the same stages as CLIP-FlanT5 (VQAScore paper, table 12), and `vlm` can load the result."""

import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from plugins.training.tests import training_tables
from plumbline.operators.base.errors import ConfigError, ModelError, SourceError
from plumbline.operators.models.calls import Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from plumbline.plugins.training.checkpoint import load_trainee
from plumbline.plugins.training.planning import plan_training
from plumbline.plugins.training.training import run_training
from plumbline.plugins.training.worker import WorkerRank, run_worker
from tests.operators import tiny
from tests.operators.tiny import chat_vlms

CPU_DEVICE = torch.device("cpu")
TOWER_PREFIX, PROJECTOR_PREFIX = "vision_tower", "multi_modal_projector"
SECOND_IMAGE_MESSAGE = "a second image"


def load_config(kind: str, data: str, output: Path, checkpoint: Path, *overrides: str) -> Any:
    model = ("model.family=vlm", f"model.checkpoint={checkpoint}")
    return training_tables.load_stage_config(kind, data, output, *model, *overrides)


def train(config: Any) -> None:
    run_worker(plan_training(config).task, WorkerRank(0, 1, CPU_DEVICE), lambda line: None)


def decode_image(row: dict[str, Any]) -> Image.Image:
    return Image.open(io.BytesIO(row["image"])).convert("RGB")


def load_model(checkpoint: Path) -> Any:
    config = make_model_config(family="vlm", checkpoint=str(checkpoint))
    return load(resolve_model(config, on_gpu=False), "likelihood")


def compute_mean_logprob(checkpoint: Path, rows: list[dict[str, Any]]) -> float:
    """Return the mean log-probability over the tokens of all answers, computed by the same code as in production."""
    model = load_model(checkpoint)
    features = model.encode([model.preprocess(decode_image(row)) for row in rows])
    asked = [Question(image, row["question"], (row["answer"],)) for image, row in enumerate(rows)]
    logprobs = [number for (answer,) in model.likelihood(features, asked) for number in answer]
    return math.fsum(logprobs) / len(logprobs)


def list_changed_weights(checkpoint: Path, first: Path) -> set[str]:
    before, after = (load_file(folder / "model.safetensors") for folder in (first, checkpoint))
    assert before.keys() == after.keys()
    return {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}


def test_stage_1_trains_the_projector_and_stage_2_everything_except_the_tower(tmp_path: Path) -> None:
    rows, first = training_tables.make_rows(8), tiny.save_llava(tmp_path / "llava")
    data = training_tables.write_rows(tmp_path / "data", rows)
    train(load_config("captions", data, tmp_path / "1", first, "pace.rate=1e-2"))
    captioned = tmp_path / "1/checkpoint"
    assert all(PROJECTOR_PREFIX in name for name in list_changed_weights(captioned, first)) and list_changed_weights(
        captioned, first
    )
    train(load_config("questions", data, tmp_path / "2", captioned, "pace.rate=3e-3", "pace.steps=12"))
    answered = list_changed_weights(tmp_path / "2/checkpoint", captioned)
    assert not any(TOWER_PREFIX in name for name in answered)
    assert any(PROJECTOR_PREFIX in name for name in answered) and any("lm_head" in name for name in answered)
    assert compute_mean_logprob(tmp_path / "2/checkpoint", rows) > compute_mean_logprob(captioned, rows) + 1


def test_the_training_loss_equals_the_log_probability_in_production(tmp_path: Path) -> None:
    """The texts differ in length, and neither padding nor question tokens contribute to the loss."""
    rows, first = training_tables.make_rows(8), tiny.save_llava(tmp_path / "llava")
    data = training_tables.write_rows(tmp_path / "data", rows)
    train(load_config("questions", data, tmp_path / "out", first, "pace.rate=1e-3"))
    config = make_model_config(family="vlm", checkpoint=str(tmp_path / "out/checkpoint"))
    trainee = load_trainee(resolve_model(config, on_gpu=False), CPU_DEVICE)
    pixels = [trainee.likelihood.preprocess(decode_image(row)) for row in rows]
    exercises = [
        trainee.make_question_exercise(image, pixels[image], row["question"], row["answer"])
        for image, row in enumerate(rows)
    ]
    with torch.no_grad():
        loss = trainee.compute_loss(trainee.network, trainee.make_batch(pixels, exercises))
    assert float(loss) == pytest.approx(-compute_mean_logprob(tmp_path / "out/checkpoint", rows), abs=1e-5)
    assert len({len(exercise.read) for exercise in exercises}) > 1


def test_stage_1_can_start_from_a_llama_and_a_vision_tower(tmp_path: Path) -> None:
    rows = training_tables.make_rows(8)
    data = training_tables.write_rows(tmp_path / "data", rows)
    llama = tiny.save_causal_lm(tmp_path / "llama", template=None)
    tiny.edit_json(llama / "generation_config.json", temperature=0.6)  # without sampling, as in Llama 2 and Vicuna
    tower = tiny.save_clip(tmp_path / "clip")
    begin = (f"begin={{language_model: {llama}, vision_tower: {tower}}}", "model.checkpoint=begun")
    config = load_config("captions", data, tmp_path / "1", Path("begun"), *begin, "pace.rate=1e-2", "pace.steps=1")
    train(config)
    begun = tmp_path / "1/begun"
    assert {
        name for name in list_changed_weights(tmp_path / "1/checkpoint", begun) if PROJECTOR_PREFIX not in name
    } == set()
    kept, stored = load_file(begun / "model.safetensors"), load_file(llama / "model.safetensors")
    embedding = next(tensor for name, tensor in kept.items() if name.endswith("embed_tokens.weight"))
    assert torch.equal(embedding[: len(tiny.BYTE_VOCABULARY)], stored["model.embed_tokens.weight"])
    assert math.isfinite(compute_mean_logprob(tmp_path / "1/checkpoint", rows))


def test_unusable_texts_are_left_out_and_reported_with_file_and_row(tmp_path: Path) -> None:
    rows, first = training_tables.make_rows(8), tiny.save_llava(tmp_path / "llava")
    rows[3] |= {"question": "long " * 200}
    rows[5] |= {"question": "What is after <image>?"}
    rows[6] |= {"answer": "<image>", "caption": "after <image>"}
    data = training_tables.write_rows(tmp_path / "data", rows, files=1)
    for kind, wanted in (
        ("questions", {3: "beyond the model's context of 512", 5: SECOND_IMAGE_MESSAGE, 6: SECOND_IMAGE_MESSAGE}),
        ("captions", {6: SECOND_IMAGE_MESSAGE}),
    ):
        lines: list[str] = []
        planned = plan_training(load_config(kind, data, tmp_path / kind, first, "max_failed=0.5"))
        run_worker(planned.task, WorkerRank(0, 1, CPU_DEVICE), lines.append)
        said = sorted(line for line in lines if line.startswith("left out: "))
        for line, (row, problem) in zip(said, wanted.items(), strict=True):
            assert f"0.parquet, row {row}: " in line and problem in line
    with pytest.raises(SourceError, match="3 rows could not be read, but max_failed allows only 0"):
        train(load_config("questions", data, tmp_path / "strict", first, "max_failed=0", "pace.batch=8"))


def test_an_unsupported_model_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    data = training_tables.write_rows(tmp_path / "data", training_tables.make_rows(4))
    t5, clip = tiny.save_true_nli(tmp_path / "t5"), tiny.save_clip(tmp_path / "clip")
    begin = (f"begin={{language_model: {t5}, vision_tower: {clip}}}", "model.checkpoint=begun")
    with pytest.raises(
        ModelError, match=r"expected a Llama model, .* found the type t5; set begin\.language_model to a Llama model"
    ):
        train(load_config("captions", data, tmp_path / "begun", Path("begun"), *begin))
    gemma = chat_vlms.save_gemma3(tmp_path / "gemma")
    with pytest.raises(ConfigError, match="cannot train a gemma3; expected clip_t5 and llava"):
        run_training(plan_training(load_config("questions", data, tmp_path / "out", gemma)), lambda line: None)

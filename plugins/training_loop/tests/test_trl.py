"""TRL's trainers evaluate a language model that draws images, while they train it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

import plumbline
from plugins.training_loop.tests.drawn_shapes import COLOUR_NAMES
from tests.operators.tiny import TRL_OPTIONS, save_causal_lm

TAUGHT_LETTER = "!"
"""The letter that the model learns to write. Its number is low, so the image is dark."""
N_STEPS = 4
SHAPE_NAMES = ("circle", "square", "star", "cross")


@plumbline.metric(score_range=(0, 255), better="lower")
def brightness(image: Image.Image, prompt: str) -> float:
    return float(np.asarray(image).mean())


def draw_letter(letter: str, seed: int) -> Image.Image:
    """Draw noise whose brightness is about the letter's ASCII code."""
    pixels = np.random.default_rng(seed).integers(0, 20, (8, 8, 3)) + min(ord(letter[:1] or " "), 127)
    return Image.fromarray(pixels.astype(np.uint8))


def rate_letters(completions: list[str], **columns: Any) -> list[float]:
    return [1 - min(ord(text[:1] or " "), 127) / 127 for text in completions]


def make_trainer(name: str, folder: Path, callback: Any) -> Any:
    import trl

    model_folder = str(save_causal_lm(folder / "model"))
    columns: dict[str, dict[str, str]] = {
        "SFTTrainer": {"completion": TAUGHT_LETTER},
        "DPOTrainer": {"chosen": TAUGHT_LETTER, "rejected": "a"},
        "KTOTrainer": {},
    }
    rows: list[dict[str, Any]] = [
        {"prompt": f"a {colour} {shape}", **columns.get(name, {})} for colour in COLOUR_NAMES for shape in SHAPE_NAMES
    ]
    if name == "KTOTrainer":
        rows = [
            row | {"completion": text, "label": text == TAUGHT_LETTER} for row in rows for text in (TAUGHT_LETTER, "a")
        ]
    generates = name in ("GRPOTrainer", "RLOOTrainer")
    options = {"num_generations": 2, "max_completion_length": 1} if generates else {}
    config = getattr(trl, name.replace("Trainer", "Config"))(
        output_dir=str(folder / "out"), max_steps=N_STEPS, per_device_train_batch_size=4, learning_rate=1e-2,
        **TRL_OPTIONS, **options,
    )  # fmt: skip
    return getattr(trl, name)(
        model=AutoModelForCausalLM.from_pretrained(model_folder), args=config, train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model_folder), callbacks=[callback],
        **({"reward_funcs": rate_letters} if generates else {}),
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "SFTTrainer",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("DPOTrainer", "GRPOTrainer", "KTOTrainer", "RLOOTrainer")
        ),
    ],
)
def test_each_trl_trainer_evaluates_its_model(name: str, tmp_path: Path) -> None:
    def make(model: Any) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")

        def draw(prompts: list[str], seeds: list[int]) -> list[Image.Image]:
            assert not model.training and not torch.is_grad_enabled()
            written = []
            for prompt in prompts:
                tokens = tokenizer(prompt, return_tensors="pt")
                made = model.generate(**tokens, max_new_tokens=1, do_sample=False, pad_token_id=0)
                written.append(tokenizer.decode(made[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True))
            return [draw_letter(letter, seed) for letter, seed in zip(written, seeds, strict=True)]

        return draw

    evaluation = plumbline.Evaluation(
        benchmark="shapes", models="shapes", metrics=brightness, limit=12, folder=str(tmp_path / "evaluation")
    )
    trainer = make_trainer(name, tmp_path, evaluation.make_callback(make, every=2))
    evaluation.step(make(trainer.model.eval()), step=0)
    trainer.train()
    results = evaluation.folder.read_results()
    assert [result.step for result in results] == [0, 2, 4]
    means = [result["brightness"].mean for result in results]
    assert means[2] != means[0]
    assert evaluation.step(make(trainer.model.eval()), step=5)["brightness"].mean == means[2]

"""Question-based metrics write questions once per prompt, compute an image's prefix once, and run full batches."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from plumbline.operators.models.calls import Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.families.vlm import CHAT_PROFILE
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.vlm import ChatVlm
from plumbline.operators.models.resolution import resolve_model
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.results import FinishedSweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import make_sweep_config, write_benchmark
from tests.benchmarks.size import HERE_OPTIONS, RAY_FIXTURES, choose_size, expect, run_module
from tests.operators.tiny import BYTE_VOCABULARY, LLAVA_TEMPLATE, save_byte_tokenizer, write_json

N_IMAGES, N_QUESTIONS = choose_size((8, 10), (2, 2))
IMAGE_SIDE, PATCH_SIDE = choose_size(192, 32), 8
"""Side of an image and of a patch in pixels: an image is 576 tokens, as in LLaVA-1.5."""
N_ROUNDS = choose_size(5, 1)
N_PROMPTS = choose_size(16, 2)
CHOICES = ("Yes", "No")


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> ChatVlm:
    """Return a LLaVA with random weights that is small, but has as many image tokens as the real one."""
    folder = tmp_path_factory.mktemp("llava")
    torch.manual_seed(0)
    size = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    text = LlamaConfig(
        **size, vocab_size=len(BYTE_VOCABULARY), num_hidden_layers=6, num_key_value_heads=4,
        max_position_embeddings=2048, eos_token_id=BYTE_VOCABULARY["</s>"], pad_token_id=BYTE_VOCABULARY["<pad>"],
    )  # fmt: skip
    vision = CLIPVisionConfig(**size, num_hidden_layers=4, image_size=IMAGE_SIDE, patch_size=PATCH_SIDE)
    config = LlavaConfig(
        text_config=text, vision_config=vision, image_token_id=BYTE_VOCABULARY["<image>"],
        image_seq_length=(IMAGE_SIDE // PATCH_SIDE) ** 2,
    )  # fmt: skip
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    save_byte_tokenizer(folder, end="</s>")
    write_json(folder / "chat_template.json", {"chat_template": LLAVA_TEMPLATE})
    size_of = {"size": {"shortest_edge": IMAGE_SIDE}, "crop_size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE}}
    write_json(folder / "preprocessor_config.json", {"image_processor_type": "CLIPImageProcessor", **size_of})
    resolved = resolve_model(make_model_config(family="vlm", checkpoint=str(folder)), on_gpu=False)
    model = load(replace(resolved, profile=CHAT_PROFILE), "likelihood")
    assert isinstance(model, ChatVlm)
    return model


def draw_images() -> list[Image.Image]:
    noise = np.random.default_rng(0).integers(0, 255, (N_IMAGES, IMAGE_SIDE, IMAGE_SIDE, 3), dtype=np.uint8)
    return [Image.fromarray(pixels) for pixels in noise]


def answer(model: ChatVlm, images: list[Image.Image], each: int) -> list[float]:
    """Ask `each` questions about every image; return the log-probability of the first choice's first token.

    The result has one number per question.
    """
    features = model.encode([model.preprocess(image) for image in images])
    asked = [Question(image, f"Is there a {n}?", CHOICES) for image in range(len(images)) for n in range(each)]
    return [choices[0][0] for choices in model.likelihood(features, asked)]


def time_fastest(*calls: Callable[[], object]) -> list[float]:
    """Return the shortest time of each call in seconds; the calls take turns, so other load affects all of them."""
    rounds = [[time_call(call) for call in calls] for _ in range(N_ROUNDS)]
    return [min(taken) for taken in zip(*rounds, strict=True)]


def time_call(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_ten_questions_on_an_image_cost_at_most_twice_one(vlm: ChatVlm, capsys: pytest.CaptureFixture[str]) -> None:
    images = draw_images()
    answer(vlm, images[:1], 1)
    one, ten = time_fastest(lambda: answer(vlm, images, 1), lambda: answer(vlm, images, N_QUESTIONS))
    with capsys.disabled():
        print(f"\n{N_QUESTIONS} questions per image take {ten / one:.2f} times as long as one (target: at most 2)")
    expect(ten <= 2 * one)


def test_batches_beat_one_pair_at_a_time(vlm: ChatVlm, capsys: pytest.CaptureFixture[str]) -> None:
    images = draw_images()

    def score_pair(image: Image.Image, n: int) -> float:
        features = vlm.encode([vlm.preprocess(image)])
        return vlm.likelihood(features, [Question(0, f"Is there a {n}?", CHOICES)])[0][0][0]

    def answer_pair_by_pair() -> list[float]:
        return [score_pair(image, n) for image in images for n in range(N_QUESTIONS)]

    batched = answer(vlm, images, N_QUESTIONS)
    assert batched == pytest.approx(answer_pair_by_pair(), abs=1e-4)
    alone, together = time_fastest(answer_pair_by_pair, lambda: answer(vlm, images, N_QUESTIONS))
    ratio = alone / together
    with capsys.disabled():
        print(f"\nbatches of images with their questions: {ratio:.1f} times as fast as single pairs (5 or more wanted)")
    expect(ratio >= 5)


def run_counted_sweep(folder: Path, store: Path) -> tuple[FinishedSweep, int]:
    """Run a sweep whose metric asks the language model once per prompt; return the sweep and the number of calls."""
    planned = plan_sweep(make_sweep_config(folder, store, "metric=[gecko_baseline]", "cluster=local", *HERE_OPTIONS))
    done = run_sweep(planned, lambda progress: None)
    return done, done.usage["questions:llm"].calls


@pytest.mark.usefixtures(*RAY_FIXTURES)
@pytest.mark.parametrize("generators", [1, 5])
def test_the_language_model_is_called_once_per_prompt_for_any_number_of_generators(
    generators: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["atlas", "borealis", "cobalt", "drift", "ember"][:generators]
    done, calls = run_counted_sweep(write_benchmark(tmp_path / "bench", names, count=N_PROMPTS), tmp_path / "store")
    with capsys.disabled():
        print(f"\n{generators} generators, {N_PROMPTS} prompts: {calls} calls to the language model")
    assert (done.exit_code, calls) == (0, N_PROMPTS)


def test_the_size_of_a_question_in_the_store_does_not_grow_with_their_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = run_module("tests.benchmarks.question_rows", str(choose_size(1024, 64)))
    with capsys.disabled():
        print(f"\n{said}")
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in said.splitlines() if "answers" in line]
    sizes = {int(questions): int(size.replace(",", "")) for questions, _, size in cells}
    assert sizes[1] < sizes[10] < sizes[30]
    expect(sizes[30] < 3 * sizes[10])

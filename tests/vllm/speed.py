"""Measures the CPU time that vLLM needs for a question about an image, in the engine's thread and outside it.

OMP_NUM_THREADS=1 PYTHONPATH=build/torchvision:tests/vllm/site python -m tests.vllm.speed

The model is a tiny Qwen2-VL with random weights; the images have 1024 x 1024 pixels, and each line of
the output is measured with new images.
"""

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.models.calls import Question
from plumbline.operators.models.engines.vllm_calls import VllmLikelihood
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.vllm.tiny import make_qwen2_vl

N_IMAGES, IMAGE_SIDE, N_THREADS = 96, 1024, 2
QUESTION_SETS = {
    "one question, Yes": (1, ("Yes",)),
    "one question, Yes or No": (1, ("Yes", "No")),
    "ten questions, Yes or No": (10, ("Yes", "No")),
    "one question, four words": (1, ("three", "four", "many more", "none")),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = make_model_config(
            family="vlm", checkpoint=str(make_qwen2_vl(Path(folder))), engine="vllm", dtype="float32",
            engine_options={"max_model_len": 1024},
        )  # fmt: skip
        model = load(resolve_model(config, on_gpu=False), "likelihood")
        assert isinstance(model, VllmLikelihood)
        measure(model, make_noise_images(4), 1, ("Yes",))
        for seed, (name, (count, choices)) in enumerate(QUESTION_SETS.items(), 1):
            print(f"{name}: {measure(model, make_noise_images(seed), count, choices)}", flush=True)
        model.engine.close()


def make_noise_images(seed: int) -> list[Image.Image]:
    """Return images that are different for every seed, so that no answer about them is cached."""
    draw = np.random.default_rng(seed)
    coarse = [Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(N_IMAGES)]
    return [image.resize((IMAGE_SIDE, IMAGE_SIDE)) for image in coarse]


def measure(model: VllmLikelihood, images: Sequence[Image.Image], count: int, choices: tuple[str, ...]) -> str:
    """Ask `count` questions about each image, and return a line with the speed and the processor time per question."""
    questions = [
        Question(image, f"Is there a thing of kind {number}?", choices)
        for image in range(len(images))
        for number in range(count)
    ]
    calls, began, of_engine, spent = (
        model.usage.calls,
        time.perf_counter(),
        measure_engine_time(model),
        time.process_time(),
    )
    with ThreadPoolExecutor(N_THREADS) as decoders:
        features = model.encode(list(decoders.map(model.preprocess, images)))
    answers = model.likelihood(features, questions)
    seconds, spent, of_engine = (
        time.perf_counter() - began,
        time.process_time() - spent,
        measure_engine_time(model) - of_engine,
    )
    assert not any(isinstance(answer, RowError) for answer in answers)
    asked = len(questions)
    return (
        f"{asked / seconds:.1f} questions a second; for each {(model.usage.calls - calls) / asked:.2f} requests, "
        f"{1000 * (spent - of_engine) / asked:.2f} ms of a processor around the engine, "
        f"{1000 * of_engine / asked:.2f} ms within"
    )


def measure_engine_time(model: VllmLikelihood) -> float:
    """Return the seconds of processor time that the engine's thread has used."""
    return time.clock_gettime(time.pthread_getcpuclockid(model.engine._thread.ident or 0))


if __name__ == "__main__":
    main()

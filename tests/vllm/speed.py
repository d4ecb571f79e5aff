"""Measures vLLM's two forms, the engine in the actor's process and in a process of its own (`engine_process`).

OMP_NUM_THREADS=1 PYTHONPATH=.:build/torchvision:tests/vllm/site python -m tests.vllm.speed [CHECKPOINT] [--help]

Without CHECKPOINT, the model is a tiny Qwen2-VL with random weights. On a GPU the same command runs there, without the
PYTHONPATH; it needs memory for two engines. Both forms answer about the same images, in turns, and each round has new
images. As in a sweep, two callers have a shard of images each, whose images are preprocessed in a number of threads.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch
from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.models.calls import ImageRequest, Message, Question, Request
from plumbline.operators.models.engines.vllm_calls import VllmLikelihood
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.vllm.tiny import make_qwen2_vl

N_CALLERS, N_SHARDS, IMAGE_SIDE, N_REPLY_TOKENS = 2, 4, 1024, 16
FORMS: dict[str, dict[str, Any]] = {
    "the actor's process": {"engine_process": False},
    "its own process": {"engine_process": True},
}
WITHOUT_CACHE = {"its own process, without a cache of images": {"engine_process": True, "mm_processor_cache_gb": 0}}


class Speed(NamedTuple):
    """The speed of one form in one round."""

    requests: float
    """Requests a second."""
    processor_ms: float
    """Milliseconds of a processor for each request, in this process and its children."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", nargs="?", help="folder or hub id; without it, a tiny model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--images", type=int, default=32, help="images of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 4], help="preprocessing threads")
    parser.add_argument("--memory", type=float, default=0.4, help="fraction of a GPU's memory for each engine")
    parser.add_argument("--without-cache", action="store_true", help="a third engine without a cache of images")
    arguments = parser.parse_args()
    forms = FORMS | WITHOUT_CACHE if arguments.without_cache else FORMS
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = arguments.checkpoint or str(make_qwen2_vl(Path(folder)))
        models = {form: load_form(checkpoint, arguments, **options) for form, options in forms.items()}
        for model in models.values():
            ask(model, 1, False, make_noise_images(4, 0), 2)
        print("| call | questions an image | threads | engine in | requests a second | ms of a processor a request |")
        print("|---|---|---|---|---|---|")
        for generates in (False, True):
            for count in (1, 10):
                for threads in arguments.threads:
                    compare(models, generates, count, threads, arguments)
        for model in models.values():
            model.engine.close()


def load_form(
    checkpoint: str, arguments: argparse.Namespace, *, engine_process: bool, **options: Any
) -> VllmLikelihood:
    on_gpu = torch.cuda.is_available()
    options["max_model_len"] = 1024 if arguments.checkpoint is None else 4096
    if on_gpu:
        options["gpu_memory_utilization"] = arguments.memory
    config = make_model_config(
        family="vlm",
        checkpoint=checkpoint,
        engine="vllm",
        dtype=arguments.dtype,
        engine_process=engine_process,
        engine_options=options,
    )
    model = load(resolve_model(config, on_gpu=on_gpu), "likelihood")
    assert isinstance(model, VllmLikelihood)
    return model


def compare(
    models: dict[str, VllmLikelihood], generates: bool, count: int, threads: int, arguments: argparse.Namespace
) -> None:
    """Print the medians of each form over the rounds, in which they take turns to be first."""
    speeds: dict[str, list[Speed]] = defaultdict(list)
    n_images = arguments.images if count == 1 else max(arguments.images // 4, N_SHARDS)
    for number in range(arguments.rounds):
        images = make_noise_images(n_images, hash((generates, count, threads, number)) % 2**32)
        for form in list(models)[:: 1 if number % 2 else -1]:
            speeds[form].append(measure(models[form], partial(ask, generates=generates, count=count), images, threads))
    call = f"generate {N_REPLY_TOKENS} tokens" if generates else "likelihood of Yes and No"
    for form in models:
        requests, processor_ms = (statistics.median(values) for values in zip(*speeds[form], strict=True))
        print(f"| {call} | {count} | {threads} | {form} | {requests:.1f} | {processor_ms:.2f} |", flush=True)


def make_noise_images(count: int, seed: int) -> list[Image.Image]:
    """Return images that are different for every seed, so that no answer about them is cached."""
    draw = np.random.default_rng(seed)
    coarse = [Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(count)]
    return [image.resize((IMAGE_SIDE, IMAGE_SIDE)) for image in coarse]


def measure(model: VllmLikelihood, ask_model: Callable[..., int], images: Sequence[Image.Image], threads: int) -> Speed:
    began, spent = time.perf_counter(), measure_processor_time()
    requests = ask_model(model, images=images, threads=threads)
    seconds, spent = time.perf_counter() - began, measure_processor_time() - spent
    return Speed(requests / seconds, 1000 * spent / requests)


def ask(model: VllmLikelihood, count: int, generates: bool, images: Sequence[Image.Image], threads: int) -> int:
    """Ask `count` questions about each image, and return the number of the engine's requests."""
    with ThreadPoolExecutor(threads) as preprocessors, ThreadPoolExecutor(N_CALLERS) as callers:

        def ask_shard(shard: Sequence[Image.Image]) -> int:
            features = model.encode(list(preprocessors.map(model.preprocess, shard)))
            asked = [
                (image, f"Is there a thing of kind {number}?") for image in range(len(shard)) for number in range(count)
            ]
            before, answers = model.usage.calls, answer(features, asked)
            assert not any(isinstance(one, RowError) for one in answers), answers
            return model.usage.calls - before if not generates else len(answers)

        def answer(features: Any, asked: Sequence[tuple[int, str]]) -> Sequence[Any]:
            if not generates:
                return model.likelihood(features, [Question(image, text, ("Yes", "No")) for image, text in asked])
            requests = [ImageRequest(image, Request((Message("user", text),), N_REPLY_TOKENS)) for image, text in asked]
            return model.generate_from_images(features, requests)

        return sum(callers.map(ask_shard, [images[first::N_SHARDS] for first in range(N_SHARDS)]))


def measure_processor_time() -> float:
    """Return the seconds of processor time that this process and its children have used."""
    this = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in [this, *this.children(recursive=True)])


if __name__ == "__main__":
    main()

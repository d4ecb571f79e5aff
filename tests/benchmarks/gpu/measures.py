"""What is measured of one model: our scoring beside one pair at a time, and both beside what the machine can do."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from PIL import Image

from plumbline.operators.batches import BatchSize, in_windows
from plumbline.operators.errors import RowError
from plumbline.operators.models.calls import Message, Question
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood
from plumbline.operators.models.networks.image_prompts import Pixels
from plumbline.operators.models.networks.vlm import ChatVlm
from plumbline.operators.models.vqa_profiles import FIRST_TOKEN, RELEASED
from tests.benchmarks.gpu import flops
from tests.benchmarks.gpu.checkpoints import Likelihood, served
from tests.benchmarks.gpu.rows import QUESTIONS, Amounts, Measured
from tests.benchmarks.gpu.shapes import FULL, TINY, Shape

COLOURS = ["red", "green", "blue", "yellow", "black", "white", "purple", "orange"]
THINGS = ["dog", "cat", "bicycle", "teapot", "umbrella", "guitar", "lantern", "sofa"]
PLACES = ("on a wooden table", "in a quiet street at night", "beside a river", "under a large tree")
KINDS = 8
"""Of pictures; more would only take longer to make ready."""


class Load(NamedTuple):
    """A model, images made ready for it, and what is asked about each."""

    resolved: ResolvedModel
    model: Likelihood
    pictures: list[Image.Image]
    pixels: list[Any]
    texts: list[list[str]]
    """By image."""
    questions: list[list[Question]]
    """By image; `image` is set by who asks."""

    @property
    def network(self) -> Any:
        return self.model.model if isinstance(self.model, ClipFlanT5Likelihood) else self.model.reader.model


def measure(name: str, shapes: str | None, amounts: Amounts, folder: Path) -> Measured:
    """All that is measured of one model; raises whatever building or running it raises."""
    on_gpu = torch.cuda.is_available()
    shapes = shapes or ("full" if on_gpu else "tiny")
    load = make_load(name, (FULL if shapes == "full" else TINY)[name], folder, images=amounts.images, on_gpu=on_gpu)
    row = Measured(
        model=name,
        shapes=shapes,
        device=torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads",
        dtype=load.resolved.dtype,
        versions=f"torch {torch.__version__}, transformers {transformers.__version__}",
        parameters=sum(weight.numel() for weight in load.network.parameters()),
    )
    row.image_tokens, row.question_tokens = _tokens(load)
    _measure_model(row, load, amounts)
    _measure_stage(row, load, amounts, folder)
    row.memory = torch.cuda.max_memory_allocated() if on_gpu else 0
    return row


def make_load(name: str, shape: Shape, folder: Path, *, images: int, on_gpu: bool, **options: Any) -> Load:
    """A model of random weights and its work. None of this is measured: images are made ready on the CPU, beside the
    model's work; `options` go to the model.
    """
    texts = [[_text(image, text) for text in range(QUESTIONS)] for image in range(images)]
    spoken = [RELEASED.template, FIRST_TOKEN.template, *(text for of_image in texts for text in of_image)]
    resolved, model = served(name, shape, folder, spoken, on_gpu=on_gpu, batch=images, **options)
    assert resolved.profile is not None
    kinds = [_picture(seed, shape.side) for seed in range(min(KINDS, images))]
    ready = [model.preprocess(picture) for picture in kinds]
    places = [image % len(kinds) for image in range(images)]
    template, answer, _ = resolved.profile.asks
    questions = [[Question(0, template.replace("{}", text), (answer,)) for text in of_image] for of_image in texts]
    return Load(
        resolved, model, [kinds[place] for place in places], [ready[place] for place in places], texts, questions
    )


def _tokens(load: Load) -> tuple[int, int]:
    """Of an image, and of a question on it."""
    model, text = load.model, load.questions[0][0].text
    if isinstance(model, ClipFlanT5Likelihood):
        vision = model.model.vision_tower.config
        around = len(model.before) + len(model.question_ids([model.question_text(text)])[0])
        return (vision.image_size // vision.patch_size) ** 2, around
    image = load.pixels[0]
    return len(image.ids), len(model.prompts.following([Message("user", text)], image.closing))


def _measure_model(row: Measured, load: Load, amounts: Amounts) -> None:
    model, size = load.model, BatchSize(amounts.images)
    row.flops = flops.of_pair(model, load.pixels[0], load.questions[0][0])
    row.matmul = matmul_rate(model.device, getattr(torch, row.dtype))
    one = [of_image[:1] for of_image in load.questions]
    ours = score(model, load.pixels, load.questions, size)  # warms up, and finds the sizes that fit
    row.image_batch, row.pair_batch = size.rows, model.pair_batch.rows
    score(model, load.pixels, one, size)
    seconds = partial(median_seconds, device=model.device, repeats=amounts.repeats)
    row.ten = amounts.images * QUESTIONS / seconds(lambda: score(model, load.pixels, load.questions, size))
    row.one = amounts.images / seconds(lambda: score(model, load.pixels, one, size))
    every = [(image, text) for image in range(amounts.images) for text in range(QUESTIONS)]
    pairs = every[: amounts.peer_pairs]

    def peer() -> list[float]:
        return [score_pair(model, load.pixels[image], load.questions[image][text]) for image, text in pairs]

    theirs = peer()
    row.peer = len(pairs) / seconds(peer)
    row.difference = max(abs(ours[image][text] - other) for (image, text), other in zip(pairs, theirs, strict=True))


def score(
    model: Likelihood, pixels: Sequence[Any], questions: Sequence[Sequence[Question]], size: BatchSize
) -> list[list[float]]:
    """By image and question, the log-probability of the answer's first token: the calls that the answers stage makes,
    in its windows, without its tables.
    """
    scores: list[list[float]] = []

    def ask(first: int, encoded: Sequence[Any], *, crowded: bool) -> None:
        failed = next((one for one in encoded if isinstance(one, RowError)), None)
        if failed is not None:
            raise RuntimeError(failed.message)
        window = questions[first : first + len(encoded)]
        asked = [one._replace(image=place) for place, of_image in enumerate(window) for one in of_image]
        answers = iter(model.likelihood(encoded, asked))
        scores.extend([next(answers)[0][0] for _ in of_image] for of_image in window)

    in_windows(model.encode, pixels, size, ask)
    return scores


@torch.inference_mode()
def score_pair(model: Likelihood, pixels: Any, question: Question) -> float:
    """One pair as the released scripts score it (t2v_metrics: clip_t5_model.py, qwen2vl_model.py): its image is encoded
    for it alone, and the whole prompt read in one pass over the same weights in the same precision.

    They take a decoder-only model's first token by `generate`; one pass is what that does, and less.
    """
    if isinstance(model, ClipFlanT5Likelihood):
        return model.likelihood(model.encode([pixels]), [question._replace(image=0)])[0][0][0]
    return _first_token(model, pixels, question)


def _first_token(model: ChatVlm, pixels: Pixels, question: Question) -> float:
    network = model.reader.model
    ids = [*pixels.ids, *model.prompts.following([Message("user", question.text)], pixels.closing)]
    prompt = torch.tensor([ids], device=model.device)
    seen = {
        name: tensor.to(model.device, network.dtype) if tensor.is_floating_point() else tensor.to(model.device)
        for name, tensor in pixels.inputs.items()
    }
    if "image_grid_thw" in seen:
        seen["mm_token_type_ids"] = (prompt == model.reader.image_id).int()
    logits = network(
        input_ids=prompt, attention_mask=torch.ones_like(prompt), use_cache=False, logits_to_keep=1, **seen
    ).logits
    (first, *_) = model.prompts.choice(question.text, question.choices[0])
    return float(logits[0, -1].float().log_softmax(-1)[first])


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second in products of square matrices: 8192 wide on a GPU, 512 on a CPU."""
    side, times = (8192, 50) if device.type == "cuda" else (512, 10)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    result = torch.empty_like(left)

    def multiply() -> None:
        for _ in range(times):
            torch.matmul(left, right, out=result)

    multiply()
    return times * flops.product(side, side, side) / median_seconds(multiply, device, 3)


def median_seconds(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """By wall clock, from an idle device to an idle device."""
    return statistics.median(_seconds(call, device) for _ in range(repeats))


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    _wait_for(device)
    began = time.perf_counter()
    call()
    _wait_for(device)
    return time.perf_counter() - began


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measure_stage(row: Measured, load: Load, amounts: Amounts, folder: Path) -> None:
    """The whole stage, where pyarrow is: it reads and writes Arrow tables."""
    try:
        from tests.benchmarks.gpu.stage import stage_seconds
    except ModuleNotFoundError as error:
        row.notes.append(f"the whole stage was not measured: {error}")
        return
    texts = [of_image[0] for of_image in load.texts]
    given = {"image_batch": row.image_batch, "shards": amounts.shards}
    seconds = stage_seconds(load.model, load.resolved.profile, load.pictures, texts, folder, **given)
    row.stage = amounts.shards * len(texts) / seconds


def _picture(seed: int, side: int) -> Image.Image:
    """Coarse random blocks, whose PNG takes about as long to decode as that of a photograph."""
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 200, (12, 12, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(blocks).resize((side, side), Image.Resampling.BICUBIC))
    return Image.fromarray(smooth + generator.integers(0, 16, smooth.shape, dtype=np.uint8))


def _text(image: int, text: int) -> str:
    """A text of about ten words, another one for every image and place."""
    number = image * QUESTIONS + text
    colour, other = COLOURS[number % 8], COLOURS[(number // 8) % 8]
    thing, second = THINGS[(number // 64) % 8], THINGS[number * 3 % 8]
    return f"a {colour} {thing} and a {other} {second} {PLACES[number % 4]}"

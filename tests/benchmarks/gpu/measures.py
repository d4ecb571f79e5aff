"""Measures one model: compares our scoring with scoring one pair at a time, and both with the machine's limits."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from PIL import Image

from plumbline.operators.base.batches import BatchSize, encode_in_windows
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.questions.vqascore import DEFAULT_QUESTIONS
from plumbline.operators.models.calls import Message, Question
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood
from plumbline.operators.models.networks.image_prompts import Pixels
from plumbline.operators.models.networks.vlm import ChatVlm
from tests.benchmarks.gpu import flops
from tests.benchmarks.gpu.checkpoints import Likelihood, serve_model
from tests.benchmarks.gpu.rows import MIN_SHARDS, MIN_STAGE_SECONDS, N_QUESTIONS, MeasuredModel, WorkAmounts
from tests.benchmarks.gpu.shapes import FULL_SHAPES, TINY_SHAPES, NetworkShape
from tests.benchmarks.photographs import make_photograph

COLOURS = ["red", "green", "blue", "yellow", "black", "white", "purple", "orange"]
THINGS = ["dog", "cat", "bicycle", "teapot", "umbrella", "guitar", "lantern", "sofa"]
PLACES = ("on a wooden table", "in a quiet street at night", "beside a river", "under a large tree")
N_IMAGES = 8
"""Number of different images; more would only take longer to prepare."""


class Workload(NamedTuple):
    """A model, prepared images, and questions about each image."""

    resolved: ResolvedModel
    model: Likelihood
    encoded: list[bytes]
    """The images as PNG files, in the same order as `pixels`, `texts` and `questions`."""
    pixels: list[Any]
    texts: list[list[str]]
    """Texts that the images are scored with, by image."""
    questions: list[list[Question]]
    """Questions by image; the field `image` of every question is 0 until a caller sets it."""

    @property
    def network(self) -> Any:
        return self.model.model if isinstance(self.model, ClipFlanT5Likelihood) else self.model.reader.model


def measure(name: str, shapes: str | None, amounts: WorkAmounts, server: Any, folder: Path) -> MeasuredModel:
    """Measure one model and return its row of the table; raise any error from building or running the model.

    `server` is the S3Server, or the exception that explains why there is no server.
    """
    on_gpu = torch.cuda.is_available()
    shapes = shapes or ("full" if on_gpu else "tiny")
    load = make_workload(
        name, (FULL_SHAPES if shapes == "full" else TINY_SHAPES)[name], folder, images=amounts.images, on_gpu=on_gpu
    )
    row = MeasuredModel(
        model=name,
        shapes=shapes,
        device=torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads",
        dtype=load.resolved.dtype,
        versions=f"torch {torch.__version__}, transformers {transformers.__version__}",
        parameters=sum(weight.numel() for weight in load.network.parameters()),
    )
    row.image_tokens, row.question_tokens = _count_tokens(load)
    _measure_model(row, load, amounts)
    _measure_stage(row, load, amounts, server)
    row.memory = torch.cuda.max_memory_allocated() if on_gpu else 0
    return row


def make_workload(
    name: str, shape: NetworkShape, folder: Path, *, images: int, on_gpu: bool, **options: Any
) -> Workload:
    """Return a model with random weights, and its inputs.

    None of this is measured; the images are already prepared, on the CPU. `options` are passed to `serve_model`.
    """
    texts = [[make_text(image, text) for text in range(N_QUESTIONS)] for image in range(images)]
    spoken = [
        *(question.template for question in DEFAULT_QUESTIONS.values()),
        *(text for of_image in texts for text in of_image),
    ]
    resolved, model = serve_model(name, shape, folder, spoken, on_gpu=on_gpu, batch=images, **options)
    assert resolved.profile is not None
    kinds = [make_photograph(seed, shape.side) for seed in range(min(N_IMAGES, images))]
    encoded, ready = [_encode_png(picture) for picture in kinds], [model.preprocess(picture) for picture in kinds]
    places = [image % len(kinds) for image in range(images)]
    template, answer, _ = DEFAULT_QUESTIONS[resolved.profile.question]
    questions = [[Question(0, template.replace("{}", text), (answer,)) for text in of_image] for of_image in texts]
    return Workload(
        resolved, model, [encoded[place] for place in places], [ready[place] for place in places], texts, questions
    )


def _count_tokens(load: Workload) -> tuple[int, int]:
    """Return the numbers of tokens in the first image and in the first question about it."""
    model, text = load.model, load.questions[0][0].text
    if isinstance(model, ClipFlanT5Likelihood):
        vision = model.model.vision_tower.config
        around = len(model.before) + len(model.tokenize_questions([model.format_question(text)])[0])
        return (vision.image_size // vision.patch_size) ** 2, around
    image = load.pixels[0]
    return len(image.ids), len(model.prompts.tokenize_after_image([Message("user", text)], image.closing))


def _measure_model(row: MeasuredModel, load: Workload, amounts: WorkAmounts) -> None:
    model, size = load.model, BatchSize(amounts.images)
    row.flops = flops.count_pair_flops(model, load.pixels[0], load.questions[0][0])
    row.matmul = measure_matmul_rate(model.device, getattr(torch, row.dtype))
    one = [of_image[:1] for of_image in load.questions]
    ours = score(model, load.pixels, load.questions, size)  # warms up, and finds the sizes that fit
    row.image_batch, row.pair_batch = size.rows, model.pair_batch.rows
    score(model, load.pixels, one, size)
    seconds = partial(measure_median_seconds, device=model.device, repeats=amounts.repeats)
    row.ten = amounts.images * N_QUESTIONS / seconds(lambda: score(model, load.pixels, load.questions, size))
    row.one = amounts.images / seconds(lambda: score(model, load.pixels, one, size))
    every = [(image, text) for image in range(amounts.images) for text in range(N_QUESTIONS)]
    pairs = every[: amounts.peer_pairs]

    def score_with_peer() -> list[float]:
        return [score_pair(model, load.pixels[image], load.questions[image][text]) for image, text in pairs]

    def score_with_released_peer() -> list[float]:
        return [score_file(model, load.encoded[image], load.questions[image][text]) for image, text in pairs]

    compared = [ours[image][text] for image, text in pairs]
    theirs = zip(compared, score_with_peer(), score_with_released_peer(), strict=True)
    row.difference = max(abs(own - other) for own, *others in theirs for other in others)
    row.ready_peer, row.peer = len(pairs) / seconds(score_with_peer), len(pairs) / seconds(score_with_released_peer)


def score(
    model: Likelihood, pixels: Sequence[Any], questions: Sequence[Sequence[Question]], size: BatchSize
) -> list[list[float]]:
    """Return the log-probability of the answer's first token, by image and question.

    It makes the same model calls as the answers stage, in the same windows, but writes no tables.
    """
    scores: list[list[float]] = []

    def ask(first: int, encoded: Sequence[Any], *, raise_oom: bool) -> None:
        failed = next((one for one in encoded if isinstance(one, RowError)), None)
        if failed is not None:
            raise RuntimeError(failed.message)
        window = questions[first : first + len(encoded)]
        asked = [one._replace(image=place) for place, of_image in enumerate(window) for one in of_image]
        answers = iter(model.likelihood(encoded, asked))
        scores.extend([next(answers)[0][0] for _ in of_image] for of_image in window)

    encode_in_windows(model.encode, pixels, size, ask)
    return scores


@torch.inference_mode()
def score_pair(model: Likelihood, pixels: Any, question: Question) -> float:
    """Return the log-probability of the answer's first token for one pair with preprocessed pixels.

    The image is encoded for this pair alone, and the whole prompt is read in one pass.
    """
    if isinstance(model, ClipFlanT5Likelihood):
        return model.likelihood(model.encode([pixels]), [question._replace(image=0)])[0][0][0]
    network, inputs = model.reader.model, _make_prompt_inputs(model, pixels, question)
    return _compute_first_token_log_probability(
        model, question, network(**inputs, use_cache=False, logits_to_keep=1).logits[0, -1]
    )


@torch.inference_mode()
def score_file(model: Likelihood, encoded: bytes, question: Question) -> float:
    """Score one pair like the released scripts (t2v_metrics: clip_t5_model.py, qwen2vl_model.py).

    Return the log-probability of the answer's first token. The computation starts from the image file, and uses
    `generate` for the first token of a decoder-only model. The preprocessing is our own.
    """
    pixels = model.preprocess(Image.open(BytesIO(encoded)).convert("RGB"))
    if isinstance(model, ClipFlanT5Likelihood):
        return score_pair(model, pixels, question)
    generated = model.reader.model.generate(
        **_make_prompt_inputs(model, pixels, question), max_new_tokens=1, do_sample=False, pad_token_id=0,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    return _compute_first_token_log_probability(model, question, generated.logits[0][0])


def _make_prompt_inputs(model: ChatVlm, pixels: Pixels, question: Question) -> dict[str, torch.Tensor]:
    """Return the inputs of a transformers network for one pair."""
    ids = [*pixels.ids, *model.prompts.tokenize_after_image([Message("user", question.text)], pixels.closing)]
    prompt = torch.tensor([ids], device=model.device)
    seen = model.reader.make_vision_inputs([pixels])
    if "image_grid_thw" in seen:
        seen["mm_token_type_ids"] = (prompt == model.reader.image_id).int()
    return {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), **seen}


def _compute_first_token_log_probability(model: ChatVlm, question: Question, logits: torch.Tensor) -> float:
    (first, *_) = model.prompts.tokenize_choice(question.text, question.choices[0])
    return float(logits.float().log_softmax(-1)[first])


def measure_matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return operations per second for products of square matrices, which are 8192 wide on a GPU and 512 on a CPU."""
    side, times = (8192, 50) if device.type == "cuda" else (512, 10)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    result = torch.empty_like(left)

    def multiply() -> None:
        for _ in range(times):
            torch.matmul(left, right, out=result)

    multiply()
    return times * flops.count_product_flops(side, side, side) / measure_median_seconds(multiply, device, 3)


def measure_median_seconds(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Return the median wall-clock seconds of `repeats` calls; the device is idle before and after each call."""
    return statistics.median(_time_call(call, device) for _ in range(repeats))


def _time_call(call: Callable[[], Any], device: torch.device) -> float:
    _wait_for(device)
    began = time.perf_counter()
    call()
    _wait_for(device)
    return time.perf_counter() - began


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measure_stage(row: MeasuredModel, load: Workload, amounts: WorkAmounts, server: Any) -> None:
    """Measure a whole sweep, if there is an S3 server and the packages for sweeps are installed."""
    try:
        from tests.benchmarks.gpu.stage import ImageShards, measure_sweep
    except ImportError as error:
        server = error
    if isinstance(server, Exception):
        row.notes.append(f"no sweep from S3 was measured: {server}")
        return
    texts = [of_image[0] for of_image in load.texts]
    seconds = MIN_STAGE_SECONDS if row.shapes == "full" else 0
    count = amounts.shards or max(MIN_SHARDS, round(seconds * row.one / len(texts)))
    shards = ImageShards(load.encoded, texts, count, bucket=f"bench-{row.model.replace('.', '-')}")
    row.stage, row.busy, row.decoders = measure_sweep(load.resolved, load.model, shards, server)


def _encode_png(picture: Image.Image) -> bytes:
    stream = BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def make_text(image: int, text: int) -> str:
    """Return a text of about ten words that differs for every image and position."""
    number = image * N_QUESTIONS + text
    colour, other = COLOURS[number % 8], COLOURS[(number // 8) % 8]
    thing, second = THINGS[(number // 64) % 8], THINGS[number * 3 % 8]
    return f"a {colour} {thing} and a {other} {second} {PLACES[number % 4]}"

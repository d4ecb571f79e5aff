"""Calls each method of a tiny vision-language model in vLLM, and prints the answers as JSON.

`python -m tests.vllm.ask FOLDER` runs in a separate process, because vLLM needs a torchvision on the path to read
images.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from plumbline.operators.base.errors import RowError
from plumbline.operators.models.calls import Generation, ImageRequest, Message, Question, Request
from plumbline.operators.models.engines.conversation import (
    ThinkingMode,
    decode_reply,
    render_image_conversation,
    tokenize_choice,
)
from plumbline.operators.models.engines.vllm_calls import VllmLikelihood
from plumbline.operators.models.engines.vllm_engine import ProcessedImages, Prompt
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.processing import centre_on_square
from plumbline.operators.models.resolution import resolve_model

QUESTIONS = [
    Question(image, text, choices)
    for image in range(2)
    for text, choices in [
        ("Is there a red cube?", ("Yes", "No")),
        ("Is it on the left of the ball, as the caption says?", ("Yes",)),
        ("How many?", ("three", "four", "many more")),
    ]
]

QuestionImages = Sequence[Image.Image]
"""The images that one question is about."""
MAX_TOKENS = 12
"""Maximum number of tokens in a reply."""


def make_noise_images() -> list[Image.Image]:
    """Return two images, each larger than a block of vLLM's cache, which has 128 tokens on a CPU."""
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 256, (392, 392, 3), dtype=np.uint8)) for _ in range(2)]


@torch.inference_mode()
def compute_likelihood_with_transformers(
    folder: Path, shown: Sequence[QuestionImages], system: str | None
) -> list[list[list[float]]]:
    """Return log-probabilities by question, choice and token from transformers' own processor and model.

    The function runs one forward pass per choice; `shown` are the images that questions refer to by index.
    """
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    return [
        [_compute_logprobs(model, processor, shown, one, choice, system) for choice in one.choices] for one in QUESTIONS
    ]


def _compute_logprobs(
    model: Any, processor: Any, shown: Sequence[QuestionImages], question: Question, choice: str, system: str | None
) -> list[float]:
    text, inputs = _lay_out_prompt(processor, shown[question.image], question, system)
    end = processor.tokenizer.eos_token_id
    labels = torch.tensor([tokenize_choice(processor.tokenizer, text, choice, end=end)])
    for name, filling in {"input_ids": labels, "attention_mask": 1, "mm_token_type_ids": 0}.items():
        if name in inputs:
            more = filling if isinstance(filling, torch.Tensor) else torch.full_like(labels, filling)
            inputs[name] = torch.cat([inputs[name], more], dim=1)
    logprobs = model(**inputs).logits[0, -labels.shape[1] - 1 : -1].log_softmax(-1)
    chosen: list[float] = logprobs.gather(1, labels.T).squeeze(1).tolist()
    return chosen


def _lay_out_prompt(processor: Any, images: QuestionImages, question: Question, system: str | None) -> tuple[str, Any]:
    """Return the prompt's text, and the processor's output for the text and the images."""
    asked = [Message("user", question.text)]
    text = render_image_conversation(processor.tokenizer, asked, system=system, images=len(images))
    return text, processor(text=[text], images=list(images), return_tensors="pt")


def count_cached(model: VllmLikelihood, images: Sequence[Image.Image]) -> list[int]:
    """Return the numbers of requests, prompt tokens and cached tokens for one call on mirrored images.

    The images are mirrored so that the cache does not contain them before the call.
    """
    before = model.usage
    turned = [image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for image in images]
    model.likelihood([model.preprocess(image) for image in turned], QUESTIONS)
    used = model.usage.minus(before)
    return [used.calls, used.prompt_tokens, used.cached_tokens]


def compute_reference_likelihood(
    model: VllmLikelihood, images: Sequence[ProcessedImages], questions: Sequence[Question]
) -> list[list[list[float]]]:
    """Return log-probabilities by question, choice and token from vLLM's own scoring of whole prompts.

    This is the reference for `likelihood`; it is slow and uses no cache.
    """
    from vllm import SamplingParams

    asked = [model._tokenize_question(images, question) for question in questions]
    whole = [(question, choice) for question in asked for choice in question.choices]
    prompts = [Prompt(question.ids + choice, question.image) for question, choice in whole]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    outputs = model._run_engine(prompts, [params] * len(prompts))
    answers = iter([_select_last_logprobs(output, choice) for output, (_, choice) in zip(outputs, whole, strict=True)])
    return [[next(answers) for _ in question.choices] for question in asked]


def _select_last_logprobs(output: Any, choice: Sequence[int]) -> list[float]:
    last = output.prompt_logprobs[-len(choice) :]
    return [row[token].logprob for row, token in zip(last, choice, strict=True)]


@torch.inference_mode()
def reply_with_transformers(folder: Path, shown: Sequence[QuestionImages], system: str | None) -> list[str]:
    """Return the likeliest continuation of each of QUESTIONS, from transformers' own processor and `generate`."""
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    replies = []
    for question in QUESTIONS:
        _, inputs = _lay_out_prompt(processor, shown[question.image], question, system)
        output = model.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)
        new = output[0, inputs["input_ids"].shape[1] :]
        replies.append(str(processor.tokenizer.decode(new, skip_special_tokens=True)))
    return replies


def hold_conversations(model: VllmLikelihood, images: Sequence[ProcessedImages]) -> list[list[Any]]:
    """Generate replies about the images; return each reply's text, whether it is complete, and its token counts.

    A failed request gives the fields of its error instead.
    """
    said = [(question.image, question.text, {}) for question in QUESTIONS]
    drawn = [(0, "Say.", {"temperature": 1.0, "seed": seed}) for seed in (1, 1, 2)]
    requests = [
        ImageRequest(image, Request((Message("user", text),), MAX_TOKENS, **fields))
        for image, text, fields in said + drawn
    ]
    requests.append(ImageRequest(0, Request((Message("user", "long " * 1024),), MAX_TOKENS)))
    replies = model.generate_from_images(images, requests)
    return [
        [reply.text, reply.complete, *reply.usage] if isinstance(reply, Generation) else list(reply)
        for reply in replies
    ]


def reply_after_thought(model: VllmLikelihood, images: Sequence[ProcessedImages]) -> list[str]:
    """Return the reply after a thought that ends with the model's third token, and the reply that is expected."""
    asked = ImageRequest(0, Request((Message("user", QUESTIONS[0].text),), 2 * MAX_TOKENS))
    (whole,) = model.generate_from_images(images, [asked])
    assert isinstance(whole, Generation)
    end = whole.ids.index(whole.ids[2]) + 1
    model.thinking = ThinkingMode(tokens=MAX_TOKENS, begin=-1, end=whole.ids[2], opened=True)
    request = asked.request._replace(max_tokens=MAX_TOKENS)
    (reply,) = model.generate_from_images(images, [ImageRequest(0, request)])
    assert isinstance(reply, Generation), reply
    return [reply.text, decode_reply(model.tokenizer, whole.ids[end : end + MAX_TOKENS]).lstrip()]


def describe_failure(model: VllmLikelihood, images: Sequence[ProcessedImages], question: str) -> list[Any]:
    """Return the fields of the model's error for a question about the first image; an empty list if it answers."""
    (answer,) = model.likelihood(images, [Question(0, question, ("Yes",))])
    return list(answer) if isinstance(answer, RowError) else []


def order_both_ways(images: Sequence[Image.Image]) -> list[QuestionImages]:
    """Return a pair of images of different sizes in both orders."""
    pair = [images[0], images[1].crop((0, 0, 280, 196))]
    return [pair, pair[::-1]]


def main(folder: Path) -> None:
    config = make_model_config(
        family="vlm", checkpoint=str(folder), engine="vllm", dtype="float32", engine_options={"max_model_len": 1024}
    )
    model = load(resolve_model(config, on_gpu=False), "likelihood")
    assert isinstance(model, VllmLikelihood)
    seen = make_noise_images()
    images = model.encode([model.preprocess(image) for image in seen])
    pairs = order_both_ways(seen)
    joined = model.encode([model.preprocess_several(pair) for pair in pairs])
    alone = [[image] for image in seen]
    padded = [[centre_on_square(image, model.padding) for image in pair] for pair in pairs]
    answers = {
        "fast": model.likelihood(images, QUESTIONS),
        "reference": compute_reference_likelihood(model, images, QUESTIONS),
        "transformers": compute_likelihood_with_transformers(folder, alone, model.system),
        "usage": count_cached(model, seen),
        "replies": model.reply(images, QUESTIONS),
        "talk": hold_conversations(model, images),
        "transformers talk": reply_with_transformers(folder, alone, model.system),
        "too long": describe_failure(model, images, "long " * 1024),
        "two": model.likelihood(joined, QUESTIONS),
        "transformers two": compute_likelihood_with_transformers(folder, padded, model.system),
        "talk of two": hold_conversations(model, joined),
        "transformers talk of two": reply_with_transformers(folder, padded, model.system),
        "thought": reply_after_thought(model, images),
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Trains LLaVAs, such as those of the VQAScore paper with a 7B or 13B Llama-2 (appendix D, table 12).

Training follows LLaVA-1.5 (Liu et al. 2023). In stage 1, the language model writes the caption directly after the
image. In stage 2, it writes the answer to a question phrased as at inference. Only tokens that it writes contribute to
the loss.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    CLIPVisionModel,
    GenerationConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from plumbline.operators.base.errors import ModelError, RowError, UnprocessableRowError
from plumbline.operators.models.calls import Message
from plumbline.operators.models.checkpoints.parts import Part, read_fields
from plumbline.operators.models.families.vlm import make_chat_vlm
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.image_prompts import Pixels
from plumbline.operators.models.processing import explain_load_errors, load_pretrained, load_tokenizer
from plumbline.plugins.training.trainee import Trainee

IGNORED_LABEL = -100
"""Label of tokens that the network reads but does not learn to write."""
IMAGE_FILES = ("preprocessor_config.json", "processor_config.json")
IMAGE_TOKEN, PADDING_TOKEN = "<image>", "<pad>"
PENULTIMATE_LAYER = -2
"""Index of the vision tower's layer whose output LLaVA-1.5 uses."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\n' }}"
    "{% else %}{{ part['text'] + ' ' }}{% endif %}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""Chat template of LLaVA-1.5."""


class LlavaExercise(NamedTuple):
    """Tokens that the network reads, and tokens that it learns to write."""

    image: int
    """Index into the batch's images."""
    read: list[int]
    """Tokens to read, including those of the image."""
    written: list[int]


class LlavaBatch(NamedTuple):
    """Input of one training step."""

    pixels: torch.Tensor
    """Image of each text (n, 3, side, side)."""
    ids: torch.Tensor
    """Token ids (n, tokens), right-padded."""
    labels: torch.Tensor
    """Label of each token (n, tokens); IGNORED_LABEL for tokens that do not contribute to the loss."""

    def to(self, device: torch.device) -> "LlavaBatch":
        return LlavaBatch(*(tensor.to(device, non_blocking=True) for tensor in self))


class LlavaTrainee(Trainee):
    """A LLaVA to train. It has a vision tower, a projector, and a decoder that reads the image before the text."""

    prefixes: ClassVar = {
        "mm_projector": ("model.multi_modal_projector.",),
        "language_model": ("model.language_model.", "lm_head."),
    }

    def make_caption_exercise(self, image: int, pixels: Pixels, caption: str, rng: Random) -> LlavaExercise:
        """Return a training example whose target is the caption directly after the image (LLaVA's stage 1)."""
        prompts, begin = self.likelihood.prompts, self.likelihood.prompts.tokenizer.bos_token_id
        shown = [token for token in pixels.ids if token == prompts.image_id]
        written = prompts.tokenizer(f"{caption}\n", add_special_tokens=False).input_ids
        return self._require_valid_length(LlavaExercise(image, [*([] if begin is None else [begin]), *shown], written))

    def make_question_exercise(self, image: int, pixels: Pixels, question: str, answer: str) -> LlavaExercise:
        prompts = self.likelihood.prompts
        tokens = prompts.tokenize_after_image([Message("user", question)], pixels.closing)
        return self._require_valid_length(
            LlavaExercise(image, [*pixels.ids, *tokens], prompts.tokenize_choice(question, answer))
        )

    def _require_valid_length(self, text: LlavaExercise) -> LlavaExercise:
        """Return the exercise; raise UnprocessableRowError if it is too long or its answer contains an image token."""
        prompts = self.likelihood.prompts
        if prompts.image_id in text.written:
            message = f"the text contains {prompts.mark!r}, which this model reads as a second image; remove it"
            raise UnprocessableRowError(RowError("request_refused", message))
        tokens, context = len(text.read) + len(text.written), self.likelihood.context
        if context is not None and tokens > context:
            message = f"image and text take {tokens} tokens, beyond the model's context of {context}; shorten the text"
            raise UnprocessableRowError(RowError("prompt_too_long", message))
        return text

    def make_batch(self, pixels: Sequence[Pixels], exercises: Sequence[LlavaExercise]) -> LlavaBatch:
        rows = [torch.tensor([*text.read, *text.written]) for text in exercises]
        labels = [torch.tensor([IGNORED_LABEL] * len(text.read) + text.written) for text in exercises]
        inputs = self.likelihood.reader.make_vision_inputs([pixels[text.image] for text in exercises])
        return LlavaBatch(
            inputs["pixel_values"],
            pad_sequence(rows, batch_first=True),
            pad_sequence(labels, batch_first=True, padding_value=IGNORED_LABEL),
        )

    def compute_loss(self, network: Any, batch: LlavaBatch) -> torch.Tensor:
        """Return the mean loss over all written tokens, including the end-of-answer token.

        Tokens only attend to earlier tokens, so no mask is needed for padding on the right.
        """
        states = network.model(
            input_ids=batch.ids, pixel_values=batch.pixels, attention_mask=torch.ones_like(batch.ids), use_cache=False
        ).last_hidden_state[:, :-1]
        labels = batch.labels[:, 1:]
        is_written = labels != IGNORED_LABEL
        return cross_entropy(network.lm_head(states[is_written]).float(), labels[is_written])

    def save(self, model: ResolvedModel, folder: Path | None) -> None:
        """Write the weights and the tokenizer, and copy the image processor's files."""
        assert folder is not None, "the weights of a LLaVA are never sharded"
        for name, parameter in self.network.named_parameters():
            parameter.data = parameter.data.to(self.precisions[name])
        self.network.save_pretrained(folder)
        self.likelihood.prompts.tokenizer.save_pretrained(folder)
        _copy_image_files(model.parts["checkpoint"], folder)


def _copy_image_files(part: Part, folder: Path) -> None:
    for file in filter(None, map(part.find_file, IMAGE_FILES)):
        shutil.copyfile(file, folder / file.name)


def load_llava(model: ResolvedModel[Any], device: torch.device) -> LlavaTrainee:
    """Load a LLaVA onto a device; raise ModelError if it does not load."""
    network = load_pretrained(LlavaForConditionalGeneration, model, dtype="auto", attn_implementation="sdpa")
    precisions = {name: parameter.dtype for name, parameter in network.named_parameters()}
    network = network.to(device=device, dtype=torch.float32)
    network.generation_config = _make_plain_generation_config(network)
    return LlavaTrainee(network, make_chat_vlm(model, network), precisions)


def _make_plain_generation_config(network: Any) -> GenerationConfig:
    """Return a generation config that only has the special tokens.

    The sampling options are dropped because transformers refuses to save those of some checkpoints.
    """
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return GenerationConfig(**{name: getattr(network.generation_config, name) for name in names})


def assemble_llava(language: Part, tower: Part, folder: Path, *, seed: int) -> None:
    """Write a new LLaVA for stage 1: a Llama, a CLIP vision tower, and an untrained projector between them.

    Raises ModelError if the language model is not a Llama, or if weights do not load.
    """
    kind = read_fields(language)["model_type"]
    if kind != "llama":
        raise ModelError(
            f"{language.source}: expected a Llama model, from which LLaVA is built, found the type {kind}; set "
            "begin.language_model to a Llama model"
        )
    tokenizer = load_tokenizer(language.folder())
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    if tokenizer.pad_token is None:
        tokenizer.add_special_tokens({"pad_token": PADDING_TOKEN})
    tokenizer.chat_template = CHAT_TEMPLATE
    with explain_load_errors(language.folder(), "weights"):
        llama = AutoModelForCausalLM.from_pretrained(language.folder(), dtype="auto", use_safetensors=True)
    with explain_load_errors(tower.folder(), "weights"):
        vision = CLIPVisionModel.from_pretrained(tower.folder(), dtype=llama.dtype, use_safetensors=True)
    if len(tokenizer) > llama.config.vocab_size:
        llama.resize_token_embeddings(len(tokenizer))
    config = LlavaConfig(
        text_config=llama.config,
        vision_config=vision.config,
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        image_seq_length=(vision.config.image_size // vision.config.patch_size) ** 2,
        vision_feature_layer=PENULTIMATE_LAYER,
        tie_word_embeddings=llama.config.tie_word_embeddings,
        dtype=llama.dtype,
    )
    with torch.device("meta"):
        network = LlavaForConditionalGeneration(config)
    torch.manual_seed(seed)
    network.model.multi_modal_projector = LlavaMultiModalProjector(config).to(llama.dtype)
    network.model.vision_tower, network.model.language_model, network.lm_head = vision, llama.model, llama.lm_head
    network.generation_config = _make_plain_generation_config(llama)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _copy_image_files(tower, folder)

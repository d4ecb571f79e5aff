"""Makes checkpoints without weight files; random weights are created directly on the device."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    PreTrainedTokenizerFast,
    T5Config,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from plumbline.operators.models.families import make_model_config, vlm
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.clip_flant5 import TEXT_BEFORE_IMAGE, ClipFlanT5, ClipFlanT5Likelihood
from plumbline.operators.models.networks.vlm import ChatVlm
from plumbline.operators.models.processing import find_device
from plumbline.operators.models.resolution import resolve_model
from tests.benchmarks.gpu.shapes import FAMILY_BY_MODEL, NetworkShape

Likelihood = ClipFlanT5Likelihood | ChatVlm

SEED = 0
IMAGE_MEAN, IMAGE_DEVIATION = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
T5_SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")
LLAVA_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<image>", "<pad>")
QWEN_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
                       "<|image_pad|>", "<|video_pad|>")  # fmt: skip
QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>\n' }}"
    "{% else %}{{ part['text'] + ' ' }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
CONVERSATION_TEXTS = (TEXT_BEFORE_IMAGE, "user\n", "assistant\n", "system\n", "USER: ASSISTANT: Yes No", "Yes", "No")
"""Texts that a conversation contains besides the question."""


def serve_model(
    name: str,
    shape: NetworkShape,
    folder: Path,
    texts: Iterable[str],
    *,
    on_gpu: bool,
    batch: int,
    device: str | None = None,
    **options: Any,
) -> tuple[ResolvedModel, Likelihood]:
    """Return a model of this shape, served by its family's own code; its tokenizer knows the words of `texts`.

    `batch` is the number of images encoded together and of pairs answered together; `options` are passed to the model.
    On the device `meta`, the model has shapes but no weights; it can still preprocess images.
    """
    network_config = _save(name, shape, folder, texts)
    config = make_model_config(
        family=FAMILY_BY_MODEL[name], checkpoint=str(folder), image_batch=batch, pair_batch=batch, **options
    )
    model = resolve_model(config, on_gpu=on_gpu)
    network = _make_network(
        network_config, shape, torch.device(device or find_device(model)), getattr(torch, model.dtype)
    )
    if not isinstance(network, ClipFlanT5):
        return model, vlm.make_chat_vlm(model, network.eval())
    network.drop_unused_layers()
    return model, ClipFlanT5Likelihood.load(model, network.eval())


def make_random_network(
    name: str, shape: NetworkShape, folder: Path, texts: Iterable[str], device: torch.device, dtype: torch.dtype
) -> Any:
    """Return a network of this shape with random weights, and write the rest of its checkpoint to the folder."""
    return _make_network(_save(name, shape, folder, texts), shape, device, dtype)


def _save(name: str, shape: NetworkShape, folder: Path, texts: Iterable[str]) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    return SAVE_FUNCTIONS[name](shape, folder, _split_words([*CONVERSATION_TEXTS, *texts]))


def _make_network(config: Any, shape: NetworkShape, device: torch.device, dtype: torch.dtype) -> Any:
    with device, _use_default_dtype(dtype):  # avoids a copy, so takes half the memory
        torch.manual_seed(SEED)
        return _make_random_weights(config, shape)


def _make_random_weights(config: Any, shape: NetworkShape) -> Any:
    if not isinstance(config, T5Config):
        dtype = torch.get_default_dtype()
        return AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation="sdpa")
    network = ClipFlanT5(config, CLIPVisionConfig(**shape.vision))
    with torch.no_grad():  # T5 initialises its embeddings, which the head copies, for a scaled-down head
        network.language_model.lm_head.weight.normal_(std=config.d_model**-0.5)
    return network


@contextmanager
def _use_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _save_clip_flant5(shape: NetworkShape, folder: Path, words: Sequence[str]) -> T5Config:
    language = {"model_type": "clip_t5", "architectures": ["CLIPT5ForConditionalGeneration"], **shape.language}
    tower = {"mm_vision_tower": "./tower", "mm_vision_select_layer": -2, "mm_projector_type": "mlp2x_gelu"}
    _write_json(folder / "config.json", language | tower)
    _save_empty_weights(folder)
    CLIPVisionConfig(**shape.vision).save_pretrained(folder / "tower")
    _save_clip_preprocessor(folder / "tower", shape.vision["image_size"])
    _save_empty_weights(folder / "tower")
    entries = shape.language["vocab_size"] - (28 if shape.language["vocab_size"] == 32_128 else 0)
    _save_tokenizer(folder, T5_SPECIAL_TOKENS, words, entries, ends="</s>", pad="<pad>", eos="</s>")
    return T5Config(**shape.language)


def _save_llava(shape: NetworkShape, folder: Path, words: Sequence[str]) -> LlavaConfig:
    ids = {token: index for index, token in enumerate(LLAVA_SPECIAL_TOKENS)}
    marks = {"bos_token_id": ids["<s>"], "eos_token_id": ids["</s>"], "pad_token_id": ids["<pad>"]}
    vision = CLIPVisionConfig(**shape.vision)
    config = LlavaConfig(
        text_config=LlamaConfig(**shape.language, **marks, tie_word_embeddings=False),
        vision_config=vision,
        image_token_id=ids["<image>"],
        image_seq_length=(vision.image_size // vision.patch_size) ** 2,
        architectures=["LlavaForConditionalGeneration"],
        tie_word_embeddings=False,
    )
    config.save_pretrained(folder)
    _save_empty_weights(folder)
    _save_clip_preprocessor(folder, vision.image_size)
    template = LLAVA_TEMPLATE
    _save_tokenizer(folder, LLAVA_SPECIAL_TOKENS, words, None, begins="<s>", pad="<pad>", eos="</s>", template=template)
    return config


def _save_qwen(
    kind: str,
    pixel_statistics: tuple[Sequence[float], Sequence[float]],
    shape: NetworkShape,
    folder: Path,
    words: Sequence[str],
) -> Any:
    """Save a Qwen-VL of the model type `kind` without weights, and return its config.

    `pixel_statistics` are the means and the standard deviations by which its processor normalises pixels.
    """
    ids = {token: index for index, token in enumerate(QWEN_SPECIAL_TOKENS)}
    marks = {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}
    config = AutoConfig.for_model(
        kind,
        text_config={**shape.language, **marks, "tie_word_embeddings": False},
        vision_config=shape.vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    config.architectures = [MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[kind]]
    config.save_pretrained(folder)
    _save_empty_weights(folder)
    patches = {"patch_size": shape.vision["patch_size"], "merge_size": 2, "temporal_patch_size": 2}
    pixels = {"min_pixels": 4 * patches["patch_size"] ** 2, "max_pixels": 12_845_056}
    fields = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_mean": pixel_statistics[0],
        "image_std": pixel_statistics[1],
    }
    _write_json(folder / "preprocessor_config.json", fields | patches | pixels)
    template = QWEN_TEMPLATE
    _save_tokenizer(folder, QWEN_SPECIAL_TOKENS, words, None, pad="<|endoftext|>", eos="<|im_end|>", template=template)
    return config


def _save_clip_preprocessor(folder: Path, side: int) -> None:
    size = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}, "resample": 3}
    kind = {"image_processor_type": "CLIPImageProcessor", "image_mean": IMAGE_MEAN, "image_std": IMAGE_DEVIATION}
    _write_json(folder / "preprocessor_config.json", kind | size)


def _save_empty_weights(folder: Path) -> None:
    """Write an empty weight file, for code that looks for one before a model is loaded."""
    save_file({}, folder / "model.safetensors", metadata={"format": "pt"})


def _split_words(texts: Iterable[str]) -> list[str]:
    """Return the words of the texts as byte-level tokenizers split them, mostly with the preceding space."""
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return list(dict.fromkeys(word for text in texts for word, _ in cut.pre_tokenize_str(text)))


def _save_tokenizer(
    folder: Path, special: Sequence[str], words: Sequence[str], entries: int | None, *, begins: str = "",
    ends: str = "", pad: str, eos: str, template: str | None = None,
) -> None:  # fmt: skip
    """Save a tokenizer with a token for every word in `words`, and one for every byte value for all other text.

    Unused tokens fill the vocabulary up to `entries` tokens; None adds no unused tokens. The tokens `begins` and `ends`
    are put before and after every text.
    """
    known = list(dict.fromkeys([*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), *words]))
    known += [f"<unused {place}>" for place in range(len(known), entries or 0)]
    vocabulary = {word: index for index, word in enumerate(known)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    if begins or ends:
        around = [(token, vocabulary[token]) for token in (begins, ends) if token]
        single = " ".join(part for part in (begins, "$A", ends) if part)
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=around)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, eos_token=eos, bos_token=begins or None)
    fast.chat_template = template
    fast.save_pretrained(folder)


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields))


SAVE_FUNCTIONS: dict[str, Callable[[NetworkShape, Path, Sequence[str]], Any]] = {
    "clip-flant5-xl": _save_clip_flant5,
    "clip-flant5-xxl": _save_clip_flant5,
    "qwen2.5-vl-7b": partial(_save_qwen, "qwen2_5_vl", (IMAGE_MEAN, IMAGE_DEVIATION)),
    "qwen3-vl-8b": partial(_save_qwen, "qwen3_vl", ([0.5] * 3, [0.5] * 3)),
    "llava-1.5-7b": _save_llava,
}
"""Functions that write a model's folder except the weights, keyed by the model's name.

Each returns the config of the language model or of the whole model.
"""

"""Tiny checkpoints with random weights in the layouts of released models: Llama, Qwen2-VL and LLaVA-1.5."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

QWEN_SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
]
QWEN_SPECIAL_TOKENS += ["<|image_pad|>", "<|video_pad|>"]
LLAVA_SPECIAL_TOKENS = ["<unk>", "<s>", "</s>", "<pad>", "<image>"]
QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' '}}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
LANGUAGE_FIELDS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}


def make_byte_tokenizer(special: list[str], merged: list[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer with a token for every byte and each of the `merged` words; other words take several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*special, *alphabet])}
    merges = []
    for word in merged:
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
            vocabulary.setdefault(word[:end], len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(dict.fromkeys(merges))))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def make_llama(folder: Path) -> Path:
    """Save a causal language model without a chat template."""
    tokenizer = make_byte_tokenizer(["<unk>", "<s>", "</s>"], ["the"])
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2, initializer_range=0.3, **LANGUAGE_FIELDS
    )
    return _save_model(LlamaForCausalLM(config), tokenizer, folder)


def make_qwen2_vl(folder: Path) -> Path:
    """Save a Qwen2-VL that has a chat template and reads images of any size at 28 x 28 pixels per token."""
    tokenizer = make_byte_tokenizer(QWEN_SPECIAL_TOKENS, ["Yes", "No"])
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    tokenizer.chat_template = QWEN_TEMPLATE
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in QWEN_SPECIAL_TOKENS}
    config = Qwen2VLConfig(
        text_config={
            **LANGUAGE_FIELDS,
            "vocab_size": len(tokenizer),
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6], "rope_type": "default"},
            "tie_word_embeddings": False,
            "initializer_range": 0.2,
        },
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2},
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    folder = _save_model(Qwen2VLForConditionalGeneration(config), tokenizer, folder)
    _write(folder / "preprocessor_config.json", QWEN_PREPROCESSOR)
    return folder


def make_llava(folder: Path) -> Path:
    """Save a LLaVA-1.5 with 144 tokens per image; the vision tower's tensors are named as in released checkpoints."""
    tokenizer = make_byte_tokenizer(LLAVA_SPECIAL_TOKENS, ["ĠYes", "ĠNo"])
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"})
    tokenizer.chat_template = LLAVA_TEMPLATE
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**vision, image_size=96, patch_size=8, projection_dim=32),
        text_config=LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.3, **LANGUAGE_FIELDS),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    torch.manual_seed(0)
    folder = _save_model(LlavaForConditionalGeneration(config), tokenizer, folder)
    weights = load_file(folder / "model.safetensors")
    released = {name.replace("vision_tower.", "vision_tower.vision_model."): w for name, w in weights.items()}
    save_file(released, folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "preprocessor_config.json", CLIP_PREPROCESSOR)
    _write(folder / "processor_config.json", LLAVA_PROCESSOR)
    return folder


def _save_model(model: Any, tokenizer: PreTrainedTokenizerFast, folder: Path) -> Path:
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _write(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n")


IMAGE_MEAN, IMAGE_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
NORMALISE_FIELDS = {
    "do_normalize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "image_mean": IMAGE_MEAN,
    "image_std": IMAGE_STD,
}
QWEN_PREPROCESSOR: dict[str, Any] = {
    **NORMALISE_FIELDS,
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2VLProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "min_pixels": 3136,
    "max_pixels": 200704,
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
}
CLIP_PREPROCESSOR: dict[str, Any] = {
    **NORMALISE_FIELDS,
    "image_processor_type": "CLIPImageProcessor",
    "processor_class": "LlavaProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "do_center_crop": True,
    "size": {"shortest_edge": 96},
    "crop_size": {"height": 96, "width": 96},
    "resample": 3,
}
LLAVA_PROCESSOR = {
    "processor_class": "LlavaProcessor",
    "patch_size": 8,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
    "image_token": "<image>",
}

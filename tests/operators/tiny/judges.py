"""Judges that always give the same reply: real architectures with weights that produce a reply in the right format."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    BlipImageProcessor,
    LlamaConfig,
    LlamaForCausalLM,
)

from tests.operators import tiny

SPECIAL_TOKENS = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}<|im_start|>"
SPACE_CHARACTER = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"
"""The character that stands for a space in a byte-level tokenizer's vocabulary."""
JUDGE_RATINGS = {"rating": 7, "semantic_consistency": 8, "naturalness": 9, "artifacts": 6}
"""Ratings that the judge with vision returns."""
NEXT_TOKENS = (
    ("<|im_start|>", "a"), ("a", "<|im_end|>"), (SPACE_CHARACTER, "7"), ("7", ","), ('"', "o"), ("o", "k"), ("k", '"'),
    ("}", "<|im_end|>"),
)  # fmt: skip
"""Tokens of the text-only judge, each with the token that follows it.

The judge replies `a`; under a schema that requires numbers and strings, it writes 7 and `ok`.
"""


def save_tokenizer(folder: Path, *replies: str) -> Mapping[str, int]:
    """Save a tokenizer whose tokens are single bytes and these replies; return its vocabulary."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *tiny.BYTE_TOKENS, *replies])}
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "<|im_end|>", "sep_token": "<|im_end|>"}
    fast = tiny.make_byte_tokenizer(vocabulary, SPECIAL_TOKENS, bos_token="<|im_start|>", **names)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return vocabulary


@torch.no_grad()
def save_judge(folder: Path) -> Path:
    """Save a Llama whose layers contribute nothing, so that each token alone determines the next."""
    vocabulary = save_tokenizer(folder)
    width = len(vocabulary) + len(vocabulary) % 2
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=width, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=8192, tie_word_embeddings=False, bos_token_id=2, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.model.layers[0].self_attn.o_proj.weight.zero_()
    model.model.layers[0].mlp.down_proj.weight.zero_()
    model.model.embed_tokens.weight.copy_(torch.eye(len(vocabulary), width))
    model.lm_head.weight.zero_()
    for before, after in NEXT_TOKENS:
        model.lm_head.weight[vocabulary[after], vocabulary[before]] = 1
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def save_seeing_judge(folder: Path, ratings: Mapping[str, float] = JUDGE_RATINGS) -> Path:
    """Save a BLIP that replies with these ratings to every image."""
    whole = json.dumps({**ratings, "rationale": "<b>plausible</b>"}).replace(" ", SPACE_CHARACTER)
    vocabulary = save_tokenizer(folder, whole)
    width = len(vocabulary) + len(vocabulary) % 2
    size = {"hidden_size": width, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": 2, "sep_token_id": 3, "pad_token_id": 0, "eos_token_id": 1}
    text = {**size, **ends, "vocab_size": len(vocabulary), "encoder_hidden_size": width, "projection_dim": 8}
    vision = {**size, "image_size": tiny.IMAGE_SIDE, "patch_size": 16}
    model = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=vision, projection_dim=8))
    bert, head = model.text_decoder.bert, model.text_decoder.cls.predictions
    for layer in bert.encoder.layer:
        for part in (layer.attention, layer.crossattention, layer):
            part.output.dense.weight.zero_()
            part.output.dense.bias.zero_()
    bert.embeddings.position_embeddings.weight.zero_()
    bert.embeddings.word_embeddings.weight.copy_(torch.eye(len(vocabulary), width))
    head.transform.dense.weight.zero_()
    head.transform.dense.bias.zero_()
    for before, after in (("<|im_start|>", whole), (whole, "<|im_end|>")):
        head.transform.dense.weight[vocabulary[after], vocabulary[before]] = 1
    model.save_pretrained(folder)
    BlipImageProcessor(size={"height": tiny.IMAGE_SIDE, "width": tiny.IMAGE_SIDE}).save_pretrained(folder)
    return folder

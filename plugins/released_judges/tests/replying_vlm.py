"""A tiny Qwen2-VL with real code, and with weights that are set to produce the same reply to every question."""

from pathlib import Path

import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from tests.operators import tiny

LAST_TOKEN = "\N{LATIN CAPITAL LETTER C WITH DOT ABOVE}"
"""Token of the line break that ends every question in the model's chat template, as byte-level tokenizers write it."""


@torch.no_grad()
def save_replying_vlm(folder: Path, reply: str) -> Path:
    """Save a Qwen2-VL whose layers contribute nothing, so that the last token alone determines the next one."""
    tiny.save_qwen2_vl(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([reply])
    tokenizer.save_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    for layer in model.model.language_model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    model.config.text_config.max_position_embeddings = 8192
    last, whole, end = map(tokenizer.convert_tokens_to_ids, (LAST_TOKEN, reply, "<|im_end|>"))
    embedded, head = model.get_input_embeddings().weight, model.lm_head.weight
    embedded[whole] = -embedded[last]
    head.zero_()
    head[whole], head[end] = embedded[last], embedded[whole]
    model.save_pretrained(folder)
    return folder

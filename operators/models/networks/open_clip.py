"""CLIP networks of OpenCLIP's making as transformers' own: the configuration, and what each weight is called there."""

import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from transformers import CLIPConfig

from plumbline.operators.models.checkpoints.parts import Fields

HEAD_WIDTH = 64
"""Of a vision tower that names no other."""
HIGHEST_END = 2
"""As the end of a text this tells transformers to take the highest token, which OpenCLIP's end of text is."""
NAMES = (
    (r"^text\.", ""),
    (r"^visual\.class_embedding$", "vision_model.embeddings.class_embedding"),
    (r"^visual\.positional_embedding$", "vision_model.embeddings.position_embedding.weight"),
    (r"^visual\.conv1\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual\.ln_pre\.", "vision_model.pre_layrnorm."),
    (r"^visual\.ln_post\.", "vision_model.post_layernorm."),
    (r"^visual\.transformer\.resblocks\.", "vision_model.encoder.layers."),
    (r"^visual\.proj$", "visual_projection.weight"),
    (r"^token_embedding\.", "text_model.embeddings.token_embedding."),
    (r"^positional_embedding$", "text_model.embeddings.position_embedding.weight"),
    (r"^transformer\.resblocks\.", "text_model.encoder.layers."),
    (r"^ln_final\.", "text_model.final_layer_norm."),
    (r"^text_projection$", "text_projection.weight"),
    (r"\.ln_(\d)\.", r".layer_norm\1."),
    (r"\.attn\.", ".self_attn."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
)
"""From OpenCLIP's names to those of transformers, one after the other."""


def renamed(name: str, patterns: Sequence[tuple[str, str]]) -> str:
    """The name of a weight once each pattern is replaced in turn."""
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


def clip_config(fields: Fields) -> CLIPConfig:
    """The configuration of a network by an open_clip_config.json."""
    made = fields["model_cfg"]
    vision, text = made["vision_cfg"], made["text_cfg"]
    activation = "quick_gelu" if made.get("quick_gelu") else "gelu"
    tower = {
        "hidden_size": vision["width"],
        "num_hidden_layers": vision["layers"],
        "num_attention_heads": vision["width"] // vision.get("head_width", HEAD_WIDTH),
        "intermediate_size": int(vision["width"] * vision.get("mlp_ratio", 4.0)),
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
        "hidden_act": activation,
    }
    reader = {
        "hidden_size": text["width"],
        "num_hidden_layers": text["layers"],
        "num_attention_heads": text["heads"],
        "intermediate_size": int(text["width"] * text.get("mlp_ratio", 4.0)),
        "vocab_size": text.get("vocab_size", 49408),
        "max_position_embeddings": text.get("context_length", 77),
        "hidden_act": activation,
        "bos_token_id": None,
        "eos_token_id": HIGHEST_END,
        "pad_token_id": None,
    }
    return CLIPConfig(text_config=reader, vision_config=tower, projection_dim=made["embed_dim"])


def clip_weights(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights under transformers' names."""
    return {name: tensor for stored, weight in tensors.items() for name, tensor in _renamed(stored, weight)}


def _renamed(stored: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """One weight under its other name; projections lie the other way, and queries, keys and values stand together."""
    name = renamed(stored, NAMES)
    if name in ("visual_projection.weight", "text_projection.weight"):
        yield name, weight.T.contiguous()
    elif ".in_proj_" in name:
        for part, third in zip("qkv", weight.chunk(3), strict=True):
            yield name.replace("in_proj_", f"{part}_proj."), third.contiguous()
    else:
        yield name, weight

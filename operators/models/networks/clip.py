"""Loads CLIP networks in other projects' layouts (OpenCLIP and PyramidCLIP) as transformers' CLIP."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import CLIPConfig, CLIPModel
from transformers.activations import QuickGELUActivation
from transformers.modeling_outputs import BaseModelOutputWithPooling

from plumbline.operators.models.checkpoints.parts import Fields

DEFAULT_HEAD_WIDTH = 64
"""Head width of a vision tower whose configuration specifies no head width."""
HIGHEST_TOKEN_EOS_ID = 2
"""Value of `eos_token_id` for which transformers takes a text's embedding at the position of the highest token id. In
OpenCLIP, this is the end-of-text token.
"""
OPEN_CLIP_NAME_REPLACEMENTS = (
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
"""Patterns and replacements that convert OpenCLIP's weight names to those of transformers, applied in this order."""


def rename_weight(name: str, patterns: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


def convert_open_clip_config(fields: Fields) -> CLIPConfig:
    model = fields["model_cfg"]
    vision, text = model["vision_cfg"], model["text_cfg"]
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    vision_config = {
        "hidden_size": vision["width"],
        "num_hidden_layers": vision["layers"],
        "num_attention_heads": vision["width"] // vision.get("head_width", DEFAULT_HEAD_WIDTH),
        "intermediate_size": int(vision["width"] * vision.get("mlp_ratio", 4.0)),
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
        "hidden_act": activation,
    }
    text_config = {
        "hidden_size": text["width"],
        "num_hidden_layers": text["layers"],
        "num_attention_heads": text["heads"],
        "intermediate_size": int(text["width"] * text.get("mlp_ratio", 4.0)),
        "vocab_size": text.get("vocab_size", 49408),
        "max_position_embeddings": text.get("context_length", 77),
        "hidden_act": activation,
        "bos_token_id": None,
        "eos_token_id": HIGHEST_TOKEN_EOS_ID,
        "pad_token_id": None,
    }
    return CLIPConfig(text_config=text_config, vision_config=vision_config, projection_dim=model["embed_dim"])


def convert_open_clip_weights(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return OpenCLIP's weights, keyed by their names in transformers' CLIP.

    Projections are transposed, and queries, keys and values are separated.
    """
    converted: dict[str, torch.Tensor] = {}
    for stored, weight in tensors.items():
        name = rename_weight(stored, OPEN_CLIP_NAME_REPLACEMENTS)
        if name in ("visual_projection.weight", "text_projection.weight"):
            converted[name] = weight.T.contiguous()
        elif ".in_proj_" in name:
            for letter, third in zip("qkv", weight.chunk(3), strict=True):
                converted[name.replace("in_proj_", f"{letter}_proj.")] = third.contiguous()
        else:
            converted[name] = weight
    return converted


N_LEFF_LAYERS = 9
"""Number of vision tower layers that have a LeFF instead of an MLP."""
PYRAMID_CLIP_NAME_REPLACEMENTS = (
    (r"\.resblocks1\.", ".resblocks."),
    (r"\.mlp\.ac1\.bn\.", ".mlp.bn1."),
    (r"\.mlp\.depConv\.depconv\.", ".mlp.depconv."),
    (r"\.mlp\.depConv\.bn\.", ".mlp.bn2."),
    (r"\.mlp\.ac2\.bn\.", ".mlp.bn3."),
)
"""Patterns and replacements that convert PyramidCLIP's weight names to OpenCLIP's, for layers that OpenCLIP also has.
"""


def convert_pyramid_clip_weights(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return PyramidCLIP's weights, keyed by their names in transformers' CLIP.

    The weight `proj_pre` is dropped because it is only used in training.
    """

    def rename_pyramid_weight(name: str) -> str:
        # the second stack continues the layer numbers of the first
        name = re.sub(r"\.resblocks2\.(\d+)\.", lambda layer: f".resblocks.{int(layer[1]) + N_LEFF_LAYERS}.", name)
        return rename_weight(name, PYRAMID_CLIP_NAME_REPLACEMENTS)

    return convert_open_clip_weights(
        {rename_pyramid_weight(name): tensor for name, tensor in tensors.items() if name != "visual.proj_pre"}
    )


class Leff(nn.Module):
    """Feed-forward layer that convolves the patches as a 2D image and leaves the class token unchanged."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = width * 4
        self.linear1 = nn.Linear(width, wide)
        self.bn1 = nn.BatchNorm1d(wide)
        self.depconv = nn.Conv2d(wide, wide, kernel_size=3, padding=1, groups=wide, bias=False)
        self.bn2 = nn.BatchNorm2d(wide)
        self.linear2 = nn.Linear(wide, width)
        self.bn3 = nn.BatchNorm1d(width)
        self.gelu = QuickGELUActivation()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return states (n, 1 + patches, width) transformed by the layer; an image's patches must form a square."""
        first, patches = states[:, :1], states[:, 1:]
        side = round(patches.shape[1] ** 0.5)
        wide = self.gelu(self.bn1(self.linear1(patches).transpose(1, 2)))
        mixed = self.gelu(self.bn2(self.depconv(wide.unflatten(2, (side, side))))).flatten(2)
        narrow = self.gelu(self.bn3(self.linear2(mixed.transpose(1, 2)).transpose(1, 2)))
        return torch.cat([first, narrow.transpose(1, 2)], dim=1)


class PyramidClip(CLIPModel):  # type: ignore[misc]
    """A CLIP whose first vision layers mix neighbouring patches (Gao et al. 2022), built from transformers' CLIP."""

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__(config)
        for layer in self.vision_model.encoder.layers[:N_LEFF_LAYERS]:
            layer.mlp = Leff(config.vision_config.hidden_size)

    def get_text_features(self, input_ids: torch.Tensor, **options: Any) -> BaseModelOutputWithPooling:
        """Return text embeddings: the maximum over all tokens of a text, including padding."""
        states = self.text_model(input_ids=input_ids).last_hidden_state
        return BaseModelOutputWithPooling(pooler_output=self.text_projection(states.amax(dim=1)))

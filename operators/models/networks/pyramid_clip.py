"""The network of PyramidCLIP: a CLIP whose first vision layers mix neighbouring patches (Gao et al. 2022)."""

from typing import Any

import torch
from torch import nn
from transformers import CLIPConfig, CLIPModel
from transformers.activations import QuickGELUActivation
from transformers.modeling_outputs import BaseModelOutputWithPooling

LEFFS = 9
"""So many layers of the vision tower have a LeFF in the place of their MLP."""


class Leff(nn.Module):
    """A feed-forward layer that convolves the patches in their places; the class token passes as it is."""

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
        """States (n, 1 + patches, width) of images whose patches make a square."""
        first, patches = states[:, :1], states[:, 1:]
        side = round(patches.shape[1] ** 0.5)
        wide = self.gelu(self.bn1(self.linear1(patches).transpose(1, 2)))
        mixed = self.gelu(self.bn2(self.depconv(wide.unflatten(2, (side, side))))).flatten(2)
        narrow = self.gelu(self.bn3(self.linear2(mixed.transpose(1, 2)).transpose(1, 2)))
        return torch.cat([first, narrow.transpose(1, 2)], dim=1)


class PyramidClip(CLIPModel):  # type: ignore[misc]
    """Its weights are named as transformers names CLIP's."""

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__(config)
        for layer in self.vision_model.encoder.layers[:LEFFS]:
            layer.mlp = Leff(config.vision_config.hidden_size)

    def get_text_features(self, input_ids: torch.Tensor, **options: Any) -> BaseModelOutputWithPooling:
        """Each number of a text's embedding is the largest that any of its tokens has, padding among them."""
        states = self.text_model(input_ids=input_ids).last_hidden_state
        return BaseModelOutputWithPooling(pooler_output=self.text_projection(states.amax(dim=1)))

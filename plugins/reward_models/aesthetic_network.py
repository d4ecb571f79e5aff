"""The network of LAION's aesthetic predictors: layers on CLIP's embedding of an image."""

from itertools import pairwise
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import normalize
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection


class AestheticPredictor(CLIPVisionModelWithProjection):  # type: ignore[misc]
    """CLIP's vision tower with linear layers on its unit-length embedding, built from transformers' CLIP.

    In addition to the tower's own fields, config.json contains `head_widths`, the widths of the layers' outputs, and
    `head_relu`, which is true if there is a ReLU between the layers.
    """

    _keep_in_fp32_modules_strict: ClassVar = {"head"}

    def __init__(self, config: CLIPVisionConfig) -> None:
        super().__init__(config)
        widths = (config.projection_dim, *config.head_widths)
        self.head = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))

    def rate(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the rating of each image (n,)."""
        states = normalize(self(pixel_values=pixels).image_embeds.float(), dim=-1)
        for number, layer in enumerate(self.head):
            states = layer(states.relu() if self.config.head_relu and number else states)
        return states[:, 0]

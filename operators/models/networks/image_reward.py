"""The network of ImageReward: BLIP's text encoder in an image's sight, and a regression on its first token."""

from typing import ClassVar

import torch
from torch import nn
from transformers import BlipConfig
from transformers.models.blip.modeling_blip import BlipPreTrainedModel, BlipTextModel, BlipVisionModel

HEAD = (1024, 128, 64, 16, 1)
"""Widths of the head's layers, between which there is nothing but the dropout of their training."""
DROPPED = 3
"""So many of the layers are followed by a dropout, which counts as one in the names of the weights."""
MEAN, DEVIATION = 0.16717362830052426, 1.0333394966054072
"""Of rewards in training, by which they are made a standard score (the release)."""


class RewardHead(nn.Module):
    """From the text encoder's first token to a reward, as its release names the weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(zip((width, *HEAD[:-1]), HEAD, strict=True)):
            layers += [nn.Linear(before, after)] + [nn.Identity()] * (number < DROPPED)
        self.layers = nn.Sequential(*layers)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Rewards (n,) as a standard score, of states (n, width)."""
        rewards: torch.Tensor = self.layers(states.float())[:, 0]
        return (rewards - MEAN) / DEVIATION


class ImageReward(BlipPreTrainedModel):  # type: ignore[misc]
    """Xu et al. 2023; weights are named as transformers names BLIP's, and the head by what it is."""

    config: BlipConfig
    _keep_in_fp32_modules_strict: ClassVar = {"reward_head"}

    def __init__(self, config: BlipConfig) -> None:
        super().__init__(config)
        self.vision_model = BlipVisionModel(config.vision_config)
        self.text_encoder = BlipTextModel(config.text_config, add_pooling_layer=False)
        self.reward_head = RewardHead(config.text_config.hidden_size)
        self.post_init()

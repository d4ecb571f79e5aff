"""The network of HPSv3, Qwen2-VL with a regression at one token of its own, and what it says of image and prompt."""

from typing import ClassVar

import torch
from PIL import Image
from torch import nn
from transformers import Qwen2VLConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel, Qwen2VLPreTrainedModel

from plumbline.operators.models.calls import Compared, PixelRule
from plumbline.operators.models.networks.reward_tokens import Pixels, TokenReward

HIDDEN = (1024, 16)
"""Widths of the head's layers before the last."""
MEAN = 0
"""The head gives the mean of a reward and its deviation."""
REWARD_TOKEN = "<|Reward|>"


class HpsV3(Qwen2VLPreTrainedModel):  # type: ignore[misc]
    """Ma et al. 2025: the weights are named as transformers names Qwen2-VL's, the head as in the release."""

    config: Qwen2VLConfig
    _keep_in_fp32_modules_strict: ClassVar = {"rm_head"}

    def __init__(self, config: Qwen2VLConfig) -> None:
        super().__init__(config)
        self.model = Qwen2VLModel(config)
        first, second = HIDDEN
        self.rm_head = nn.Sequential(
            nn.Linear(config.text_config.hidden_size, first),
            nn.ReLU(),
            nn.Identity(),  # the dropout of its training counts in the names of the weights
            nn.Linear(first, second),
            nn.ReLU(),
            nn.Linear(second, 2),
        )
        self.post_init()


class HpsV3Similarity(TokenReward):
    """The `similarity` call served by HPSv3."""

    architecture = f"{__name__}:HpsV3"
    reward_tokens = (REWARD_TOKEN,)

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Pixels:
        """The image as its patches, of a number of pixels that the checkpoint's processor says."""
        inputs = self.processor(images=image, return_tensors="pt")
        return Pixels(self.pixels.held(inputs["pixel_values"]), inputs["image_grid_thw"][0])

    def rewards(self, states: torch.Tensor) -> list[Compared]:
        """The mean of each reward."""
        means: list[float] = self.model.rm_head(states[:, 0].float())[:, MEAN].tolist()
        return [Compared(mean, truncated=False) for mean in means]

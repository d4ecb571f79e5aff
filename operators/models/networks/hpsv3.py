"""The network of HPSv3, Qwen2-VL with a regression at one token of its own, and what it says of image and prompt."""

from typing import ClassVar

import torch
from transformers import Qwen2VLConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel, Qwen2VLPreTrainedModel

from plumbline.operators.models.calls import Compared
from plumbline.operators.models.networks.reward_tokens import MEAN, TokenReward, reward_head


class HpsV3(Qwen2VLPreTrainedModel):  # type: ignore[misc]
    """Ma et al. 2025: the weights are named as transformers names Qwen2-VL's, the head as in the release."""

    config: Qwen2VLConfig
    _keep_in_fp32_modules_strict: ClassVar = {"rm_head"}

    def __init__(self, config: Qwen2VLConfig) -> None:
        super().__init__(config)
        self.model = Qwen2VLModel(config)
        self.rm_head = reward_head(config.text_config.hidden_size)
        self.post_init()


class HpsV3Similarity(TokenReward):
    """The `similarity` call served by HPSv3."""

    architecture = f"{__name__}:HpsV3"

    def rewards(self, states: torch.Tensor) -> list[Compared]:
        """The mean of each reward."""
        means: list[float] = self.model.rm_head(states[:, 0].float())[:, MEAN].tolist()
        return [Compared(mean, truncated=False) for mean in means]

"""The network of EditReward, Qwen2.5-VL with two regressions, each at a token of its own instruction."""

from typing import ClassVar

import torch
from torch import nn
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel, Qwen2_5_VLPreTrainedModel

from plumbline.operators.models.calls import Compared
from plumbline.operators.models.checkpoints.parts import INSTRUCTIONS
from plumbline.operators.models.networks.reward_tokens import MEAN, TokenReward, reward_head

RATED = ("instruction_following", "visual_quality")
"""What the heads rate, in their order and that of the instructions."""


class EditReward(Qwen2_5_VLPreTrainedModel):  # type: ignore[misc]
    """Wu et al. 2025: the weights are named as transformers names Qwen2.5-VL's, the heads as in the release."""

    config: Qwen2_5_VLConfig
    _keep_in_fp32_modules_strict: ClassVar = {"rm_heads"}

    def __init__(self, config: Qwen2_5_VLConfig) -> None:
        super().__init__(config)
        self.model = Qwen2_5_VLModel(config)
        width = config.text_config.hidden_size
        self.rm_heads = nn.ModuleDict({f"head_{place}": reward_head(width) for place in range(len(RATED))})
        self.post_init()


class EditRewardSimilarity(TokenReward):
    """The `similarity` call served by EditReward, of a source and its edited image in one question."""

    architecture = f"{__name__}:EditReward"
    instruction_files = INSTRUCTIONS

    def rewards(self, states: torch.Tensor) -> list[Compared]:
        """The mean of both heads' means, as its release pools them."""
        heads = self.model.rm_heads.values()
        means = torch.stack([head(states[:, place].float())[:, MEAN] for place, head in enumerate(heads)], dim=1)
        rated = [dict(zip(RATED, row, strict=True)) for row in means.tolist()]
        pooled = means.mean(dim=1).tolist()
        return [Compared(mean, truncated=False, ratings=row) for mean, row in zip(pooled, rated, strict=True)]

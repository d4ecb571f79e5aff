"""The network of HPSv3++ (PlantPotatoOnMoon/HPSv3-PlusPlus 7bdbebc, hpsv3/model/qwen3vl_rm.py and inference.py)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from torch import nn
from transformers import Qwen3VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel, Qwen3VLPreTrainedModel

from plumbline.operators.models.calls import ComparisonResult
from plumbline.operators.models.model import ResolvedModel
from plumbline.plugins.reward_models.reward_tokens import MEAN_INDEX, Pixels, Qwen3TokenReward, make_reward_head


class CapabilityEncoder(nn.Module):
    """Layers that infer from a reward token how capable the image's generator is, from 0 to 1.

    The release pools several images by attention. For a single image, the attention weight is always 1, so the pooling
    layer has no effect and is left out.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, hidden)
        self.out_proj = nn.Linear(hidden, 1)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return capabilities (n, 1), for states (n, width)."""
        capabilities: torch.Tensor = self.out_proj(self.proj(states)).sigmoid()
        return capabilities


class HpsV3Plus(Qwen3VLPreTrainedModel):  # type: ignore[misc]
    """The network of HPSv3++ (Liu et al. 2026): a Qwen3-VL, FiLM layers and the head of HPSv3.

    Weights are named as in transformers' Qwen3-VL and in the release. In addition to Qwen3-VL's own fields, config.json
    contains `condition_width`, `image_factor` and `image_pixels`.
    """

    config: Qwen3VLConfig
    _keep_in_fp32_modules_strict: ClassVar = {"rm_head", "cond_encoder", "film_gen", "cap_encoder"}

    def __init__(self, config: Qwen3VLConfig) -> None:
        super().__init__(config)
        self.model = Qwen3VLModel(config)
        width, hidden = config.text_config.hidden_size, config.condition_width
        self.rm_head = make_reward_head(width)
        self.cond_encoder = nn.Sequential(nn.Linear(2, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.film_gen = nn.Sequential(nn.Linear(hidden, width), nn.ReLU(), nn.Linear(width, 2 * width))
        self.cap_encoder = CapabilityEncoder(width, hidden)
        self.post_init()

    def rate(self, states: torch.Tensor, iteration: float) -> torch.Tensor:
        """Return means and standard deviations of rewards (n, 2), for states (n, width) at the reward token."""
        capabilities = self.cap_encoder(states)
        conditions = torch.cat([capabilities, torch.full_like(capabilities, iteration)], dim=-1)
        scales, shifts = self.film_gen(self.cond_encoder(conditions)).chunk(2, dim=-1)
        rewards: torch.Tensor = self.rm_head(states * (1 + scales) + shifts)
        return rewards


class HpsV3PlusSimilarity(Qwen3TokenReward):
    """A loaded HPSv3++, which serves the `similarity` call.

    The capability is inferred from each image alone, so that a reward does not depend on the other images of a batch.
    """

    architecture = f"{__name__}:HpsV3Plus"
    iteration: float

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        loaded.iteration = model.config.iteration
        return loaded

    def preprocess_several(self, images: Sequence[Image.Image]) -> tuple[Pixels, ...]:
        """Return each image as patches.

        As in the release, an image is resized twice: first to the number of pixels that HPSv3 uses, with sides that are
        multiples of HPSv3's factor; then by Qwen3-VL's processor, to multiples of its own factor.
        """
        config = self.model.config
        resized = []
        for image in images:
            height, width = smart_resize(
                image.height,
                image.width,
                factor=config.image_factor,
                min_pixels=config.image_pixels,
                max_pixels=config.image_pixels,
            )
            resized.append(image.resize((width, height), Image.Resampling.BICUBIC))
        return super().preprocess_several(resized)

    def compute_rewards(self, states: torch.Tensor) -> list[ComparisonResult]:
        """Return the mean of each reward."""
        means: list[float] = self.model.rate(states[:, 0].float(), self.iteration)[:, MEAN_INDEX].tolist()
        return [ComparisonResult(mean, truncated=False) for mean in means]

"""The network of VideoAlign's VideoReward: a Qwen2-VL that rates a video at three tokens of its instruction."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import interpolate
from transformers import Qwen2VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel, Qwen2VLPreTrainedModel

from plumbline.operators.models.calls import Compared, PixelRule
from plumbline.operators.models.networks.reward_tokens import Pixels, TokenReward

RATED = {
    "visual_quality": "<|VQ_reward|>",
    "motion_quality": "<|MQ_reward|>",
    "text_alignment": "<|TA_reward|>",
}
"""What is rated, and the token at which it is, in the order of the release's instruction."""
FRAME_TOKENS = 128
"""Fewest of one frame: VIDEO_MIN_PIXELS of the release's vision_process.py, by the pixels of a token."""


class VideoReward(Qwen2VLPreTrainedModel):  # type: ignore[misc]
    """Liu et al. 2025: a Qwen2-VL whose adapter is merged into its weights, which transformers' names have.

    Its config.json has `reward_heads` (1, or 3), `reward_means` and `reward_stds` beside Qwen2-VL's own fields.
    """

    config: Qwen2VLConfig

    def __init__(self, config: Qwen2VLConfig) -> None:
        super().__init__(config)
        self.model = Qwen2VLModel(config)
        self.rm_head = nn.Linear(config.text_config.hidden_size, config.reward_heads, bias=False)
        self.post_init()


class VideoRewardSimilarity(TokenReward):
    """The `similarity` call served by VideoAlign: the sum of three standard scores."""

    architecture = f"{__name__}:VideoReward"
    sees = "video"
    reward_tokens = tuple(RATED.values())

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> tuple[Pixels, ...]:
        """An image as a video that stands still."""
        return self.preprocess_video([image], 0.0)

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> tuple[Pixels, ...]:
        """The frames of one video, resized as the release does before its processor has them; how many `seconds` each
        stands for, the model is not told.

        All frames get the first one's size. Where their number is odd, the last frame is repeated.
        """
        processor = self.processor
        side = processor.patch_size * processor.merge_size
        height, width = smart_resize(
            frames[0].height,
            frames[0].width,
            factor=side,
            min_pixels=FRAME_TOKENS * side**2,
            max_pixels=self.model.config.max_frame_pixels,
        )
        shown = [_resized(frame, height, width) for frame in frames]
        shown += shown[-1:] * (-len(shown) % processor.temporal_patch_size)
        held = self.pixels.held(processor(images=shown, do_resize=False, return_tensors="pt")["pixel_values"])
        times = len(shown) // processor.temporal_patch_size
        grid = torch.tensor([times, height // processor.patch_size, width // processor.patch_size])
        return (Pixels(held, grid),)

    def rewards(self, states: torch.Tensor) -> list[Compared]:
        """The sum of each video's standard scores; of three heads, each is read at its own token."""
        heads = self.model.rm_head(states)
        logits = heads[..., 0] if heads.shape[2] == 1 else heads.diagonal(dim1=1, dim2=2)
        means, stds = (torch.tensor(getattr(self.model.config, f"reward_{name}")) for name in ("means", "stds"))
        scores = (logits.double().cpu() - means) / stds
        rated = [dict(zip(RATED, row, strict=True)) for row in scores.tolist()]
        return [Compared(sum(ratings.values()), truncated=False, ratings=ratings) for ratings in rated]


def _resized(frame: Image.Image, height: int, width: int) -> Image.Image:
    """As torchvision resizes a tensor of bytes: bicubic with antialiasing, in floats, then rounded."""
    pixels = torch.from_numpy(np.asarray(frame).copy()).permute(2, 0, 1)[None].float()
    resized = interpolate(pixels, (height, width), mode="bicubic", antialias=True, align_corners=False)
    return Image.fromarray(resized[0].clamp(0, 255).round().byte().permute(1, 2, 0).numpy())

"""The network of HPSv3++ (PlantPotatoOnMoon/HPSv3-PlusPlus 7bdbebc, hpsv3/model/qwen3vl_rm.py and inference.py)."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from PIL import Image
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel, Qwen3VLPreTrainedModel

from plumbline.operators.models.calls import ComparisonResult
from plumbline.operators.models.model import ResolvedModel
from plumbline.plugins.reward_models.reward_tokens import MEAN_INDEX, Pixels, TokenReward, make_reward_head


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


class _EncodedImage(NamedTuple):
    """An image as seen by the vision tower."""

    states: torch.Tensor
    """Embeddings of its tokens, followed by the states that are added in the first layers of the language model;
    shape (tokens, width * (1 + layers)).
    """
    grid: torch.Tensor
    """Number of patches in time, height and width; shape (3,), on the CPU."""


class HpsV3PlusSimilarity(TokenReward):
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

    def encode(self, pixels: Sequence[tuple[Pixels, ...]]) -> list[Any]:
        """Return the vision tower's states for each item's image, on the device."""
        with torch.inference_mode():
            patches = self.pixels([each.patches for shown in pixels for each in shown])
            grids = torch.stack([each.grid for shown in pixels for each in shown])
            seen = self.model.model.get_image_features(patches, grids.to(patches.device))
            layers = [seen.pooler_output, *seen.deepstack_features]
            images = iter(
                _EncodedImage(torch.cat(states, dim=-1), grid) for *states, grid in zip(*layers, grids, strict=True)
            )
            return [tuple(next(images) for _ in shown) for shown in pixels]

    def _tokenize_conversation(self, text: str, embeddings: Any) -> torch.Tensor:
        return super()._tokenize_conversation(text, tuple(image.states for image in embeddings))

    def _compute_states(self, read: Sequence[tuple[torch.Tensor, Any]]) -> list[torch.Tensor]:
        """Return the hidden states (reward tokens, width) at the reward tokens of each conversation.

        Image tokens are numbered by row and column, as in Qwen3-VL itself but unlike in HPSv3's release.
        """
        device, model = self.model.device, self.model.model
        mask = pad_sequence([torch.ones_like(ids) for ids, _ in read], batch_first=True).to(device)
        ids = pad_sequence([ids for ids, _ in read], batch_first=True).to(device)
        places = (ids == self.image_token_id) & mask.bool()
        images = [image for _, shown in read for image in shown]
        embedded = model.get_input_embeddings()(ids)
        seen = torch.cat([image.states for image in images]).to(embedded.dtype)
        embeddings, *added = seen.tensor_split(seen.shape[-1] // embedded.shape[-1], dim=-1)
        embedded[places] = embeddings
        positions, _ = model.get_rope_index(
            ids,
            mm_token_type_ids=places.int(),
            image_grid_thw=torch.stack([image.grid for image in images]).to(device),
            attention_mask=mask,
        )
        states = model.language_model(
            inputs_embeds=embedded,
            attention_mask=mask,
            position_ids=positions,
            visual_pos_masks=places,
            deepstack_visual_embeds=added,
            use_cache=False,
        ).last_hidden_state
        at_rewards = states[torch.isin(ids, self.reward_ids.to(device)) & mask.bool()]
        return list(at_rewards.view(len(read), len(self.reward_tokens), -1))

    def compute_rewards(self, states: torch.Tensor) -> list[ComparisonResult]:
        """Return the mean of each reward."""
        means: list[float] = self.model.rate(states[:, 0].float(), self.iteration)[:, MEAN_INDEX].tolist()
        return [ComparisonResult(mean, truncated=False) for mean in means]

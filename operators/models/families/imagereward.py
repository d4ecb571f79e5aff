"""ImageReward: how people would rate an image for its prompt, by a BLIP with a regression head (Xu et al. 2023).

It is released as a pickle, which `python -m jobs.convert` makes a folder of (docs/models.md).
"""

from typing import TYPE_CHECKING

from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.family import TOKENIZER, Family, Files
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.joint_encoder import JointEncoder

if TYPE_CHECKING:
    import torch

    from plumbline.operators.models.model import ResolvedModel

ARCHITECTURE = "ImageReward"
CONTEXT = 35
"""Tokens of a text, as in the release."""


class ImageRewardSimilarity(JointEncoder):
    """The `similarity` call served by ImageReward."""

    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """The rewards as a standard score, (n,)."""
        words = self.model.text_encoder(input_ids=ids, attention_mask=mask, encoder_hidden_states=states)
        rewards: torch.Tensor = self.model.reward_head(words.last_hidden_state[:, 0])
        return rewards


def _load(model: "ResolvedModel") -> ImageRewardSimilarity:
    from plumbline.operators.models.networks.image_reward import ImageReward
    from plumbline.operators.models.processing import (
        ReleasedTransform,
        load_pixel_transform,
        load_pretrained,
        load_tokenizer,
    )

    transform = load_pixel_transform(model.folder("checkpoint"), pad_to_square=False)
    return ImageRewardSimilarity(
        load_pretrained(ImageReward, model),
        load_tokenizer(model.folder("tokenizer")),
        ReleasedTransform(transform.processor),
        context=CONTEXT,
        pair_batch=model.config.pair_batch,
    )


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": _load},
    form=f"{ARCHITECTURE}'s, as jobs.convert makes it",
    suits=lambda fields: architecture(fields) == ARCHITECTURE,
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), "convert the release again (docs/models.md)")),
    measures=("reward",),
)

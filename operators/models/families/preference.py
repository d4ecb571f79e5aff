"""Reward models of human preferences: ImageReward, HPSv3, VideoAlign's VideoReward and EditReward.

Their releases are weights without a configuration, which `plumbline convert` turns into folders (docs/models.md).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import PixelRule
from plumbline.operators.models.checkpoints.parts import (
    AGAIN,
    INSTRUCTION,
    INSTRUCTIONS,
    Fields,
    Part,
    architecture,
)
from plumbline.operators.models.family import TOKENIZER, Family, Files, lazily
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.joint_encoder import JointEncoder

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

IMAGEREWARD_ARCHITECTURE = "ImageReward"


class ImageRewardSimilarity(JointEncoder):
    """The `similarity` call served by ImageReward."""

    architecture = "plumbline.operators.models.networks.blip:ImageReward"
    context = 35

    @classmethod
    def load_processor(cls, model: "ResolvedModel[Any]", tokenizer: Any) -> Any:
        from plumbline.operators.models.processing import ReleasedTransform, load_pixel_transform

        return ReleasedTransform(load_pixel_transform(model.folder("checkpoint"), pad_to_square=False).processor)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> Any:
        """Prepare the image as CLIP's release does, (3, height, width); `rule` is ignored."""
        return self.pixels.pin(self.processor(image))

    def read(self, states: "torch.Tensor", ids: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor":
        """Return the rewards as a standard score, (n,)."""
        words = self.model.text_encoder(input_ids=ids, attention_mask=mask, encoder_hidden_states=states)
        rewards: torch.Tensor = self.model.reward_head(words.last_hidden_state[:, 0])
        return rewards


IMAGEREWARD = Family(
    config=LocalModel,
    loads={"similarity": ImageRewardSimilarity.load},
    form=f"{IMAGEREWARD_ARCHITECTURE}'s, as jobs.convert makes it",
    suits=lambda fields: architecture(fields) == IMAGEREWARD_ARCHITECTURE,
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), AGAIN)),
    measures=("reward",),
)
"""Human ratings of an image for its prompt, predicted by a BLIP with a regression head (Xu et al. 2023)."""


def _check_instruction(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """Raise ModelError for an instruction without exactly one placeholder for the prompt."""
    for name in (INSTRUCTION, *INSTRUCTIONS):
        file = parts["checkpoint"].file(name)
        if file is not None and file.read_text().count("{text_prompt}") != 1:
            raise ModelError(f"{file}: expected {{text_prompt}} exactly once, for the prompt; {AGAIN}")


def _token_reward(name: str, *instructions: str, **options: Any) -> Family[LocalModel]:
    """Return the family of a Qwen-VL that rates at tokens of its instructions.

    Args:
        name: Class of the network in networks/reward_tokens.py, and architecture in config.json.
        instructions: Files in the checkpoint with the text of each instruction.
        options: Further fields of the family.
    """
    files = ("preprocessor_config.json", *instructions)
    return Family(
        config=LocalModel,
        loads={"similarity": lazily(f"networks.reward_tokens:{name}Similarity.load")},
        form=f"{name}'s, as jobs.convert makes it",
        suits=lambda fields: architecture(fields) == name,
        files=(TOKENIZER, *(Files("checkpoint", (file,), AGAIN) for file in files)),
        check=_check_instruction,
        measures=("reward",),
        **options,
    )


HPSV3 = _token_reward("HpsV3", INSTRUCTION)
"""Human preferences for an image and its prompt, predicted by a Qwen2-VL with a regression head (Ma et al. 2025)."""
VIDEOALIGN = _token_reward(
    "VideoReward",
    INSTRUCTION,
    ratings=("visual_quality", "motion_quality", "text_alignment"),
    films=True,
)
"""Human preferences for a video and its prompt, predicted by a Qwen2-VL (Liu et al. 2025)."""
EDITREWARD = _token_reward(
    "EditReward",
    *INSTRUCTIONS,
    compares=("edit",),
    several=True,
    ratings=("instruction_following", "visual_quality"),
)
"""Human preferences for an edited image and its source, predicted by a Qwen2.5-VL with two heads (Wu et al. 2025)."""

"""ImageReward, a reward model of human preferences on a BLIP.

Its release is weights without a configuration, which `plumbline convert` turns into a folder (docs/models.md).
"""

from typing import TYPE_CHECKING, Any

from plumbline.operators.models.calls import PixelRule
from plumbline.operators.models.checkpoints.parts import AGAIN, architecture
from plumbline.operators.models.family import TOKENIZER, Family, Files
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.joint_encoder import JointEncoder

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

ARCHITECTURE = "ImageReward"


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


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": ImageRewardSimilarity.load},
    form=f"{ARCHITECTURE}'s, as jobs.convert makes it",
    suits=lambda fields: architecture(fields) == ARCHITECTURE,
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), AGAIN)),
    measures=("reward",),
)
"""Human ratings of an image for its prompt, predicted by a BLIP with a regression head (Xu et al. 2023)."""

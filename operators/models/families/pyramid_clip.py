"""PyramidCLIP: a CLIP with convolutions among its patches, whose texts are embedded as a whole (Gao et al. 2022).

It is released as a pickle, which `plumbline convert` makes a folder of (docs/models.md).
"""

from typing import TYPE_CHECKING, Any

from plumbline.operators.models.calls import PixelRule
from plumbline.operators.models.checkpoints.parts import AGAIN, architecture
from plumbline.operators.models.families.clip import ClipSimilarity
from plumbline.operators.models.family import TOKENIZER, Family, Files
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.dual_encoder import COMPARES
from plumbline.operators.models.networks.texts import clean

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

ARCHITECTURE = "PyramidClip"
PADDING = 0
"""The token that texts are padded with to the whole context; it is read as any other."""


class PyramidClipSimilarity(ClipSimilarity):
    """The `similarity` call served by PyramidCLIP."""

    architecture = "plumbline.operators.models.networks.pyramid_clip:PyramidClip"
    padded = True

    @classmethod
    def load_tokenizer(cls, model: "ResolvedModel[Any]") -> Any:
        tokenizer = super().load_tokenizer(model)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(PADDING)
        return tokenizer

    def cleaned(self, text: str) -> str:
        return clean(text)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """The image as CLIP's release prepares it, (3, height, width), whatever the rule."""
        return self.pixels.held(self.released(image))


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": PyramidClipSimilarity.load, "embedding": PyramidClipSimilarity.load},
    form=f"{ARCHITECTURE}'s, as jobs.convert makes it",
    suits=lambda fields: architecture(fields) == ARCHITECTURE,
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), AGAIN)),
    measures=("cosine", "logit"),
    compares=COMPARES,
)

"""CLIP: images and texts as points, whose cosine is a score; PickScore is one that was trained on people's choices."""

from typing import TYPE_CHECKING, Any, get_args

from plumbline.operators.models.calls import PixelRule
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.cosine_vqa import COSINE, dual_encoder
from plumbline.operators.models.networks.dual_encoder import COMPARES, Towers

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.processing import PixelTransform


class ClipSimilarity(Towers):
    """The `similarity` call served by a CLIP checkpoint."""

    architecture = "CLIPModel"

    def __init__(self, *parts: Any, **batches: int) -> None:
        from plumbline.operators.models.processing import PaddedTransform, ReleasedTransform

        super().__init__(*parts, **batches)
        self.released = ReleasedTransform(self.processor.processor)
        self.padding = PaddedTransform(self.processor.processor)

    @classmethod
    def load_processor(cls, model: "ResolvedModel[Any]", tokenizer: Any) -> "PixelTransform":
        from plumbline.operators.models.processing import load_pixel_transform

        return load_pixel_transform(model.folder("checkpoint"), pad_to_square=False)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """The image as the rule has it, (3, height, width)."""
        rules = {"processor": self.processor, "released": self.released, "padded": self.padding}
        return self.pixels.held(rules[rule](image))


FAMILY = Family(
    config=LocalModel,
    loads=dual_encoder(ClipSimilarity),
    form="'clip'",
    suits=lambda fields: fields["model_type"] == "clip",
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: COSINE,
    measures=("cosine", "logit"),
    compares=COMPARES,
    pixels=get_args(PixelRule),
)

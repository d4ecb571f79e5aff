"""SigLIP and SigLIP 2: images and texts as points, by towers that were trained pair by pair (Zhai et al. 2023; 2025).

Texts are in lower case and of one length, padding and all, as both were trained: the end that a text's point is taken
from is its padding. SigLIP 2 has a kind (NaFlex) that takes images at their own proportions, as up to 256 patches.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plumbline.operators.models.calls import PixelRule
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.cosine_vqa import COSINE, dual_encoder
from plumbline.operators.models.networks.dual_encoder import COMPARES, Towers

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel


class SiglipSimilarity(Towers):
    """The `similarity` call served by a SigLIP checkpoint."""

    architecture = "AutoModel"
    padded = True

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.bias = self.model.logit_bias.item()

    @classmethod
    def load_tokenizer(cls, model: "ResolvedModel[Any]") -> Any:
        tokenizer = super().load_tokenizer(model)
        tokenizer.padding_side = "right"
        return tokenizer

    def cleaned(self, text: str) -> str:
        return text.lower()

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "Mapping[str, torch.Tensor]":
        """The inputs that the checkpoint's processor makes of the image; there is no other rule."""
        inputs = self.processor(images=image, return_tensors="pt")
        return {name: tensor[0] for name, tensor in inputs.items()}

    def image_inputs(self, pixels: Sequence[Any]) -> "Mapping[str, torch.Tensor]":
        """Each input of the images in one batch: a NaFlex has several, and takes its pixels in any precision."""
        import torch

        batch = {name: torch.stack([each[name] for each in pixels]).to(self.model.device) for name in pixels[0]}
        return batch | {"pixel_values": self.batch([each["pixel_values"] for each in pixels])}


FAMILY = Family(
    config=LocalModel,
    loads=dual_encoder(SiglipSimilarity),
    form="'siglip' or 'siglip2'",
    suits=lambda fields: fields["model_type"] in ("siglip", "siglip2"),
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: COSINE,
    measures=("cosine", "logit", "match"),
    compares=COMPARES,
)

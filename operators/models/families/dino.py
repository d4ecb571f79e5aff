"""DINO and DINOv2: embeddings of images, without any text (Caron et al. 2021; Oquab et al. 2024)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plumbline.operators.models.calls import Compared, Measure, Pair, PixelRule
from plumbline.operators.models.checkpoints.parts import read_fields
from plumbline.operators.models.family import IMAGES, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.dual_encoder import unit
from plumbline.operators.models.networks.loaded import LoadedImageModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.processing import ReleasedTransform

MARGIN = 256 / 224
"""Both releases resize the shorter side to 256 pixels and take the middle 224 x 224 (facebookresearch/dino,
eval_knn.py; facebookresearch/dinov2, dinov2/data/transforms.py).
"""


class DinoSimilarity(LoadedImageModel):
    """The `similarity` call for an edited image and its source, by their class tokens."""

    architecture = "AutoModel"

    @classmethod
    def load_network(cls, model: "ResolvedModel[Any]") -> Any:
        from plumbline.operators.models.processing import load_pretrained

        vit = read_fields(model.parts["checkpoint"])["model_type"] == "vit"
        options: dict[str, Any] = {"add_pooling_layer": False} if vit else {}
        return load_pretrained(cls.architecture, model, **options)

    @classmethod
    def load_tokenizer(cls, model: "ResolvedModel[Any]") -> Any:
        return None

    @classmethod
    def load_processor(cls, model: "ResolvedModel[Any]", tokenizer: Any) -> "ReleasedTransform":
        from plumbline.operators.models.processing import ReleasedTransform

        return ReleasedTransform(super().load_processor(model, tokenizer), MARGIN)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "released") -> "torch.Tensor":
        """Prepare the image as in the releases, (3, height, width); `rule` is ignored."""
        return self.pixels.pin(self.processor.cropped(image))

    def encode(self, pixels: Sequence[Any]) -> "list[torch.Tensor]":
        """Return unit-length class tokens, each (width,), float32, on the CPU."""
        import torch

        with torch.inference_mode():
            return unit(self.model(pixel_values=self.batch(pixels)).last_hidden_state[:, 0])

    def compare(
        self, features: "Sequence[torch.Tensor]", pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[Compared]:
        """Return the cosine of each image and its source."""
        both = [(pair.image, pair.source) for pair in pairs if pair.source is not None]
        return [Compared(float(features[image] @ features[source]), truncated=False) for image, source in both]


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": DinoSimilarity.load},
    form="'vit', 'dinov2' or 'dinov2_with_registers'",
    suits=lambda fields: fields["model_type"] in ("vit", "dinov2", "dinov2_with_registers"),
    files=(IMAGES,),
    pixels=("released",),
    compares=("source",),
)

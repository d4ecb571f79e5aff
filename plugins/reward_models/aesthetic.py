"""Model family of LAION's aesthetic predictors, which rate an image without its prompt (Schuhmann et al. 2022)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule
from plumbline.operators.models.checkpoints.parts import CONVERT_AGAIN_REMEDY, find_architecture
from plumbline.operators.models.family import Family, Files
from plumbline.operators.models.networks.loaded import LoadedImageModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.processing import ReleasedTransform


class AestheticSimilarity(LoadedImageModel):
    """A loaded aesthetic predictor, which serves the `similarity` call; it reads no text."""

    architecture = "plumbline.plugins.reward_models.aesthetic_network:AestheticPredictor"

    @classmethod
    def load_tokenizer(cls, model: "ResolvedModel[Any]") -> None:
        return None

    @classmethod
    def load_processor(cls, model: "ResolvedModel[Any]", tokenizer: Any) -> "ReleasedTransform":
        from plumbline.operators.models.processing import ReleasedTransform, load_pixel_transform

        return ReleasedTransform(load_pixel_transform(model.folder("checkpoint"), pad_to_square=False).processor)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """Return the image preprocessed as in CLIP's release, (3, height, width); `rule` is ignored."""
        return self.pixels.pin(self.processor(image))

    def encode(self, pixels: "Sequence[torch.Tensor]") -> list[float]:
        """Return the rating of each image."""
        import torch

        with torch.inference_mode():
            ratings: list[float] = self.model.rate(self.batch(pixels)).tolist()
        return ratings

    def compare(
        self, features: Sequence[float], pairs: Sequence[Pair], measure: Measure = "reward"
    ) -> list[ComparisonResult]:
        """Return the rating of each pair's image; the text is ignored."""
        return [ComparisonResult(features[pair.image], truncated=False) for pair in pairs]


FAMILY = Family(
    loads={"similarity": AestheticSimilarity.load},
    form="an AestheticPredictor folder from jobs.convert",
    suits=lambda fields: find_architecture(fields) == "AestheticPredictor",
    files=(Files("checkpoint", ("preprocessor_config.json",), CONVERT_AGAIN_REMEDY),),
    measures=("reward",),
    compares=("image",),
)
"""A CLIP with layers that predict the mean rating that people give an image, mostly from 1 to 10."""

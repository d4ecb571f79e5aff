"""The image_features stage, which computes the features of each image with a network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from PIL import Image

from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.schemas import make_image_schema
from plumbline.operators.images.preparing import Edit, PreparedImages
from plumbline.operators.metrics.generation import GenerationChain
from plumbline.operators.models.family import Family
from plumbline.operators.stages.images import ImagesStage, PromptIndependentQuestions

FEATURES_STAGE = "image_features"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFeatures(GenerationChain):
    """Chain that ends with the features of each image."""

    kind: Literal["image_features"] = "image_features"
    chain: ClassVar[tuple[str, ...]] = (FEATURES_STAGE,)
    final_stage: ClassVar[str] = FEATURES_STAGE
    model: str
    """Role of the model, which must embed an image without a text."""
    square: bool
    """True to cut out the largest square in the middle of the image first."""


class FeaturesStage(ImagesStage):
    """Stage that encodes images. A row with several images, such as the frames of a clip, has features for each."""

    name = FEATURES_STAGE
    version = 1
    schema = make_image_schema(("features", pa.list_(pa.binary())))
    """Each entry of `features` has the float32 numbers of one image, least significant byte first."""
    metric_type = ImageFeatures
    calls: ClassVar = {"model": "similarity"}

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"square": metric.square}

    @classmethod
    def explain_unsuitable_model(cls, metric: Any, family: Family[Any]) -> str | None:
        if "source" in family.compares and "cosine" in family.measures:
            return None
        return "does not describe an image by itself; use a clip, dino or inception model"

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> Mapping[bool, Any]:
        """Return the model's input for each value of the metrics' option `square`; True crops to the middle square."""
        wanted = {metric.square for metric in self.metrics.values()}
        return {square: self.model.preprocess(_crop_square(image) if square else image) for square in wanted}

    def measure(
        self, images: PreparedImages, questions: Mapping[str, PromptIndependentQuestions]
    ) -> Mapping[str, pa.Table]:
        def encode(square: bool) -> pa.Table:
            left, features = [pixels[square] for pixels in images.pixels], list[Any]()
            while len(features) < len(left):
                batch = left[len(features) : len(features) + self.image_batch.rows]
                features += map(_convert_features, isolate(self.model.encode, batch, self.image_batch))
            return self.tabulate(
                images, PromptIndependentQuestions(), features, lambda of_row: {"features": list(of_row)}
            )

        tables = {square: encode(square) for square in {self.metrics[name].square for name in questions}}
        return {name: tables[self.metrics[name].square] for name in questions}


def _crop_square(image: Image.Image) -> Image.Image:
    """Return the largest square in the middle of an image, as in CMMD's release (cmmd/io_util.py)."""
    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    return image.crop((left, top, left + side, top + side))


def _convert_features(features: Any) -> bytes | RowError:
    if isinstance(features, RowError):
        return features
    values = np.asarray(features, "<f4")
    if not np.isfinite(values).all():
        return RowError("not_finite", "the model's features are not finite numbers; try dtype=float32")
    return values.tobytes()


def read_features(rows: Sequence[Sequence[bytes]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the features (n, width) in a column of the stage's table; no row may be null."""
    return np.frombuffer(b"".join(image for row in rows for image in row), "<f4").reshape(sum(map(len, rows)), -1)

"""OWLv2: an open-vocabulary detector that looks at an image once and compares its places with any phrase."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from plumbline.operators.base.batches import in_batches, isolate
from plumbline.operators.base.errors import HopelessRow, RowError
from plumbline.operators.models.calls import Box, Wanted
from plumbline.operators.models.families.grounding_dino import TOO_LONG
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedImageModel, Sized

if TYPE_CHECKING:
    import torch
    from PIL import Image


class Places(NamedTuple):
    """What the model makes of an image: its places, each with a box, and the image's own size."""

    features: "torch.Tensor"
    """(places, width)."""
    boxes: "torch.Tensor"
    """(places, 4): centre and size, as shares of the square that the image was put on."""
    width: int
    height: int


class Owlv2(LoadedImageModel):
    """The `detect` call: an image is encoded once, and each phrase is compared with it. A box's label is the phrase."""

    architecture = "Owlv2ForObjectDetection"

    def preprocess(self, image: "Image.Image") -> Sized:
        """The image as the checkpoint's processor has it, on a square."""
        return Sized(super().preprocess(image), image.width, image.height)

    def encode(self, pixels: Sequence[Sized]) -> list[Places]:
        """The places of each image."""
        return in_batches(self._encode, pixels, size=self.image_batch)

    def _encode(self, images: Sequence[Sized]) -> list[Places]:
        pixels = self.batch([image.tensor for image in images])
        grid, _ = self.model.image_embedder(pixel_values=pixels)
        features = grid.flatten(1, 2)
        boxes = self.model.box_predictor(features, grid)
        return [
            Places(feature, box, image.width, image.height)
            for feature, box, image in zip(features, boxes, images, strict=True)
        ]

    def detect(self, features: Sequence[Places], wanted: Sequence[Wanted]) -> list[list[Box] | RowError]:
        """What is found of each phrase, place by place."""
        return isolate(lambda batch: [self._find(features[one.image], one) for one in batch], wanted)

    def _find(self, places: Places, wanted: Wanted) -> list[Box]:
        import torch

        with torch.inference_mode():
            logits, _ = self.model.class_predictor(places.features[None], self._query(wanted.phrase)[None])
        (read,) = self.processor.post_process_object_detection(
            SimpleNamespace(logits=logits.float().cpu(), pred_boxes=places.boxes[None].float().cpu()),
            threshold=wanted.box_threshold,
            target_sizes=[(places.height, places.width)],
        )
        scored = zip(read["scores"].tolist(), read["boxes"].tolist(), strict=True)
        return [Box(wanted.phrase, score, *corners) for score, corners in scored]

    def _query(self, phrase: str) -> "torch.Tensor":
        """A phrase as what places are compared with, (1, width); raises HopelessRow where it is too long."""
        context = int(self.model.config.text_config.max_position_embeddings)
        inputs = self.tokenizer(phrase, padding="max_length", max_length=context, return_tensors="pt")
        tokens = inputs.input_ids.shape[1]
        if tokens > context:
            raise HopelessRow(RowError("prompt_too_long", TOO_LONG.format(tokens, context)))
        inputs = inputs.to(self.model.device)
        read = self.model.owlv2.get_text_features(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask)
        point: torch.Tensor = read.pooler_output / read.pooler_output.norm(dim=-1, keepdim=True)
        return point


FAMILY = Family(
    config=LocalModel,
    loads={"detect": Owlv2.load},
    form="an Owlv2ForObjectDetection",
    suits=lambda fields: fields.get("model_type") == "owlv2",
    files=(TOKENIZER, IMAGES),
    precise=True,
)

"""Open-vocabulary detectors: Grounding DINO, which reads phrases word by word, and OWLv2."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from plumbline.operators.base.batches import call_in_batches, isolate
from plumbline.operators.base.errors import HopelessRow, RowError
from plumbline.operators.models.calls import Box, Wanted
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedImageModel, Sized, in_groups

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

TOO_LONG = "what is to be found takes {} tokens, beyond the detector's context of {}; shorten the prompt"


class _Search(NamedTuple):
    """One phrase, as tokens, in one image."""

    image: Sized
    ids: list[int]
    wanted: Wanted


class GroundingDino(LoadedImageModel):
    """The `detect` call by Grounding DINO (Liu et al. 2023), with one pass for each phrase and image as VPEval has it.

    Words and pixels are mixed from the first layers on. Padding would change the boxes, so only images of equal shape
    and phrases of equal length share a batch.
    """

    architecture = "AutoModelForZeroShotObjectDetection"

    @classmethod
    def load_processor(cls, model: "ResolvedModel[Any]", tokenizer: Any) -> Any:
        from transformers import GroundingDinoProcessor

        return GroundingDinoProcessor(super().load_processor(model, tokenizer), tokenizer)

    def preprocess(self, image: "Image.Image") -> Sized:
        """Prepare the image with the checkpoint's processor."""
        pixels = self.processor.image_processor(images=image, return_tensors="pt").pixel_values[0]
        return Sized(pixels, image.width, image.height)

    def detect(self, features: Sequence[Sized], wanted: Sequence[Wanted]) -> list[list[Box] | RowError]:
        context = int(self.model.config.max_text_len)
        searches = [
            _Search(features[one.image], list(self.tokenizer(one.phrase.strip().lower() + ".").input_ids), one)
            for one in wanted
        ]

        def find(group: list[_Search]) -> Sequence[list[Box] | RowError]:
            tokens = len(group[0].ids)
            if tokens > context:
                return [RowError("prompt_too_long", TOO_LONG.format(tokens, context))] * len(group)
            return isolate(lambda batch: call_in_batches(self._find, batch, size=self.pair_batch), group)

        return in_groups(find, searches, key=lambda search: (search.image.tensor.shape, len(search.ids)))

    def _find(self, searches: Sequence[_Search]) -> list[list[Box]]:
        import torch

        pixels = self.batch([search.image.tensor for search in searches])
        ids = torch.tensor([search.ids for search in searches], device=self.model.device)
        whole = torch.ones(len(pixels), *pixels.shape[-2:], dtype=torch.long, device=pixels.device)
        outputs = self.model(pixel_values=pixels, pixel_mask=whole, input_ids=ids, attention_mask=torch.ones_like(ids))
        logits, boxes = outputs.logits.float().cpu(), outputs.pred_boxes.float().cpu()
        return [self._boxes(search, logits[row], boxes[row]) for row, search in enumerate(searches)]

    def _boxes(self, search: _Search, logits: "torch.Tensor", boxes: "torch.Tensor") -> list[Box]:
        """Convert the result of one search, (queries, words) and (queries, 4), by the library's own code."""
        import torch

        (read,) = self.processor.post_process_grounded_object_detection(
            SimpleNamespace(logits=logits[None], pred_boxes=boxes[None]),
            input_ids=torch.tensor([search.ids]),
            threshold=search.wanted.box_threshold,
            text_threshold=search.wanted.text_threshold,
            target_sizes=[(search.image.height, search.image.width)],
        )
        end = self.tokenizer.sep_token
        labels = [label.replace(end, "").strip(" .") for label in read["text_labels"]]
        # not strict: without a box there is one empty label
        labelled = zip(labels, read["scores"].tolist(), read["boxes"].tolist(), strict=False)
        return [Box(label, score, *corners) for label, score, corners in labelled]


GROUNDING_DINO = Family(
    config=LocalModel,
    loads={"detect": GroundingDino.load},
    form="a GroundingDinoForObjectDetection",
    suits=lambda fields: fields.get("model_type") == "grounding-dino",
    files=(TOKENIZER, IMAGES),
    precise=True,
)


class Places(NamedTuple):
    """Candidate boxes of one image, with features, and the image's size."""

    features: "torch.Tensor"
    """(places, width)."""
    boxes: "torch.Tensor"
    """(places, 4): centre and size, as fractions of the padded square image."""
    width: int
    height: int


class Owlv2(LoadedImageModel):
    """The `detect` call by OWLv2, which compares each phrase with the candidate boxes of an image."""

    architecture = "Owlv2ForObjectDetection"

    def preprocess(self, image: "Image.Image") -> Sized:
        """Prepare the image, on a square, with the checkpoint's processor."""
        return Sized(super().preprocess(image), image.width, image.height)

    def encode(self, pixels: Sequence[Sized]) -> list[Places]:
        return call_in_batches(self._encode, pixels, size=self.image_batch)

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
        """Return the query embedding of a phrase, (1, width); raises HopelessRow if it is too long."""
        context = int(self.model.config.text_config.max_position_embeddings)
        inputs = self.tokenizer(phrase, padding="max_length", max_length=context, return_tensors="pt")
        tokens = inputs.input_ids.shape[1]
        if tokens > context:
            raise HopelessRow(RowError("prompt_too_long", TOO_LONG.format(tokens, context)))
        inputs = inputs.to(self.model.device)
        read = self.model.owlv2.get_text_features(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask)
        point: torch.Tensor = read.pooler_output / read.pooler_output.norm(dim=-1, keepdim=True)
        return point


OWLV2 = Family(
    config=LocalModel,
    loads={"detect": Owlv2.load},
    form="an Owlv2ForObjectDetection",
    suits=lambda fields: fields.get("model_type") == "owlv2",
    files=(TOKENIZER, IMAGES),
    precise=True,
)

"""Open-vocabulary detectors: Grounding DINO and OWLv2."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from plumbline.operators.base.batches import call_in_batches, isolate
from plumbline.operators.base.errors import RowError, UnprocessableRowError
from plumbline.operators.models.calls import Box, DetectionRequest
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel, SizedTensor, call_by_group

if TYPE_CHECKING:
    import torch

TOO_LONG_MESSAGE = "the phrase to detect takes {} tokens, beyond the detector's context of {}; shorten the prompt"


class _PhraseSearch(NamedTuple):
    image: SizedTensor
    ids: list[int]
    request: DetectionRequest


class GroundingDino(LoadedImageModel):
    """Grounding DINO (Liu et al. 2023), which serves the `detect` call for one phrase at a time, as in VPEval.

    The network mixes words and pixels from its first layers on, so padding would change the boxes. A batch therefore
    only contains images of equal shape and phrases of equal length.
    """

    architecture = "AutoModelForZeroShotObjectDetection"

    @classmethod
    def load_processor(cls, model: ResolvedModel[Any], tokenizer: Any) -> Any:
        from transformers import GroundingDinoProcessor

        return GroundingDinoProcessor(super().load_processor(model, tokenizer), tokenizer)

    def preprocess(self, image: Image.Image) -> SizedTensor:
        pixels = self.processor.image_processor(images=image, return_tensors="pt").pixel_values[0]
        return SizedTensor(pixels, image.width, image.height)

    def detect(
        self, features: Sequence[SizedTensor], requests: Sequence[DetectionRequest]
    ) -> list[list[Box] | RowError]:
        context = int(self.model.config.max_text_len)
        searches = [
            _PhraseSearch(features[one.image], list(self.tokenizer(one.phrase.strip().lower() + ".").input_ids), one)
            for one in requests
        ]

        def detect_group(group: list[_PhraseSearch]) -> Sequence[list[Box] | RowError]:
            tokens = len(group[0].ids)
            if tokens > context:
                return [RowError("prompt_too_long", TOO_LONG_MESSAGE.format(tokens, context))] * len(group)
            return isolate(lambda batch: call_in_batches(self._detect_batch, batch, size=self.pair_batch), group)

        return call_by_group(detect_group, searches, key=lambda search: (search.image.tensor.shape, len(search.ids)))

    def _detect_batch(self, searches: Sequence[_PhraseSearch]) -> list[list[Box]]:
        import torch

        pixels = self.batch([search.image.tensor for search in searches])
        ids = torch.tensor([search.ids for search in searches], device=self.model.device)
        no_padding = torch.ones(len(pixels), *pixels.shape[-2:], dtype=torch.long, device=pixels.device)
        outputs = self.model(
            pixel_values=pixels, pixel_mask=no_padding, input_ids=ids, attention_mask=torch.ones_like(ids)
        )
        logits, boxes = outputs.logits.float().cpu(), outputs.pred_boxes.float().cpu()
        found = []
        for row, search in enumerate(searches):
            (read,) = self.processor.post_process_grounded_object_detection(
                SimpleNamespace(logits=logits[row : row + 1], pred_boxes=boxes[row : row + 1]),
                input_ids=torch.tensor([search.ids]),
                threshold=search.request.box_threshold,
                text_threshold=search.request.text_threshold,
                target_sizes=[(search.image.height, search.image.width)],
            )
            labels = [label.replace(self.tokenizer.sep_token, "").strip(" .") for label in read["text_labels"]]
            # not strict: without a box there is one empty label
            labelled = zip(labels, read["scores"].tolist(), read["boxes"].tolist(), strict=False)
            found.append([Box(label, score, *corners) for label, score, corners in labelled])
        return found


GROUNDING_DINO_FAMILY = Family(
    oldest_transformers="5.16",  # earlier releases fail in bfloat16
    loads={"detect": GroundingDino.load},
    form="a GroundingDinoForObjectDetection",
    suits=lambda fields: fields.get("model_type") == "grounding-dino",
    files=(TOKENIZER, IMAGES),
    float32_on_gpu=True,
)


class BoxCandidates(NamedTuple):
    """Candidate boxes of one image with their features, and the size of the image."""

    features: "torch.Tensor"
    """Features of each box, (boxes, width)."""
    boxes: "torch.Tensor"
    """Centre and size of each box, (boxes, 4), as fractions of the padded square image."""
    width: int
    height: int


class Owlv2(LoadedImageModel):
    """OWLv2, which serves the `detect` call by comparing each phrase with the candidate boxes of an image."""

    architecture = "Owlv2ForObjectDetection"

    def preprocess(self, image: Image.Image) -> SizedTensor:
        return SizedTensor(super().preprocess(image), image.width, image.height)

    def encode(self, pixels: Sequence[SizedTensor]) -> list[BoxCandidates]:
        def encode_batch(images: Sequence[SizedTensor]) -> list[BoxCandidates]:
            grid, _ = self.model.image_embedder(pixel_values=self.batch([image.tensor for image in images]))
            features = grid.flatten(1, 2)
            boxes = self.model.box_predictor(features, grid)
            return [
                BoxCandidates(feature, box, image.width, image.height)
                for feature, box, image in zip(features, boxes, images, strict=True)
            ]

        return call_in_batches(encode_batch, pixels, size=self.image_batch)

    def detect(
        self, features: Sequence[BoxCandidates], requests: Sequence[DetectionRequest]
    ) -> list[list[Box] | RowError]:
        return isolate(lambda batch: [self._detect_phrase(features[one.image], one) for one in batch], requests)

    def _detect_phrase(self, candidates: BoxCandidates, request: DetectionRequest) -> list[Box]:
        import torch

        context = int(self.model.config.text_config.max_position_embeddings)
        inputs = self.tokenizer(request.phrase, padding="max_length", max_length=context, return_tensors="pt")
        tokens = inputs.input_ids.shape[1]
        if tokens > context:
            raise UnprocessableRowError(RowError("prompt_too_long", TOO_LONG_MESSAGE.format(tokens, context)))
        ids, mask = inputs.input_ids.to(self.model.device), inputs.attention_mask.to(self.model.device)
        with torch.inference_mode():
            query = self.model.owlv2.get_text_features(input_ids=ids, attention_mask=mask).pooler_output
            query = query / query.norm(dim=-1, keepdim=True)
            logits, _ = self.model.class_predictor(candidates.features[None], query[None])
        (read,) = self.processor.post_process_object_detection(
            SimpleNamespace(logits=logits.float().cpu(), pred_boxes=candidates.boxes[None].float().cpu()),
            threshold=request.box_threshold,
            target_sizes=[(candidates.height, candidates.width)],
        )
        scored = zip(read["scores"].tolist(), read["boxes"].tolist(), strict=True)
        return [Box(request.phrase, score, *corners) for score, corners in scored]


OWLV2_FAMILY = Family(
    loads={"detect": Owlv2.load},
    form="an Owlv2ForObjectDetection",
    suits=lambda fields: fields.get("model_type") == "owlv2",
    files=(TOKENIZER, IMAGES),
    float32_on_gpu=True,
)

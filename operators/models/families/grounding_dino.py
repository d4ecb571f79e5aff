"""Grounding DINO: an open-vocabulary detector that reads what it looks for word by word (Liu et al. 2023)."""

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from plumbline.operators.batches import BatchSize, in_batches, isolate
from plumbline.operators.errors import RowError
from plumbline.operators.models.calls import Box, Wanted
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

TOO_LONG = "what is to be found takes {} tokens, beyond the detector's context of {}; shorten the prompt"


class Sized(NamedTuple):
    """An image's pixels as the model reads them, with its own size."""

    tensor: "torch.Tensor"
    """(3, height, width)."""
    width: int
    height: int


class _Search(NamedTuple):
    """One phrase, as tokens, in one image."""

    image: Sized
    ids: list[int]
    wanted: Wanted


class GroundingDino:
    """The `detect` call: one pass for each phrase and image, as in VPEval's release.

    Padding would leak into the boxes, so that only images of one shape and phrases of one length go together.
    """

    def __init__(self, model: Any, processor: Any, *, pair_batch: int) -> None:
        self.model = model
        self.processor = processor
        self.pair_batch = BatchSize(pair_batch)
        self.context = int(model.config.max_text_len)

    def preprocess(self, image: "Image.Image") -> Sized:
        """The image as the checkpoint's processor has it."""
        pixels = self.processor.image_processor(images=image, return_tensors="pt").pixel_values[0]
        return Sized(pixels, image.width, image.height)

    def encode(self, pixels: Sequence[Sized]) -> Sequence[Sized]:
        """The pixels themselves: the network mixes words into them from its first layers on."""
        return pixels

    def detect(self, features: Sequence[Sized], wanted: Sequence[Wanted]) -> list[list[Box] | RowError]:
        """What is found of each phrase, in the model's order."""
        searches = [_Search(features[one.image], self._ids(one.phrase), one) for one in wanted]
        alike = defaultdict(list)
        results: dict[int, list[Box] | RowError] = {}
        for place, search in enumerate(searches):
            if len(search.ids) > self.context:
                results[place] = RowError("prompt_too_long", TOO_LONG.format(len(search.ids), self.context))
            else:
                alike[search.image.tensor.shape, len(search.ids)].append(place)
        for places in alike.values():
            group = [searches[place] for place in places]
            boxes = isolate(lambda batch: in_batches(self._find, batch, [0] * len(batch), size=self.pair_batch), group)
            results.update(zip(places, boxes, strict=True))
        return [results[place] for place in range(len(wanted))]

    def _ids(self, phrase: str) -> list[int]:
        return list(self.processor.tokenizer(phrase.strip().lower() + ".").input_ids)

    def _find(self, searches: Sequence[_Search]) -> list[list[Box]]:
        import torch

        pixels = torch.stack([search.image.tensor for search in searches])
        pixels = pixels.to(device=self.model.device, dtype=self.model.dtype)
        ids = torch.tensor([search.ids for search in searches], device=self.model.device)
        whole = torch.ones(len(pixels), *pixels.shape[-2:], dtype=torch.long, device=pixels.device)
        outputs = self.model(pixel_values=pixels, pixel_mask=whole, input_ids=ids, attention_mask=torch.ones_like(ids))
        logits, boxes = outputs.logits.float().cpu(), outputs.pred_boxes.float().cpu()
        return [self._boxes(search, logits[row], boxes[row]) for row, search in enumerate(searches)]

    def _boxes(self, search: _Search, logits: "torch.Tensor", boxes: "torch.Tensor") -> list[Box]:
        """The library's own reading of one row, (queries, words) and (queries, 4), labels without what ends a text."""
        import torch

        (read,) = self.processor.post_process_grounded_object_detection(
            SimpleNamespace(logits=logits[None], pred_boxes=boxes[None]),
            input_ids=torch.tensor([search.ids]),
            threshold=search.wanted.box_threshold,
            text_threshold=search.wanted.text_threshold,
            target_sizes=[(search.image.height, search.image.width)],
        )
        end = self.processor.tokenizer.sep_token
        labels = [label.replace(end, "").strip(" .") for label in read["text_labels"]]
        labelled = zip(
            labels, read["scores"].tolist(), read["boxes"].tolist(), strict=False
        )  # of no box, one empty label
        return [Box(label, score, *corners) for label, score, corners in labelled]


def _load(model: "ResolvedModel") -> GroundingDino:
    from transformers import AutoModelForZeroShotObjectDetection, GroundingDinoProcessor

    from plumbline.operators.models.processing import load_image_processor, load_pretrained, load_tokenizer

    images, tokenizer = load_image_processor(model.folder("checkpoint")), load_tokenizer(model.folder("tokenizer"))
    return GroundingDino(
        load_pretrained(AutoModelForZeroShotObjectDetection, model),
        GroundingDinoProcessor(images, tokenizer),
        pair_batch=model.config.pair_batch,
    )


FAMILY = Family(
    config=LocalModel,
    loads={"detect": _load},
    form="a GroundingDinoForObjectDetection",
    suits=lambda fields: fields.get("model_type") == "grounding-dino",
    files=(TOKENIZER, IMAGES),
    precise=True,
)

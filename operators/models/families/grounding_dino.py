"""Grounding DINO: an open-vocabulary detector that reads what it looks for word by word (Liu et al. 2023)."""

from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from plumbline.operators.base.batches import in_batches, isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.models.calls import Box, Wanted
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedImageModel, Sized

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
    """The `detect` call: one pass for each phrase and image, as in VPEval's release; words are mixed into the pixels
    from the first layers on.

    Padding would leak into the boxes, so that only images of one shape and phrases of one length go together.
    """

    architecture = "AutoModelForZeroShotObjectDetection"

    @classmethod
    def load_processor(cls, model: "ResolvedModel[Any]", tokenizer: Any) -> Any:
        from transformers import GroundingDinoProcessor

        return GroundingDinoProcessor(super().load_processor(model, tokenizer), tokenizer)

    def preprocess(self, image: "Image.Image") -> Sized:
        """The image as the checkpoint's processor has it."""
        pixels = self.processor.image_processor(images=image, return_tensors="pt").pixel_values[0]
        return Sized(pixels, image.width, image.height)

    def detect(self, features: Sequence[Sized], wanted: Sequence[Wanted]) -> list[list[Box] | RowError]:
        """What is found of each phrase, in the model's order."""
        context = int(self.model.config.max_text_len)
        searches = [_Search(features[one.image], self._ids(one.phrase), one) for one in wanted]
        alike = defaultdict(list)
        results: dict[int, list[Box] | RowError] = {}
        for place, search in enumerate(searches):
            if len(search.ids) > context:
                results[place] = RowError("prompt_too_long", TOO_LONG.format(len(search.ids), context))
            else:
                alike[search.image.tensor.shape, len(search.ids)].append(place)
        for places in alike.values():
            group = [searches[place] for place in places]
            boxes = isolate(lambda batch: in_batches(self._find, batch, size=self.pair_batch), group)
            results.update(zip(places, boxes, strict=True))
        return [results[place] for place in range(len(wanted))]

    def _ids(self, phrase: str) -> list[int]:
        return list(self.tokenizer(phrase.strip().lower() + ".").input_ids)

    def _find(self, searches: Sequence[_Search]) -> list[list[Box]]:
        import torch

        pixels = self.batch([search.image.tensor for search in searches])
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
        end = self.tokenizer.sep_token
        labels = [label.replace(end, "").strip(" .") for label in read["text_labels"]]
        labelled = zip(
            labels, read["scores"].tolist(), read["boxes"].tolist(), strict=False
        )  # of no box, one empty label
        return [Box(label, score, *corners) for label, score, corners in labelled]


FAMILY = Family(
    config=LocalModel,
    loads={"detect": GroundingDino.load},
    form="a GroundingDinoForObjectDetection",
    suits=lambda fields: fields.get("model_type") == "grounding-dino",
    files=(TOKENIZER, IMAGES),
    precise=True,
)

"""GOT-OCR 2.0, a reader of the text in an image."""

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from plumbline.operators.base.batches import call_in_batches, isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedImageModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

MAX_READ_TOKENS = 512
"""Maximum length of a reply: enough for a generated image with text, not for a page."""
SHRINK = 4
"""Patches of the vision tower along each side of a token."""
END = "<|im_end|>"


class GotOcr2(LoadedImageModel):
    """The `ocr` call by GOT-OCR 2.0 (Wei et al. 2024): the likeliest text. All images take equally many tokens."""

    architecture = "AutoModelForImageTextToText"

    def __init__(self, *parts: Any, **batches: int) -> None:
        from transformers import GenerationConfig

        super().__init__(*parts, **batches)
        vision = self.model.config.vision_config
        self.image_tokens = (vision.image_size // vision.patch_size // SHRINK) ** 2
        self.end_ids = sorted({self.tokenizer.convert_tokens_to_ids(END), self.tokenizer.eos_token_id} - {None})
        self.model.generation_config = GenerationConfig()  # its penalties would enter every call

    @classmethod
    def load_processor(cls, model: "ResolvedModel[Any]", tokenizer: Any) -> Any:
        from transformers import GotOcr2Processor

        return GotOcr2Processor(super().load_processor(model, tokenizer), tokenizer)

    def preprocess(self, image: "Image.Image") -> "dict[str, torch.Tensor]":
        """Return the image as the checkpoint's processor prepares it, (3, height, width), and the prompt's tokens."""
        inputs = self.processor(images=image, num_image_tokens=self.image_tokens, return_tensors="pt")
        return {name: inputs[name][0] for name in ("pixel_values", "input_ids", "attention_mask")}

    def ocr(self, features: "Sequence[dict[str, torch.Tensor]]") -> list[str | RowError]:
        return isolate(lambda batch: call_in_batches(self._read, batch, size=self.image_batch), list(features))

    def _read(self, images: "Sequence[dict[str, torch.Tensor]]") -> list[str]:
        import torch
        from transformers import GenerationConfig

        inputs = {name: torch.stack([image[name] for image in images]).to(self.model.device) for name in images[0]}
        inputs["pixel_values"] = self.batch([image["pixel_values"] for image in images])
        settings = GenerationConfig(
            max_new_tokens=MAX_READ_TOKENS, do_sample=False, eos_token_id=self.end_ids, pad_token_id=self.end_ids[0]
        )
        output = self.model.generate(**inputs, generation_config=settings)
        replies = output[:, inputs["input_ids"].shape[1] :].tolist()
        texts = [list(takewhile(lambda token: token not in self.end_ids, ids)) for ids in replies]
        return [str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip() for ids in texts]


GOT_OCR2 = Family(
    config=LocalModel,
    loads={"ocr": GotOcr2.load},
    form="a GotOcr2ForConditionalGeneration",
    suits=lambda fields: architecture(fields) == "GotOcr2ForConditionalGeneration",
    files=(TOKENIZER, IMAGES),
)

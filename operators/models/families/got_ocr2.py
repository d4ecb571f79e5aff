"""GOT-OCR 2.0: reads the text in an image, a line for each line (Wei et al. 2024)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plumbline.operators.batches import BatchSize, in_batches, isolate
from plumbline.operators.errors import RowError
from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

MAX_TOKENS = 512
"""Of a reply: a page takes more, a generated image with text in it does not."""
SHRINK = 4
"""By which the vision tower's patches on a side are made tokens."""
END = "<|im_end|>"


class GotOcr2:
    """The `ocr` call: the likeliest text, in the plain form. All images take the same number of tokens."""

    def __init__(self, model: Any, processor: Any, *, image_batch: int) -> None:
        self.model = model
        self.processor = processor
        self.image_batch = BatchSize(image_batch)
        vision = model.config.vision_config
        self.image_tokens = (vision.image_size // vision.patch_size // SHRINK) ** 2
        tokenizer = processor.tokenizer
        self.end_ids = sorted({tokenizer.convert_tokens_to_ids(END), tokenizer.eos_token_id} - {None})

    def preprocess(self, image: "Image.Image") -> "dict[str, torch.Tensor]":
        """The image as the checkpoint's processor has it, (3, height, width), and the words that go with it."""
        inputs = self.processor(images=image, num_image_tokens=self.image_tokens, return_tensors="pt")
        return {name: inputs[name][0] for name in ("pixel_values", "input_ids", "attention_mask")}

    def encode(self, pixels: "Sequence[dict[str, torch.Tensor]]") -> "Sequence[dict[str, torch.Tensor]]":
        """The pixels themselves: an image is read once."""
        return pixels

    def ocr(self, features: "Sequence[dict[str, torch.Tensor]]") -> list[str | RowError]:
        """The text in each image; empty where there is none."""
        return isolate(
            lambda batch: in_batches(self._read, batch, [0] * len(batch), size=self.image_batch), list(features)
        )

    def _read(self, images: "Sequence[dict[str, torch.Tensor]]") -> list[str]:
        import torch
        from transformers import GenerationConfig

        inputs = {name: torch.stack([image[name] for image in images]).to(self.model.device) for name in images[0]}
        inputs["pixel_values"] = inputs["pixel_values"].to(self.model.dtype)
        settings = GenerationConfig(
            max_new_tokens=MAX_TOKENS, do_sample=False, eos_token_id=self.end_ids, pad_token_id=self.end_ids[0]
        )
        output = self.model.generate(**inputs, generation_config=settings)
        return [self._text(row) for row in output[:, inputs["input_ids"].shape[1] :].tolist()]

    def _text(self, ids: list[int]) -> str:
        length = next((place for place, token in enumerate(ids) if token in self.end_ids), len(ids))
        return str(self.processor.tokenizer.decode(ids[:length], skip_special_tokens=True)).strip()


def _load(model: "ResolvedModel") -> GotOcr2:
    from transformers import AutoModelForImageTextToText, GenerationConfig, GotOcr2Processor

    from plumbline.operators.models.processing import load_image_processor, load_pretrained, load_tokenizer

    images, tokenizer = load_image_processor(model.folder("checkpoint")), load_tokenizer(model.folder("tokenizer"))
    network = load_pretrained(AutoModelForImageTextToText, model)
    network.generation_config = GenerationConfig()  # its penalties would enter every call
    return GotOcr2(network, GotOcr2Processor(images, tokenizer), image_batch=model.config.image_batch)


FAMILY = Family(
    config=LocalModel,
    loads={"ocr": _load},
    form="a GotOcr2ForConditionalGeneration",
    suits=lambda fields: architecture(fields) == "GotOcr2ForConditionalGeneration",
    files=(TOKENIZER, IMAGES),
)

"""GOT-OCR 2.0: reads the text in an image, a line for each line (Wei et al. 2024)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plumbline.operators.base.batches import in_batches, isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedImageModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

MAX_TOKENS = 512
"""Of a reply: a page takes more, a generated image with text in it does not."""
SHRINK = 4
"""By which the vision tower's patches on a side are made tokens."""
END = "<|im_end|>"


class GotOcr2(LoadedImageModel):
    """The `ocr` call: the likeliest text, in the plain form. All images take the same number of tokens."""

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
        """The image as the checkpoint's processor has it, (3, height, width), and the words that go with it."""
        inputs = self.processor(images=image, num_image_tokens=self.image_tokens, return_tensors="pt")
        return {name: inputs[name][0] for name in ("pixel_values", "input_ids", "attention_mask")}

    def ocr(self, features: "Sequence[dict[str, torch.Tensor]]") -> list[str | RowError]:
        """The text in each image; empty where there is none."""
        return isolate(lambda batch: in_batches(self._read, batch, size=self.image_batch), list(features))

    def _read(self, images: "Sequence[dict[str, torch.Tensor]]") -> list[str]:
        import torch
        from transformers import GenerationConfig

        inputs = {name: torch.stack([image[name] for image in images]).to(self.model.device) for name in images[0]}
        inputs["pixel_values"] = self.batch([image["pixel_values"] for image in images])
        settings = GenerationConfig(
            max_new_tokens=MAX_TOKENS, do_sample=False, eos_token_id=self.end_ids, pad_token_id=self.end_ids[0]
        )
        output = self.model.generate(**inputs, generation_config=settings)
        return [self._text(row) for row in output[:, inputs["input_ids"].shape[1] :].tolist()]

    def _text(self, ids: list[int]) -> str:
        length = next((place for place, token in enumerate(ids) if token in self.end_ids), len(ids))
        return str(self.tokenizer.decode(ids[:length], skip_special_tokens=True)).strip()


FAMILY = Family(
    config=LocalModel,
    loads={"ocr": GotOcr2.load},
    form="a GotOcr2ForConditionalGeneration",
    suits=lambda fields: architecture(fields) == "GotOcr2ForConditionalGeneration",
    files=(TOKENIZER, IMAGES),
)

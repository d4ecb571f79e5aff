"""Readers of the text in an image: GOT-OCR 2.0, and RapidOCR on a CPU."""

import os
from collections.abc import Sequence
from importlib import metadata
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.base.batches import call_in_batches, isolate
from plumbline.operators.base.errors import ModelError, RowError, install
from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel, ModelConfig, ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel
from plumbline.operators.models.vqa_profiles import VqaProfile

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
        """Return the text in each image; empty if an image has no text."""
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


PACKAGES = ("rapidocr", "onnxruntime")
SHIPPED = "PP-OCRv6_small"
"""The models for detection and recognition that the package ships; it would download others."""


class RapidOcr:
    """The `ocr` call by PP-OCRv6, which RapidOCR's package ships: Latin and Chinese text (PaddleOCR's models on ONNX).

    Each line of text is found, cut out and read by itself, so that no batch can change it.
    """

    side_by_side = False

    def __init__(self) -> None:
        from rapidocr import RapidOCR

        threads = int(os.environ.get("OMP_NUM_THREADS", "-1"))  # Ray gives a worker's share of the CPUs there
        options = {"Global.log_level": "critical", "EngineConfig.onnxruntime.intra_op_num_threads": threads}
        self.reader = RapidOCR(params=options)

    @classmethod
    def load(cls, model: ResolvedModel[Any]) -> "RapidOcr":
        """Create the reader; raises ModelError if the package is not installed."""
        package_versions()
        return cls()

    def preprocess(self, image: "Image.Image") -> NDArray[np.uint8]:
        """Return the pixels, (height, width, 3), in the package's order: blue first."""
        return np.ascontiguousarray(np.asarray(image)[:, :, ::-1])

    def encode(self, pixels: Sequence[NDArray[np.uint8]]) -> Sequence[NDArray[np.uint8]]:
        """Return the pixels unchanged."""
        return pixels

    def ocr(self, features: Sequence[NDArray[np.uint8]]) -> list[str | RowError]:
        """Return the text in each image, line by line from the top; empty if an image has no text."""
        return isolate(lambda batch: [self._read(pixels) for pixels in batch], list(features))

    def _read(self, pixels: NDArray[np.uint8]) -> str:
        return "\n".join(getattr(self.reader(pixels), "txts", None) or ())


def package_versions() -> dict[str, str]:
    """Return the installed versions, which identify the weights; raises ModelError if a package is missing."""
    try:
        return {name: metadata.version(name) for name in PACKAGES}
    except metadata.PackageNotFoundError as error:
        raise ModelError(f"family rapidocr needs the package {error.name}; {install('ocr')}") from error


def _options_in_key(config: ModelConfig, profile: VqaProfile | None) -> dict[str, Any]:
    if config.checkpoint != SHIPPED:
        raise ModelError(
            f"model {config.checkpoint!r}: family rapidocr has {SHIPPED}, which its package ships; set "
            f"checkpoint={SHIPPED}, or choose another family that serves ocr"
        )
    return {"package": package_versions()["rapidocr"]}


RAPIDOCR = Family(config=ModelConfig, extra="ocr", loads={"ocr": RapidOcr.load}, options_in_key=_options_in_key)

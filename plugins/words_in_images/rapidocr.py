"""RapidOCR, a reader of the text in an image that needs no GPU."""

import os
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import ModelError, RowError, install
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import ModelConfig, ResolvedModel
from plumbline.operators.models.vqa_profiles import VqaProfile

if TYPE_CHECKING:
    from PIL import Image

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


FAMILY = Family(config=ModelConfig, extra="ocr", loads={"ocr": RapidOcr.load}, options_in_key=_options_in_key)

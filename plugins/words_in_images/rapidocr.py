"""The model family rapidocr, which reads the text in images without a GPU."""

import os
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import ModelError, RowError, format_install_remedy
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import ModelConfig, ResolvedModel
from plumbline.operators.models.vqa_profiles import VqaProfile

if TYPE_CHECKING:
    from PIL import Image

OCR_PACKAGES = ("rapidocr", "onnxruntime")
PACKAGED_CHECKPOINT = "PP-OCRv6_small"
"""Checkpoint whose models are included in the package; any other models would have to be downloaded."""


class RapidOcr:
    """Text reader that implements `ocr` with PP-OCRv6, which comes with RapidOCR and reads Latin and Chinese text.

    These are PaddleOCR's models, run with ONNX Runtime. Each line of text is detected, cropped and read separately, so
    that results do not depend on the batch.
    """

    side_by_side = False

    def __init__(self) -> None:
        from rapidocr import RapidOCR

        threads = int(os.environ.get("OMP_NUM_THREADS", "-1"))  # Ray gives a worker's share of the CPUs there
        options = {"Global.log_level": "critical", "EngineConfig.onnxruntime.intra_op_num_threads": threads}
        self.reader = RapidOCR(params=options)

    @classmethod
    def load(cls, model: ResolvedModel[Any]) -> "RapidOcr":
        """Create the reader; raise ModelError if the package is not installed."""
        get_package_versions()
        return cls()

    def preprocess(self, image: "Image.Image") -> NDArray[np.uint8]:
        """Return the pixels (height, width, 3) in BGR order, which the package expects."""
        return np.ascontiguousarray(np.asarray(image)[:, :, ::-1])

    def encode(self, pixels: Sequence[NDArray[np.uint8]]) -> Sequence[NDArray[np.uint8]]:
        """Return the pixels unchanged."""
        return pixels

    def ocr(self, features: Sequence[NDArray[np.uint8]]) -> list[str | RowError]:
        """Return the text in each image, line by line from top to bottom; an empty string if an image has no text."""
        return isolate(lambda batch: [self._read(pixels) for pixels in batch], list(features))

    def _read(self, pixels: NDArray[np.uint8]) -> str:
        return "\n".join(getattr(self.reader(pixels), "txts", None) or ())


def get_package_versions() -> dict[str, str]:
    """Return each package's version, by name; the versions identify the weights.

    Raises ModelError if a package is missing.
    """
    try:
        return {name: metadata.version(name) for name in OCR_PACKAGES}
    except metadata.PackageNotFoundError as error:
        raise ModelError(f"family rapidocr needs the package {error.name}; {format_install_remedy('ocr')}") from error


def _list_cache_key_options(config: ModelConfig, profile: VqaProfile | None) -> dict[str, Any]:
    if config.checkpoint != PACKAGED_CHECKPOINT:
        raise ModelError(
            f"model {config.checkpoint!r}: family rapidocr only has {PACKAGED_CHECKPOINT}, which comes with its "
            f"package; set checkpoint={PACKAGED_CHECKPOINT}, or choose another family that serves ocr"
        )
    return {"package": get_package_versions()["rapidocr"]}


FAMILY = Family(config=ModelConfig, extra="ocr", loads={"ocr": RapidOcr.load}, options_in_key=_list_cache_key_options)

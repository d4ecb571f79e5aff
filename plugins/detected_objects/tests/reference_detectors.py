"""Detectors as transformers runs them, for comparison; each returns boxes as rows (x1, y1, x2, y2, score)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import transformers
from PIL import Image

from plugins.detected_objects.tests.geneval_reference import Boxes
from tests.operators.models.families.library import load_image_processor, load_network, load_tokenizer
from tests.operators.tiny import detectors

Detect = Callable[[Path, Image.Image, str], Boxes]


def detect_with_owlv2(folder: Path, image: Image.Image, phrase: str) -> Boxes:
    processor = transformers.Owlv2Processor(load_image_processor(folder), load_tokenizer(folder))
    inputs = processor(images=image, text=[[phrase]], max_length=16, return_tensors="pt")
    outputs = load_network("Owlv2ForObjectDetection", folder)(**inputs)
    size = [image.size[::-1]]
    (read,) = processor.post_process_grounded_object_detection(outputs, threshold=0.0, target_sizes=size)
    return np.column_stack([read["boxes"].detach().numpy(), read["scores"].detach().numpy()])


def detect_with_grounding_dino(folder: Path, image: Image.Image, phrase: str) -> Boxes:
    processor = transformers.GroundingDinoProcessor(load_image_processor(folder), load_tokenizer(folder))
    inputs = processor(images=image, text=[[phrase]], return_tensors="pt")
    outputs = load_network("GroundingDinoForObjectDetection", folder)(**inputs)
    (read,) = processor.post_process_grounded_object_detection(
        outputs, inputs.input_ids, threshold=0.0, text_threshold=0.0, target_sizes=[image.size[::-1]]
    )
    return np.column_stack([read["boxes"].detach().numpy(), read["scores"].detach().numpy()])


class Kind(NamedTuple):
    save: Callable[[Path], Path]
    detect: Detect
    """Function that returns all boxes for a phrase, as transformers' own processor does."""
    threshold: float
    """Threshold that some of the tiny checkpoint's boxes exceed."""


KINDS: Mapping[str, Kind] = {
    "owlv2": Kind(detectors.save_owlv2, detect_with_owlv2, 0.5),
    "grounding_dino": Kind(detectors.save_grounding_dino, detect_with_grounding_dino, 0.5),
}

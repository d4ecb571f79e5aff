"""From a decoded image to the pixel tensor a CLIP tower reads."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil


class PixelTransform:
    """CLIP's own preprocessing (resize, centre crop, normalise), optionally after padding to a square."""

    def __init__(self, processor: CLIPImageProcessorPil, *, pad_to_square: bool) -> None:
        self.processor = processor
        self.pad_to_square = pad_to_square

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """One RGB image of any size as (3, height, width), float32."""
        if self.pad_to_square:
            image = padded_square(image, tuple(int(mean * 255) for mean in self.processor.image_mean))
        pixels = self.processor(images=image, return_tensors="np")["pixel_values"][0]
        return torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32))


def padded_square(image: Image.Image, colour: tuple[int, ...]) -> Image.Image:
    """The image centred on a square of its longer side, filled with `colour`."""
    width, height = image.size
    if width == height:
        return image
    side = max(width, height)
    square = Image.new("RGB", (side, side), colour)
    square.paste(image, ((side - width) // 2, (side - height) // 2))
    return square


def load_pixel_transform(folder: Path, *, pad_to_square: bool) -> PixelTransform:
    """The transform that a CLIP checkpoint's preprocessor_config.json describes."""
    return PixelTransform(CLIPImageProcessorPil.from_pretrained(folder), pad_to_square=pad_to_square)

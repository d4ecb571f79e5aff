"""Pixels are sent to the device as bytes, and converted there to exactly the values that the processor would return."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from plumbline.operators.models.pixels import make_pixel_input
from tests.operators.tiny import draw_image
from tests.releases import CHAT_MODELS_RELEASE, is_older

pytestmark = pytest.mark.skipif(
    is_older(CHAT_MODELS_RELEASE), reason="some processors of chat models convert bytes in other ways"
)
PER_CHANNEL_PROCESSORS = {
    "CLIPImageProcessorPil": {},
    "SiglipImageProcessorPil": {},
    "BlipImageProcessorPil": {},
    "LlavaNextImageProcessorPil": {},
    "LlavaOnevisionImageProcessorPil": {},
    "GotOcr2ImageProcessorPil": {"crop_to_patches": True},
    "Idefics3ImageProcessorPil": {},
    "Gemma3ImageProcessorPil": {},
    "Qwen2VLImageProcessorPil": {},
    "Glm4vImageProcessorPil": {},
}
"""Processors whose last steps treat all pixels of a channel alike, with options used by checkpoints."""
OTHER_PROCESSORS = ("Siglip2ImageProcessorPil", "Owlv2ImageProcessorPil")
"""Processors that pad or resize after converting pixels to floats."""


def make_processor(name: str) -> Any:
    return getattr(transformers, name)(**PER_CHANNEL_PROCESSORS.get(name, {}))


@pytest.mark.parametrize("size", [(333, 500), (64, 64), (700, 90)])
@pytest.mark.parametrize("name", PER_CHANNEL_PROCESSORS)
def test_bytes_are_converted_to_the_processors_own_values_on_the_device(name: str, size: tuple[int, int]) -> None:
    processor, image = make_processor(name), draw_image(3, width=size[0], height=size[1])
    own = processor(images=image, return_tensors="pt")
    read = make_pixel_input(processor, device="cpu", dtype=torch.float32)
    left = processor(images=image, return_tensors="pt")
    assert left["pixel_values"].dtype == torch.uint8
    assert torch.equal(read([read.pin(left.pop("pixel_values"))]), own.pop("pixel_values"))
    assert all(np.array_equal(left[each], own[each]) for each in own), "their grids and masks"


@pytest.mark.parametrize("name", OTHER_PROCESSORS)
def test_a_processor_that_resizes_or_pads_floats_stays_unchanged(name: str) -> None:
    processor, image = make_processor(name), draw_image(4, width=90, height=40)
    own = processor(images=image, return_tensors="pt")["pixel_values"]
    read = make_pixel_input(processor, device="cpu", dtype=torch.float32)
    left = processor(images=image, return_tensors="pt")["pixel_values"]
    assert torch.equal(left, own)
    assert torch.equal(read([left]), own)


@pytest.mark.parametrize(("name", "fewer"), [("CLIPImageProcessorPil", 4), ("Qwen2VLImageProcessorPil", 8)])
def test_pixels_sent_as_bytes_take_a_fraction_of_the_memory(name: str, fewer: int) -> None:
    """The image has 1024 x 1024 pixels; Qwen-VL's patches contain every pixel twice."""
    processor, image = make_processor(name), Image.new("RGB", (1024, 1024), "red")
    numbers = processor(images=image, return_tensors="pt")["pixel_values"]
    make_pixel_input(processor, device="cpu", dtype=torch.float32)
    left = processor(images=image, return_tensors="pt")["pixel_values"]
    assert numbers.nbytes == fewer * left.nbytes


def test_converted_pixels_have_the_networks_precision() -> None:
    processor, image = make_processor("CLIPImageProcessorPil"), draw_image(5)
    own = processor(images=image, return_tensors="pt")["pixel_values"].bfloat16()
    read = make_pixel_input(processor, device="cpu", dtype=torch.bfloat16)
    assert torch.equal(read([processor(images=image, return_tensors="pt")["pixel_values"]]), own)

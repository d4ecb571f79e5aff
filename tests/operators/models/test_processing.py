"""An image is padded, resized and normalised as in the released code before it reaches the vision tower."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import decode_row_image
from plumbline.operators.models.pixels import make_pixel_input
from plumbline.operators.models.processing import (
    PixelTransform,
    ReleasedTransform,
    centre_on_square,
    load_pixel_transform,
)
from tests.operators.tiny import IMAGE_MEAN, IMAGE_SIDE, IMAGE_STD, draw_image, encode_image, refuse_fetch

MEAN_COLOUR = (122, 116, 104)
"""CLIP's mean colour in bytes, truncated rather than rounded, as in the released code."""


@pytest.fixture(scope="module")
def padding(checkpoints: Path) -> PixelTransform:
    return load_pixel_transform(checkpoints / "clip", pad_to_square=True)


@pytest.fixture(scope="module")
def cropping(checkpoints: Path) -> PixelTransform:
    return load_pixel_transform(checkpoints / "clip", pad_to_square=False)


def preprocess(transform: PixelTransform | ReleasedTransform, image: Image.Image) -> torch.Tensor:
    """Return the network's input for the image, of shape (3, height, width)."""
    return make_pixel_input(transform, device="cpu", dtype=torch.float32)([transform(image)[None]])[0]


def preprocess_by_hand(image: Image.Image) -> np.ndarray:
    """Return the pixels after resizing the shorter side (bicubic), cropping the centre and normalising.

    The shape is (3, IMAGE_SIDE, IMAGE_SIDE).
    """
    scale = IMAGE_SIDE / min(image.size)
    width, height = (int(side * scale) for side in image.size)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - IMAGE_SIDE) // 2, (height - IMAGE_SIDE) // 2
    cropped = np.asarray(resized)[top : top + IMAGE_SIDE, left : left + IMAGE_SIDE] / 255
    return ((cropped - IMAGE_MEAN) / IMAGE_STD).transpose(2, 0, 1)


@pytest.mark.parametrize("size", [(48, 48), (64, 48), (40, 90), (32, 32), (5, 7), (1, 1), (3, 3)])
def test_clips_own_preprocessing_resizes_crops_and_normalises(cropping: PixelTransform, size: tuple[int, int]) -> None:
    image = draw_image(2, width=size[0], height=size[1])
    pixels = cropping(image)
    assert (pixels.shape, pixels.dtype) == ((3, IMAGE_SIDE, IMAGE_SIDE), torch.uint8)
    np.testing.assert_allclose(preprocess(cropping, image), preprocess_by_hand(image), atol=1e-5)


@pytest.mark.parametrize("size", [(48, 48), (64, 48), (40, 90), (32, 32), (5, 7), (1, 1), (333, 500)])
def test_the_processors_separate_steps_equal_the_processor_bit_by_bit(
    cropping: PixelTransform, size: tuple[int, int]
) -> None:
    image = draw_image(6, width=size[0], height=size[1])
    pixels = cropping.processor(images=image, return_tensors="np")["pixel_values"][0]
    assert (preprocess(cropping, image).numpy() == pixels).all()


@pytest.mark.parametrize("size", [(64, 48), (40, 90), (33, 32), (7, 1), (48, 48)])
def test_padding_comes_before_the_other_steps(padding: PixelTransform, size: tuple[int, int]) -> None:
    image = draw_image(3, width=size[0], height=size[1])
    side = max(size)
    square = np.full((side, side, 3), MEAN_COLOUR, dtype=np.uint8)
    left, top = (side - size[0]) // 2, (side - size[1]) // 2
    square[top : top + size[1], left : left + size[0]] = np.asarray(image)
    np.testing.assert_allclose(preprocess(padding, image), preprocess_by_hand(Image.fromarray(square)), atol=1e-5)


@pytest.mark.parametrize(("width", "left"), [(33, 0), (34, 1), (35, 2), (36, 2), (37, 2), (39, 4)])
def test_margins_are_rounded_to_even_by_released_code_and_truncated_by_processors(
    cropping: PixelTransform, width: int, left: int
) -> None:
    image = draw_image(4, width=width, height=IMAGE_SIDE)
    expected = np.asarray(image)[:, left : left + IMAGE_SIDE] / 255
    shown = preprocess(ReleasedTransform(cropping.processor), image)
    np.testing.assert_allclose(shown, ((expected - IMAGE_MEAN) / IMAGE_STD).transpose(2, 0, 1), atol=1e-5)
    assert torch.allclose(shown, preprocess(cropping, image), atol=1e-5) == (left == (width - IMAGE_SIDE) // 2)


@pytest.mark.parametrize("mode", ["P", "1"])
def test_the_released_code_resizes_palette_images_by_nearest_neighbour(cropping: PixelTransform, mode: str) -> None:
    stored = draw_image(5, width=90, height=60).convert(mode)
    shown = preprocess(ReleasedTransform(cropping.processor), encode_and_decode(stored))
    nearest = stored.convert("RGB").resize((48, 32), Image.Resampling.NEAREST).crop((8, 0, 40, 32))
    torch.testing.assert_close(shown, preprocess(cropping, nearest), atol=1e-5, rtol=0)
    assert not torch.allclose(shown, preprocess(cropping, encode_and_decode(stored)), atol=0.1)


def test_in_the_released_code_transparent_pixels_do_not_affect_their_neighbours(cropping: PixelTransform) -> None:
    stored = Image.new("RGBA", (96, 96), (255, 255, 255, 255))
    stored.paste((0, 0, 0, 0), (0, 0, 50, 96))
    shown = preprocess(ReleasedTransform(cropping.processor), encode_and_decode(stored))
    brightness = (shown[0] * IMAGE_STD[0] + IMAGE_MEAN[0])[16]
    assert set(brightness.round(decimals=3).tolist()) == {0.0, 1.0}, "no grey between the two"


def encode_and_decode(image: Image.Image) -> Image.Image:
    """Encode the image as a PNG, and decode it as the stages do."""
    found = decode_row_image({"image": encode_image(image)}, ImageLimits(), refuse_fetch)
    assert isinstance(found, Image.Image)
    assert found.mode == "RGB"
    return found


def test_padding_keeps_the_margins_that_cropping_loses(padding: PixelTransform, cropping: PixelTransform) -> None:
    image = Image.new("RGB", (96, 32), "black")
    image.paste((255, 255, 255), (0, 0, 16, 32))
    assert preprocess(cropping, image).max() < 0, "the white edge is cut off"
    assert preprocess(padding, image).max() > 1


def test_the_image_is_in_the_middle_of_its_square() -> None:
    square = centre_on_square(Image.new("RGB", (3, 6), "red"), (1, 2, 3))
    assert square.size == (6, 6)
    assert [square.getpixel((column, 0)) for column in range(6)] == [(1, 2, 3)] + [(255, 0, 0)] * 3 + [(1, 2, 3)] * 2


def test_padding_leaves_a_square_image_unchanged() -> None:
    image = draw_image(0, width=8, height=8)
    assert centre_on_square(image, (1, 2, 3)).tobytes() == image.tobytes()

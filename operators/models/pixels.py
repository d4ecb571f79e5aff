"""Moves pixels to a network's device as bytes, and makes numbers of them there.

A byte takes a quarter of the memory and bus time of a float32 number, and a processor's last steps for each of them
take a third of its time on a CPU. The numbers equal the processor's own bit by bit.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

BYTES = 256
TRIED = (96, 96), (150, 70), (64, 130)
"""Sizes of the test images that show whether a processor's last steps are the same for every pixel."""


class Patches(NamedTuple):
    """Parameters of the cut into patches in a processor of Qwen-VL's kind (Wang et al. 2024, sec. 2.1)."""

    side: int
    """Side of a patch in pixels."""
    merged: int
    """Patches along each side of a token."""
    depth: int
    """Frames of a video per patch; an image is repeated in each of them."""

    def cut_patches(self, frames: torch.Tensor) -> torch.Tensor:
        """Cut frames (n, 3, height, width) of one image or video into patches (patches, 3 * depth * side * side)."""
        frames = frames.expand(self.depth, -1, -1, -1) if len(frames) == 1 else frames
        rows, columns = (length // self.side // self.merged for length in frames.shape[2:])
        split = frames.reshape(-1, self.depth, 3, rows, self.merged, self.side, columns, self.merged, self.side)
        return split.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 3 * self.depth * self.side**2)

    def whole(self, image: np.ndarray, *_: int, **__: int) -> tuple[np.ndarray, int, int]:
        """Return an image (3, height, width) uncut, (1, 3, height, width), and its height and width in patches."""
        return image[None], image.shape[1] // self.side, image.shape[2] // self.side


class PixelInput:
    """Turns the pixels that a processor has left on the CPU into a network's input."""

    def __init__(
        self, colours: torch.Tensor | None, patches: Patches | None = None, *, device: Any = "cpu", dtype: Any = None
    ) -> None:
        """Cut pixels into `patches` on the device, if given.

        `colours` (3, 256) has the number of each byte of each colour; it is None if pixels are numbers already.
        """
        self.colours = None if colours is None else colours.to(device, dtype)
        self.patches = patches
        self.device = torch.device(device)
        self.dtype = dtype

    def pin(self, pixels: torch.Tensor) -> torch.Tensor:
        """Make pixels contiguous and, for a GPU, page-locked, so that the GPU copies them while the CPU goes on."""
        pixels = pixels.contiguous()
        return pixels.pin_memory() if self.device.type == "cuda" else pixels

    def __call__(self, pixels: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join pixels of several images, of equal shape except for the first axis, in one tensor on the device."""
        moved = [each.to(self.device, non_blocking=True) for each in pixels]
        if self.patches is not None and moved[0].dtype == torch.uint8:
            return torch.cat([self.patches.cut_patches(self._numbers(each)) for each in moved])
        return self._numbers(torch.cat(moved))

    def _numbers(self, pixels: torch.Tensor) -> torch.Tensor:
        if pixels.dtype != torch.uint8 or self.colours is None:
            return pixels.to(dtype=self.dtype) if pixels.is_floating_point() else pixels
        return self.colours[torch.arange(3, device=self.device)[:, None, None], pixels.int()]


def pixel_input(processor: Any, *, device: Any, dtype: torch.dtype) -> PixelInput:
    """Return an input that does a processor's last steps on the device if they treat all pixels of a colour alike.

    `processor` is a transform of ours, which has `colours`, or a processor of transformers, which is tried on noise:
    its own result must equal ours exactly.
    """
    if hasattr(processor, "colours"):
        return PixelInput(processor.colours, device=device, dtype=dtype)
    processor = getattr(processor, "image_processor", processor)
    if "pixel_values" not in processor.model_input_names:  # patches, as Fuyu's
        return PixelInput(None, device=device, dtype=dtype)
    images = [_noise_image(size) for size in TRIED]
    wanted = [_pixel_values(processor, image) for image in images]
    colours, patches = byte_colours(processor), _patches(processor)
    begun = vars(processor).copy()
    processor.do_rescale = processor.do_normalize = False
    if patches is not None:
        processor.patchify = patches.whole
    tried = PixelInput(colours, patches)
    for image, own in zip(images, wanted, strict=True):
        left = _pixel_values(processor, image)
        if left.dtype != torch.uint8 or not torch.equal(tried([left]), own):
            vars(processor).clear()
            vars(processor).update(begun)
            return PixelInput(None, device=device, dtype=dtype)
    return PixelInput(colours, patches, device=device, dtype=dtype)


def byte_colours(processor: Any) -> torch.Tensor:
    """Return the number (3, 256) that a processor of transformers assigns to each byte of each colour."""
    numbers = np.tile(np.arange(BYTES, dtype=np.uint8), (3, 1, 1))
    if processor.do_rescale:
        numbers = processor.rescale(numbers, processor.rescale_factor)
    if processor.do_normalize:
        numbers = processor.normalize(numbers, processor.image_mean, processor.image_std)
    return torch.from_numpy(np.ascontiguousarray(numbers[:, 0], dtype=np.float32))


def _patches(processor: Any) -> Patches | None:
    if not hasattr(processor, "patchify"):
        return None
    return Patches(processor.patch_size, processor.merge_size, processor.temporal_patch_size)


def _pixel_values(processor: Any, image: Image.Image) -> torch.Tensor:
    pixels: torch.Tensor = processor(images=image, return_tensors="pt")["pixel_values"]
    return pixels


def _noise_image(size: tuple[int, int]) -> Image.Image:
    width, height = size
    return Image.fromarray(np.random.default_rng(0).integers(BYTES, size=(height, width, 3), dtype=np.uint8))

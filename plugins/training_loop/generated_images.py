"""Generates the images of a step with a diffusers pipeline or a function, from the same seeds at every step."""

import inspect
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from plumbline.operators.base.errors import ConfigError, RowError

if TYPE_CHECKING:
    from torch import nn

Pipeline = Callable[..., Any]
"""A diffusers pipeline, or a function of prompts (and seeds) that returns an image for each prompt."""


class WantedImage(NamedTuple):
    """An image to generate at every step."""

    image_id: str
    prompt_id: str
    prompt: str
    seed: int


class GeneratedImage(NamedTuple):
    """An image as PNG, or the reason why it cannot be scored."""

    image_id: str
    encoded: bytes | None
    error: RowError | None = None


def generate_images(
    pipeline: Pipeline, wanted: Sequence[WantedImage], batch: int, options: Mapping[str, Any]
) -> Iterator[GeneratedImage]:
    """Yield the wanted images in order.

    After each batch, restore the modes of the pipeline's modules and the states of the random generators.

    Args:
        pipeline: The pipeline or function.
        wanted: The images.
        batch: Number of images per pipeline call.
        options: Further arguments of a diffusers pipeline.

    Raises:
        ConfigError: The pipeline did not return an image for each prompt.
    """
    import torch  # takes seconds, and a configuration can be checked without it

    for start in range(0, len(wanted), batch):
        some = wanted[start : start + batch]
        prompts, seeds = [image.prompt for image in some], [image.seed for image in some]
        with torch.no_grad(), torch.random.fork_rng(_list_devices()), _use_evaluation_mode(pipeline):
            torch.manual_seed(seeds[0])  # for functions that draw from the global generator
            if _is_diffusers_pipeline(pipeline):
                generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
                made = pipeline(prompt=prompts, generator=generators, **options)
            else:
                made = pipeline(*_choose_arguments(pipeline, prompts, seeds))
        found = made.images if hasattr(made, "images") else made
        images = list(found) if isinstance(found, Iterable) else []
        if len(images) != len(some):
            raise ConfigError(
                f"pipeline: expected {len(some)} images for {len(some)} prompts, found {len(images)}; return one image "
                "per prompt, in the order of the prompts"
            )
        yield from (_make_generated_image(image, request) for image, request in zip(images, some, strict=True))


def _list_devices() -> list[int]:
    """Return a list with the index of the GPU that this process uses; empty if there is no GPU."""
    import torch

    return [torch.cuda.current_device()] if torch.cuda.is_available() else []


def _is_diffusers_pipeline(pipeline: Pipeline) -> bool:
    diffusers = sys.modules.get("diffusers")  # imported already if the pipeline is one
    return diffusers is not None and isinstance(pipeline, diffusers.DiffusionPipeline)


def _choose_arguments(pipeline: Pipeline, prompts: list[str], seeds: list[int]) -> tuple[list[Any], ...]:
    """Return the arguments for the function: the prompts and, if it takes two arguments, the seeds."""
    try:  # the signature of a module is that of `forward`, because its own accepts anything
        inspect.signature(getattr(pipeline, "forward", pipeline)).bind(prompts, seeds)
    except TypeError:
        return (prompts,)
    return prompts, seeds


@contextmanager
def _use_evaluation_mode(pipeline: Pipeline) -> Iterator[None]:
    """Put the pipeline's modules into evaluation mode, and restore each module's mode at the end."""
    modes = {module: module.training for module in _list_modules(pipeline)}
    for module in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _list_modules(pipeline: Pipeline) -> "list[nn.Module]":
    from torch import nn

    parts = [pipeline, *dict(getattr(pipeline, "components", {})).values()]
    return [module for part in parts if isinstance(part, nn.Module) for module in part.modules()]


def _make_generated_image(image: Any, wanted: WantedImage) -> GeneratedImage:
    """Return an image as PNG, or an error if it is missing or of a single colour; raise ConfigError for other types."""
    if image is None:
        error = RowError("missing_image", "the pipeline returned None instead of an image; check the prompt")
        return GeneratedImage(wanted.image_id, None, error)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in (2, 3):
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        kind = f"an array of type {image.dtype}" if isinstance(image, np.ndarray) else f"a {type(image).__name__}"
        raise ConfigError(
            f"pipeline: expected a PIL.Image or a uint8 array of shape (height, width, 3) for {wanted.prompt!r}, "
            f"found {kind}; convert it, for example with torchvision's to_pil_image"
        )
    picture = image.convert("RGB")
    pixels = np.asarray(picture)
    if (pixels == pixels[0, 0]).all():
        colour = "of one colour" if pixels.any() else "black, as after NaN values or a safety filter"
        message = f"the pipeline made an image that is entirely {colour}; check its weights, or use float32"
        return GeneratedImage(wanted.image_id, None, RowError("blank_picture", message))
    stream = io.BytesIO()
    picture.save(stream, "PNG", compress_level=1)
    return GeneratedImage(wanted.image_id, stream.getvalue())

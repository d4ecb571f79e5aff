"""Loads processors, tokenizers and networks from checkpoints; implements CLIP's preprocessing and its variants."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate, pad
from transformers import AutoTokenizer
from transformers.models.auto.image_processing_auto import AutoImageProcessor  # from the top, 5.6 needs torchvision
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from plumbline.operators.base.errors import ModelError
from plumbline.operators.images.image_formats import STORED_IMAGE_KEY
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.pixels import compute_byte_values


class PixelTransform:
    """CLIP's standard preprocessing (resize, centre crop, normalise), optionally after padding to a square."""

    def __init__(self, processor: CLIPImageProcessorPil, *, pad_to_square: bool) -> None:
        self.processor = processor
        self.padding = compute_mean_colour(processor) if pad_to_square else None
        self.colours = compute_byte_values(processor)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Return an RGB image of any size as bytes (3, height, width); `colours` maps the bytes to values."""
        # the processor's own steps, without its checks and copies of arguments, which take as long as the arithmetic
        own, image = self.processor, centre_on_square(image, self.padding)
        if own.do_resize and own.size.shortest_edge:
            scaled = [int(own.size.shortest_edge * side / min(image.size)) for side in image.size]
            image = image.resize(scaled, own.resample)
        elif own.do_resize:
            image = image.resize((own.size.width, own.size.height), own.resample)
        pixels = np.asarray(image).transpose(2, 0, 1)
        if own.do_center_crop:
            pixels = own.center_crop(pixels, own.crop_size)
        return torch.from_numpy(np.array(pixels, order="C"))


class ReleasedTransform:
    """CLIP's preprocessing as in the authors' code, which uses torchvision.

    The image is resized in its original colour mode: palette colours by nearest neighbour, other colours weighted by
    transparency. It is then cropped at rounded margins, and only then converted to RGB.
    """

    def __init__(self, processor: Any, margin: float = 1.0) -> None:
        """Set the size to which images are resized: the shorter side is `margin` times the side of the final square."""
        self.side = int((getattr(processor, "crop_size", None) or processor.size)["height"])
        self.shortest = round(self.side * margin)
        self.colours = compute_byte_values(processor)

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """Return an image as bytes (3, height, width); `colours` maps the bytes to values."""
        return self.crop(image.info.get(STORED_IMAGE_KEY, image))

    def crop(self, image: Image.Image) -> torch.Tensor:
        """Resize the image in its original colour mode so that its shorter side is `shortest`; return its centre."""
        shortest = min(image.size)
        resized = image.resize([int(self.shortest * side / shortest) for side in image.size], Image.Resampling.BICUBIC)
        left, top = (round((side - self.side) / 2) for side in resized.size)
        cropped = resized.crop((left, top, left + self.side, top + self.side)).convert("RGB")
        return torch.from_numpy(np.array(np.asarray(cropped).transpose(2, 0, 1), order="C"))


class PaddedTransform:
    """HPSv2's preprocessing: the longer side is resized to `side` pixels, and the rest of the square is black.

    Like the upstream code, it resizes floats instead of bytes, so a resized value may be below 0 or above 1.
    """

    def __init__(self, processor: Any) -> None:
        self.side = int((processor.crop_size or processor.size)["height"])
        self.mean, self.deviation = (
            torch.tensor(colours)[:, None, None] for colours in (processor.image_mean, processor.image_std)
        )

    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
        scale = self.side / max(image.size)
        height, width = (max(1, round(length * scale)) for length in pixels.shape[2:])
        if scale != 1:
            pixels = interpolate(pixels, (height, width), mode="bicubic", antialias=True)
        left, top = (self.side - width) // 2, (self.side - height) // 2
        square = pad(pixels[0], (left, self.side - width - left, top, self.side - height - top))
        return (square - self.mean) / self.deviation


def compute_mean_colour(processor: Any) -> tuple[int, ...]:
    """Return the mean that an image processor subtracts, as byte values rounded down, as in the released code."""
    return tuple(int(mean * 255) for mean in processor.image_mean)


def centre_on_square(image: Image.Image, colour: tuple[int, ...] | None) -> Image.Image:
    """Return the image centred on a square of this colour, as wide as its longer side; None leaves it unchanged."""
    width, height = image.size
    if colour is None or width == height:
        return image
    side = max(width, height)
    square = Image.new("RGB", (side, side), colour)
    square.paste(image, ((side - width) // 2, (side - height) // 2))
    return square


def load_pixel_transform(folder: Path, *, pad_to_square: bool) -> PixelTransform:
    """Return the preprocessing described by a preprocessor_config.json; raise ModelError if it does not load."""
    with explain_load_errors(folder, "preprocessor_config.json"):
        return PixelTransform(CLIPImageProcessorPil.from_pretrained(folder), pad_to_square=pad_to_square)


def make_clip_processor(side: int, mean: Any = None, deviation: Any = None) -> CLIPImageProcessorPil:
    """Return CLIP's processor for squares of `side` pixels; the colour mean and deviation default to CLIP's."""
    colours = {"image_mean": mean, "image_std": deviation}
    crop = {"height": side, "width": side}
    given = {name: value for name, value in colours.items() if value is not None}
    return CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size=crop, **given)


def load_image_processor(folder: Path) -> Any:
    """Load a checkpoint's image processor without running code from the checkpoint."""
    with explain_load_errors(folder, "preprocessor_config.json"):
        return AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)


def load_tokenizer(folder: Path) -> Any:
    """Load a checkpoint's tokenizer without running code from the checkpoint."""
    with explain_load_errors(folder, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    # it would warn about the first text beyond the model's context; we cut such texts and report `truncated`
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def load_chat_tokenizer(model: ResolvedModel) -> Any:
    """Load the model's tokenizer with its chat template, which may be in a separate file.

    Raises ModelError if a chat_template.json cannot be read.
    """
    tokenizer = load_tokenizer(model.folder("tokenizer"))
    for part in ("tokenizer", "checkpoint"):
        if tokenizer.chat_template is not None:
            break
        plain, in_json = (model.folder(part) / f"chat_template.{suffix}" for suffix in ("jinja", "json"))
        if plain.is_file():
            tokenizer.chat_template = plain.read_text()
        elif in_json.is_file():
            try:
                tokenizer.chat_template = str(json.loads(in_json.read_text())["chat_template"])
            except (ValueError, KeyError, TypeError) as error:
                raise ModelError(
                    f"{in_json}: not a chat template ({error!r}); download the checkpoint again"
                ) from error
    return tokenizer


@contextmanager
def explain_load_errors(folder: Path, what: str) -> Iterator[None]:
    """Convert any error in the context to a ModelError; `what` names the part that does not load from the folder."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"{folder}: the {what} does not load ({type(error).__name__}: {reason}); download the checkpoint again"
        ) from error


def load_pretrained(architecture: Any, model: ResolvedModel[Any], *, unused: str | None = None, **options: Any) -> Any:
    """Load a network on the model's device from safetensors, without running code from the checkpoint.

    Args:
        architecture: The class, its name in transformers, or `module:class`.
        model: The checkpoint.
        unused: Prefix of weights that may be missing.
        options: Arguments of `from_pretrained`. `dtype` defaults to the model's; `config` and `state_dict` replace the
            checkpoint's files.

    Raises ModelError if other weights are missing or the files are damaged.
    """
    from transformers.utils.logging import disable_progress_bar

    if isinstance(architecture, str):
        architecture = resolve_name(architecture if ":" in architecture else f"transformers:{architecture}")
    checkpoint, device = model.folder("checkpoint"), find_device(model)
    disable_progress_bar()  # a sweep in this process shows its own
    with explain_load_errors(checkpoint, "weights"):
        network, report = architecture.from_pretrained(
            None if "state_dict" in options else checkpoint,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **{"dtype": getattr(torch, model.dtype), **options},
        )
    missing = [name for name in report["missing_keys"] if unused is None or not name.startswith(unused)]
    if missing:
        raise ModelError(
            f"{checkpoint}: the weights do not fit its config.json: {min(missing)} is missing; download it again"
        )
    return network.to(device).eval()


def find_device(model: ResolvedModel) -> str:
    """Return the name of the torch device for the model: `cuda` or `cpu`.

    Raises ModelError if the model needs a GPU and torch finds none.
    """
    if model.on_gpu and not torch.cuda.is_available():
        raise ModelError(
            "the pool has num_gpus > 0 but torch sees no CUDA device; use a CPU pool, or install torch with CUDA"
        )
    return "cuda" if model.on_gpu else "cpu"

"""The network of LPIPS, which compares edited images with their sources."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn.functional import conv2d, max_pool2d

from plumbline.operators.base.errors import RowError, UnprocessableRowError
from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule
from plumbline.operators.models.checkpoints.parts import read_fields
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.processing import explain_load_errors, find_device
from plumbline.plugins.edits.lpips_trunks import TRUNKS, Trunk

MAX_COMPARED_SIDE = 1024
"""Longest side, in pixels, at which images are compared, as in the comparisons of pixels."""
MIN_COMPARED_SIDE = 32
"""Shortest side, in pixels, for which both networks have an output in every slice."""
MAX_PIXELS_AT_ONCE = 4 * MAX_COMPARED_SIDE**2
"""Maximum number of pixels, of the sources alone, that are compared in one call of the network."""
COLOUR_SHIFTS, COLOUR_SCALES = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
"""Numbers by which the release normalises colours between -1 and 1 (lpips/lpips.py, ScalingLayer)."""
NORM_EPSILON = 1e-10


class Lpips:
    """LPIPS, version 0.1. For edits, it answers `similarity` calls with the measure `distance`.

    The edited image is resized to the size of its source. The distance is computed as in the release
    (richzhang/PerceptualSimilarity, lpips/lpips.py). In each slice, the features at each position are scaled to unit
    length. The squared differences between the two images are weighted by channel and averaged over positions. The
    distance is the sum over the slices.
    """

    side_by_side = False
    tokenizer = None

    def __init__(self, weights: Mapping[str, torch.Tensor], trunk: Trunk, image_batch: int) -> None:
        """Create the network.

        The keys of `weights` are the names in the release. All weights must be on one device and in one precision.
        """
        self.trunk = trunk
        self.image_batch = image_batch
        self.convolutions = [
            [tuple(weights[f"net.slice{number}.{one.layer}.{name}"] for name in ("weight", "bias")) for one in part]
            for number, part in enumerate(trunk.slices, 1)
        ]
        self.channel_weights = [weights[f"lin{number}.model.1.weight"].float() for number in range(len(trunk.slices))]
        first = self.convolutions[0][0][0]
        self.device, self.dtype = first.device, first.dtype

    @classmethod
    def load(cls, model: ResolvedModel[Any]) -> Self:
        """Load the weights; raise ModelError if a tensor is missing or a file is damaged."""
        folder, trunk = model.folder("checkpoint"), TRUNKS[read_fields(model.parts["checkpoint"])["net"]]
        with explain_load_errors(folder, "weights"):
            tensors: dict[str, torch.Tensor] = {}
            for file in sorted(folder.glob("*.safetensors")):
                tensors |= load_file(file)
            device, dtype = find_device(model), getattr(torch, model.dtype)
            weights = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
            return cls(weights, trunk, model.config.image_batch)

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> torch.Tensor:
        """Return the colours of an image as bytes (3, height, width), at most 1024 pixels wide and high.

        `rule` is ignored.
        """
        scale = min(MAX_COMPARED_SIDE / max(image.size), 1)
        width, height = (max(round(side * scale), 1) for side in image.size)
        return _to_tensor(image if scale == 1 else image.resize((width, height)))

    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the pixels unchanged, because an image is compared at the size of its source."""
        return pixels

    def compare(
        self, features: Sequence[torch.Tensor], pairs: Sequence[Pair], measure: Measure = "distance"
    ) -> list[ComparisonResult]:
        """Return the distance of each image from its source.

        Raises UnprocessableRowError if a source is smaller than MIN_COMPARED_SIDE.
        """
        both = [(features[pair.image], features[pair.source]) for pair in pairs if pair.source is not None]
        for _, source in both:
            height, width = source.shape[1:]
            if min(height, width) < MIN_COMPARED_SIDE:
                found = f"the source of the edit: {width}x{height} pixels, but LPIPS needs at least {MIN_COMPARED_SIDE}"
                raise UnprocessableRowError(RowError("image_too_small", f"{found} per side; use a larger one"))
        order = sorted(range(len(both)), key=lambda index: both[index][1].shape)
        distances: dict[int, float] = {}
        for (_, height, width), group in groupby(order, key=lambda index: both[index][1].shape):
            same_size, at_once = list(group), max(1, min(self.image_batch, MAX_PIXELS_AT_ONCE // (height * width)))
            for first in range(0, len(same_size), at_once):
                indices = same_size[first : first + at_once]
                measured = self._measure([both[index] for index in indices])
                distances.update(zip(indices, measured, strict=True))
        return [ComparisonResult(distances[index], truncated=False) for index in range(len(both))]

    def _measure(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
        """Return the distance for each pair (image, source); all sources have the same size."""
        images = torch.stack([_resize(image, source) for image, source in pairs])
        sources = torch.stack([source for _, source in pairs])
        with torch.inference_mode():
            colours = torch.cat([images, sources]).to(self.device).float() / 127.5 - 1
            shifts, scales = (colours.new_tensor(values)[:, None, None] for values in (COLOUR_SHIFTS, COLOUR_SCALES))
            states = ((colours - shifts) / scales).to(self.dtype)
            total = colours.new_zeros(len(pairs))
            for number, layers in enumerate(self.trunk.slices, 1):
                if number in self.trunk.pooled_slices:
                    states = max_pool2d(states, *self.trunk.pooling)
                for layer, (weight, bias) in zip(layers, self.convolutions[number - 1], strict=True):
                    states = conv2d(states, weight, bias, stride=layer.stride, padding=layer.padding).relu()
                total += _compare_features(states.float(), self.channel_weights[number - 1])
        distances: list[float] = total.tolist()
        return distances


def _compare_features(states: torch.Tensor, channel_weights: torch.Tensor) -> torch.Tensor:
    """Return one slice's contribution to the distances (n,).

    The features are (2 n, channels, height, width): first the images, then their sources.
    """
    unit = states / (states.square().sum(1, keepdim=True).sqrt() + NORM_EPSILON)
    images, sources = unit.chunk(2)
    return conv2d((images - sources).square(), channel_weights).mean((1, 2, 3))


def _resize(image: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if image.shape == source.shape:
        return image
    pixels = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    return _to_tensor(pixels.resize((source.shape[2], source.shape[1])))


def _to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(np.asarray(image).transpose(2, 0, 1), order="C"))

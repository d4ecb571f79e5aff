"""InceptionV3 with the weights of FID's original TensorFlow network, and its deviations from torchvision's network.

The layers and their order are those of mseitzer/pytorch-fid (src/pytorch_fid/inception.py), which names weights as
torchvision does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn.functional import avg_pool2d, conv2d, interpolate, max_pool2d

from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.similarity import normalize_rows
from plumbline.operators.models.processing import explain_load_errors, find_device

SIDE = 299
"""Width and height of the network's input in pixels."""
BATCH_NORM_EPSILON = 0.001
States = torch.Tensor
Branch = tuple[str, ...]
"""Convolutions of a branch, one after another; names joined by `+` are applied side by side."""


class Inception:
    """InceptionV3 up to its last pooling layer. For edits, `compare` returns the cosine similarity of the features."""

    side_by_side = False
    tokenizer = None

    def __init__(self, weights: Mapping[str, torch.Tensor], dtype: torch.dtype, device: str, resizing: str) -> None:
        """Fold each convolution's batch normalisation into its weights."""
        names = [name.removesuffix(".conv.weight") for name in weights if name.endswith(".conv.weight")]
        self.kernels = {name: _fold(weights, name, dtype, device) for name in names}
        self.dtype, self.device, self.resizing = dtype, device, resizing
        with torch.inference_mode():  # a missing layer is found here, and not at the first image
            self._run(torch.zeros(1, 3, SIDE, SIDE, dtype=dtype, device=device))

    @classmethod
    def load(cls, model: ResolvedModel[Any]) -> Self:
        """Load the weights; raise ModelError if a tensor is missing or a file is damaged."""
        folder = model.folder("checkpoint")
        with explain_load_errors(folder, "weights"):
            weights: dict[str, torch.Tensor] = {}
            for file in sorted(folder.glob("*.safetensors")):
                weights |= load_file(file)
            return cls(weights, getattr(torch, model.dtype), find_device(model), model.config.resizing)

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> torch.Tensor:
        """Return an RGB image (3, 299, 299), stretched to a square, with colours from -1 to 1; `rule` is ignored."""
        pixels = np.asarray(image)
        if self.resizing == "clean":
            channels = [Image.fromarray(pixels[:, :, channel].astype(np.float32)) for channel in range(3)]
            resized = [np.asarray(one.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for one in channels]
            return (torch.from_numpy(np.stack(resized)).clamp(0, 255) - 128) / 128
        colours = torch.from_numpy(np.array(pixels.transpose(2, 0, 1), order="C")) / 255
        return 2 * interpolate(colours[None], size=(SIDE, SIDE), mode="bilinear", align_corners=False)[0] - 1

    def encode(self, pixels: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the features (2048,) of each image, averaged over positions, as float32 on the CPU."""
        with torch.inference_mode():
            return list(self._run(torch.stack(list(pixels)).to(self.device, self.dtype)).float().cpu())

    def compare(
        self, features: Sequence[torch.Tensor], pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[ComparisonResult]:
        """Return the cosine similarity between the features of each image and those of its source."""
        unit = normalize_rows(torch.stack(list(features)))
        both = [(pair.image, pair.source) for pair in pairs if pair.source is not None]
        return [ComparisonResult(float(unit[image] @ unit[source]), truncated=False) for image, source in both]

    def _run(self, states: States) -> States:
        """Return the features (n, 2048) of images (n, 3, 299, 299)."""
        states = self._convolve("Conv2d_1a_3x3", states, stride=2)
        states = self._convolve("Conv2d_2a_3x3", states, padded=False)
        states = _halve_resolution(self._convolve("Conv2d_2b_3x3", states))
        states = self._convolve("Conv2d_3b_1x1", states)
        states = _halve_resolution(self._convolve("Conv2d_4a_3x3", states, padded=False))
        for name in ("5b", "5c", "5d"):
            branches = (("branch1x1",), _name_steps("branch5x5", 2), _name_steps("branch3x3dbl", 3))
            states = self._concatenate_branches(f"Mixed_{name}", states, branches)
        states = self._run_reduction_block("Mixed_6a", states, (("branch3x3",), _name_steps("branch3x3dbl", 3)))
        for name in ("6b", "6c", "6d", "6e"):
            branches = (("branch1x1",), _name_steps("branch7x7", 3), _name_steps("branch7x7dbl", 5))
            states = self._concatenate_branches(f"Mixed_{name}", states, branches)
        states = self._run_reduction_block(
            "Mixed_7a", states, (_name_steps("branch3x3", 2), _name_steps("branch7x7x3", 4))
        )
        wide = (
            ("branch1x1",),
            ("branch3x3_1", "branch3x3_2a+branch3x3_2b"),
            (*_name_steps("branch3x3dbl", 2), "branch3x3dbl_3a+branch3x3dbl_3b"),
        )
        states = self._concatenate_branches("Mixed_7b", states, wide)
        # the original network takes maxima in its last block, where the paper and torchvision take means
        states = self._concatenate_branches(
            "Mixed_7c", states, wide, lambda given: max_pool2d(given, 3, stride=1, padding=1)
        )
        return states.mean((2, 3))

    def _convolve(self, name: str, states: States, *, stride: int = 1, padded: bool = True) -> States:
        """Apply a convolution and a ReLU; `padded` keeps the size of the states if the stride is 1."""
        weight, bias = self.kernels[name]
        padding = [side // 2 if padded and stride == 1 else 0 for side in weight.shape[2:]]
        return conv2d(states, weight, bias, stride=stride, padding=padding).relu()

    def _concatenate_branches(
        self,
        block: str,
        states: States,
        branches: Sequence[Branch],
        pool: Callable[[States], States] = lambda states: avg_pool2d(
            states, 3, stride=1, padding=1, count_include_pad=False
        ),
    ) -> States:
        """Return the outputs of all branches and of the pooled branch, concatenated by channel."""
        outputs = [self._run_branch(block, states, branch) for branch in branches]
        return torch.cat([*outputs, self._convolve(f"{block}.branch_pool", pool(states))], dim=1)

    def _run_reduction_block(self, block: str, states: States, branches: Sequence[Branch]) -> States:
        """Return the outputs of all branches and the max-pooled states, at half the size, concatenated by channel."""
        outputs = [
            self._convolve(f"{block}.{branch[-1]}", self._run_branch(block, states, branch[:-1]), stride=2)
            for branch in branches
        ]
        return torch.cat([*outputs, _halve_resolution(states)], dim=1)

    def _run_branch(self, block: str, states: States, branch: Branch) -> States:
        for step in branch:
            states = torch.cat([self._convolve(f"{block}.{name}", states) for name in step.split("+")], dim=1)
        return states


def _fold(
    weights: Mapping[str, torch.Tensor], name: str, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a convolution's weights (out, in, height, width) and biases (out,), with its normalisation folded in."""
    mean, variance, factor, bias = (
        weights[f"{name}.bn.{part}"].double() for part in ("running_mean", "running_var", "weight", "bias")
    )
    scale = factor / (variance + BATCH_NORM_EPSILON).sqrt()
    kernel = weights[f"{name}.conv.weight"].double() * scale[:, None, None, None]
    return kernel.to(device, dtype), (bias - mean * scale).to(device, dtype)


def _name_steps(branch: str, count: int) -> Branch:
    return tuple(f"{branch}_{step}" for step in range(1, count + 1))


def _halve_resolution(states: States) -> States:
    return max_pool2d(states, 3, stride=2)

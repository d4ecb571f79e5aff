"""Reference features of FID's InceptionV3, written out block by block as in pytorch-fid (src/pytorch_fid/inception.py).

With random weights of the real size, the plugin's features also equal those of pytorch-fid itself (README.md).
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional

from plumbline.operators.models.calls import Call, Measure, Pair
from tests.operators.models.alike import IMAGE_BEFORE, IMAGES, Answer
from tests.operators.models.families.library import Reference


class Convolutions:
    """Convolutions with batch normalisation and ReLU; a call names a convolution as torchvision does."""

    def __init__(self, weights: Mapping[str, torch.Tensor], block: str = "") -> None:
        self.weights, self.block = weights, block

    def __call__(self, name: str, states: torch.Tensor, stride: int = 1, padding: Any = 0) -> torch.Tensor:
        name = f"{self.block}{name}"
        mean, variance, weight, bias = (
            self.weights[f"{name}.bn.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        states = functional.conv2d(states, self.weights[f"{name}.conv.weight"], stride=stride, padding=padding)
        return functional.relu(functional.batch_norm(states, mean, variance, weight, bias, eps=0.001))


def average(states: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool2d(states, kernel_size=3, stride=1, padding=1, count_include_pad=False)


def run_block_a(layer: Convolutions, x: torch.Tensor) -> torch.Tensor:
    five = layer("branch5x5_2", layer("branch5x5_1", x), padding=2)
    double = layer("branch3x3dbl_3", layer("branch3x3dbl_2", layer("branch3x3dbl_1", x), padding=1), padding=1)
    return torch.cat([layer("branch1x1", x), five, double, layer("branch_pool", average(x))], 1)


def run_block_c(layer: Convolutions, x: torch.Tensor) -> torch.Tensor:
    seven = layer("branch7x7_2", layer("branch7x7_1", x), padding=(0, 3))
    seven = layer("branch7x7_3", seven, padding=(3, 0))
    double = layer("branch7x7dbl_2", layer("branch7x7dbl_1", x), padding=(3, 0))
    double = layer("branch7x7dbl_4", layer("branch7x7dbl_3", double, padding=(0, 3)), padding=(3, 0))
    double = layer("branch7x7dbl_5", double, padding=(0, 3))
    return torch.cat([layer("branch1x1", x), seven, double, layer("branch_pool", average(x))], 1)


def run_block_e(layer: Convolutions, x: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
    three = layer("branch3x3_1", x)
    three = torch.cat([layer("branch3x3_2a", three, padding=(0, 1)), layer("branch3x3_2b", three, padding=(1, 0))], 1)
    double = layer("branch3x3dbl_2", layer("branch3x3dbl_1", x), padding=1)
    sides = [layer("branch3x3dbl_3a", double, padding=(0, 1)), layer("branch3x3dbl_3b", double, padding=(1, 0))]
    return torch.cat([layer("branch1x1", x), three, torch.cat(sides, 1), layer("branch_pool", pooled)], 1)


def compute_features(weights: Mapping[str, torch.Tensor], image: Image.Image) -> torch.Tensor:
    """Return the features of an image: its pixels, scaled and passed through all layers up to the last pooling."""
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255
    x = 2 * functional.interpolate(x, size=(299, 299), mode="bilinear", align_corners=False) - 1
    layer = Convolutions(weights)
    x = layer("Conv2d_2b_3x3", layer("Conv2d_2a_3x3", layer("Conv2d_1a_3x3", x, stride=2)), padding=1)
    x = layer("Conv2d_4a_3x3", layer("Conv2d_3b_1x1", functional.max_pool2d(x, 3, 2)))
    x = functional.max_pool2d(x, 3, 2)
    for name in ("5b", "5c", "5d"):
        x = run_block_a(Convolutions(weights, f"Mixed_{name}."), x)
    layer = Convolutions(weights, "Mixed_6a.")
    double = layer("branch3x3dbl_2", layer("branch3x3dbl_1", x), padding=1)
    x = torch.cat([layer("branch3x3", x, 2), layer("branch3x3dbl_3", double, 2), functional.max_pool2d(x, 3, 2)], 1)
    for name in ("6b", "6c", "6d", "6e"):
        x = run_block_c(Convolutions(weights, f"Mixed_{name}."), x)
    layer = Convolutions(weights, "Mixed_7a.")
    three = layer("branch3x3_2", layer("branch3x3_1", x), 2)
    seven = layer("branch7x7x3_2", layer("branch7x7x3_1", x), padding=(0, 3))
    seven = layer("branch7x7x3_4", layer("branch7x7x3_3", seven, padding=(3, 0)), 2)
    x = torch.cat([three, seven, functional.max_pool2d(x, 3, 2)], 1)
    x = run_block_e(Convolutions(weights, "Mixed_7b."), x, average(x))
    x = run_block_e(Convolutions(weights, "Mixed_7c."), x, functional.max_pool2d(x, 3, stride=1, padding=1))
    return functional.adaptive_avg_pool2d(x, 1)[0, :, 0, 0]


@cache
def load_weights(folder: Path) -> Mapping[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def compare_inception(folder: Path, pair: Pair, measure: Measure) -> Answer:
    both = [compute_features(load_weights(folder), image) for image in (IMAGES[pair.image], IMAGE_BEFORE)]
    return Answer((), (float(functional.cosine_similarity(both[0], both[1], dim=0)),))


REFERENCES: Mapping[tuple[str, Call], Reference] = {("inception", "similarity"): compare_inception}
"""Reference functions by kind of checkpoint and call."""

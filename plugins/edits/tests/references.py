"""Reference LPIPS distances, computed with torch.nn layers as in the release."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from plugins.edits.tests.tiny_lpips import ALEXNET_KERNELS
from plumbline.operators.models.calls import Call, Measure, Pair
from tests.operators.models.alike import IMAGE_BEFORE, IMAGES, Answer
from tests.operators.models.families.library import Reference

VGG_INDICES = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))


def build_slices(weights: Mapping[str, torch.Tensor], net: str) -> list[nn.Sequential]:
    """Build the slices of torchvision's AlexNet or VGG16 that the release compares, with the given weights."""
    slices = []
    for number in range(1, 6):
        layers: list[nn.Module] = []
        if net == "alex":
            layers += [nn.MaxPool2d(kernel_size=3, stride=2)] if number in (2, 3) else []
            indices, stride, padding = ((0, 3, 6, 8, 10)[number - 1],), (4, 1, 1, 1, 1), (2, 2, 1, 1, 1)
        else:
            layers += [nn.MaxPool2d(kernel_size=2, stride=2)] if number > 1 else []
            indices, stride, padding = VGG_INDICES[number - 1], (1,) * 5, (1,) * 5
        for index in indices:
            weight, bias = (weights[f"net.slice{number}.{index}.{name}"] for name in ("weight", "bias"))
            kernel = ALEXNET_KERNELS[number - 1] if net == "alex" else 3
            layer = nn.Conv2d(
                weight.shape[1], weight.shape[0], kernel, stride=stride[number - 1], padding=padding[number - 1]
            )
            layer.load_state_dict({"weight": weight, "bias": bias})
            layers += [layer, nn.ReLU()]
        slices.append(nn.Sequential(*layers))
    return slices


def measure_lpips(weights: Mapping[str, torch.Tensor], net: str, image: Image.Image, source: Image.Image) -> float:
    """Return the LPIPS distance between two images of the same size, computed as in the release."""
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    colours = [torch.from_numpy(np.array(one)).float() / 255 * 2 - 1 for one in (image, source)]
    states = [((one - shift) / scale).permute(2, 0, 1)[None] for one in colours]
    total = 0.0
    for number, layers in enumerate(build_slices(weights, net)):
        states = [layers(one) for one in states]
        one, other = (features / (features.pow(2).sum(1, keepdim=True).sqrt() + 1e-10) for features in states)
        mixed = nn.functional.conv2d((one - other) ** 2, weights[f"lin{number}.model.1.weight"])
        total += float(mixed.mean().detach())
    return total


def score_lpips(folder: Path, pair: Pair, measure: Measure) -> Answer:
    weights, net = load_file(folder / "model.safetensors"), folder.name.rpartition("_")[2]
    image = IMAGES[pair.image].resize(IMAGE_BEFORE.size)
    return Answer((), (measure_lpips(weights, net, image, IMAGE_BEFORE),))


REFERENCES: Mapping[tuple[str, Call], Reference] = {
    ("lpips_alex", "similarity"): score_lpips,
    ("lpips_vgg", "similarity"): score_lpips,
}
"""Reference functions by kind of checkpoint and call."""

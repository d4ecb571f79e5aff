"""Tiny LPIPS networks with random weights, in the layout of the release."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from plumbline.plugins.edits.lpips_trunks import TRUNKS
from tests.operators import tiny

ALEXNET_KERNELS = (11, 5, 3, 3, 3)
"""Width of the convolution in each slice of AlexNet; all of VGG16 have a width of 3."""


def make_weights(net: str, seed: int = 0, width: int = 6) -> dict[str, torch.Tensor]:
    """Return random weights by their names in the release, with `width` channels in each layer."""
    generator = torch.Generator().manual_seed(seed)
    weights, channels = {}, 3
    for number, layers in enumerate(TRUNKS[net].slices, 1):
        for convolution in layers:
            kernel = ALEXNET_KERNELS[number - 1] if net == "alex" else 3
            shape = (width, channels, kernel, kernel)
            weights[f"net.slice{number}.{convolution.layer}.weight"] = torch.randn(shape, generator=generator) / kernel
            weights[f"net.slice{number}.{convolution.layer}.bias"] = torch.randn(width, generator=generator) / 4
            channels = width
        weights[f"lin{number - 1}.model.1.weight"] = torch.rand((1, width, 1, 1), generator=generator)
    return weights


def save_lpips(folder: Path, net: str = "alex") -> Path:
    """Save a checkpoint with random weights, and return its folder."""
    folder.mkdir(parents=True)
    save_file(make_weights(net), folder / "model.safetensors", metadata={"format": "pt"})
    tiny.write_json(folder / "config.json", {"model_type": "lpips", "architectures": ["LPIPS"], "net": net})
    return folder

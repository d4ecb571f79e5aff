"""A tiny InceptionV3 with random weights, in the layout of pytorch-fid's release."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.operators import tiny

WIDTH = 3
"""Number of channels of every convolution."""
KERNELS = {"1x1": (1, 1), "3x3": (3, 3), "5x5": (5, 5)}
STEM = ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3")
A_BRANCHES = {
    "branch1x1": [(1, 1)],
    "branch5x5": [(1, 1), (5, 5)],
    "branch3x3dbl": [(1, 1), (3, 3), (3, 3)],
    "branch_pool": [(1, 1)],
}
C_BRANCHES = {
    "branch1x1": [(1, 1)],
    "branch7x7": [(1, 1), (1, 7), (7, 1)],
    "branch7x7dbl": [(1, 1), (7, 1), (1, 7), (7, 1), (1, 7)],
    "branch_pool": [(1, 1)],
}


class _WeightCollector:
    """Random weights of convolutions, each followed by batch normalisation."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.weights: dict[str, torch.Tensor] = {}

    def add(self, name: str, channels: int, kernel: tuple[int, int]) -> None:
        scale = (2 / (channels * kernel[0] * kernel[1])) ** 0.5
        self.weights[f"{name}.conv.weight"] = scale * torch.randn((WIDTH, channels, *kernel), generator=self.random)
        ranges = {"weight": (0.8, 1.2), "bias": (-0.02, 0.02), "running_mean": (-0.02, 0.02), "running_var": (0.8, 1.2)}
        for part, (low, high) in ranges.items():
            self.weights[f"{name}.bn.{part}"] = low + (high - low) * torch.rand(WIDTH, generator=self.random)

    def add_branches(self, block: str, channels: int, branches: dict[str, list[tuple[int, int]]]) -> int:
        """Add branches, each a sequence of convolutions; return the total number of output channels."""
        for branch, kernels in branches.items():
            for step, kernel in enumerate(kernels, 1):
                name = f"{branch}_{step}" if len(kernels) > 1 else branch
                self.add(f"{block}.{name}", channels if step == 1 else WIDTH, kernel)
        return WIDTH * len(branches)


def make_weights(seed: int = 2) -> dict[str, torch.Tensor]:
    """Return random weights by their names in the release, without those of the classifier."""
    collector, channels = _WeightCollector(seed), 3
    for name in STEM:
        collector.add(name, channels, KERNELS[name.rpartition("_")[2]])
        channels = WIDTH
    for name in ("5b", "5c", "5d"):
        channels = collector.add_branches(f"Mixed_{name}", channels, A_BRANCHES)
    reducing = {"branch3x3": [(3, 3)], "branch3x3dbl": [(1, 1), (3, 3), (3, 3)]}
    channels += collector.add_branches("Mixed_6a", channels, reducing)
    for name in ("6b", "6c", "6d", "6e"):
        channels = collector.add_branches(f"Mixed_{name}", channels, C_BRANCHES)
    reducing = {"branch3x3": [(1, 1), (3, 3)], "branch7x7x3": [(1, 1), (1, 7), (7, 1), (3, 3)]}
    channels += collector.add_branches("Mixed_7a", channels, reducing)
    for name in ("7b", "7c"):
        block = f"Mixed_{name}"
        for step, given, kernel in (
            ("branch1x1", channels, (1, 1)),
            ("branch3x3_1", channels, (1, 1)),
            ("branch3x3_2a", WIDTH, (1, 3)),
            ("branch3x3_2b", WIDTH, (3, 1)),
            ("branch3x3dbl_1", channels, (1, 1)),
            ("branch3x3dbl_2", WIDTH, (3, 3)),
            ("branch3x3dbl_3a", WIDTH, (1, 3)),
            ("branch3x3dbl_3b", WIDTH, (3, 1)),
            ("branch_pool", channels, (1, 1)),
        ):
            collector.add(f"{block}.{step}", given, kernel)
        channels = 6 * WIDTH
    return collector.weights


def save_inception(folder: Path, seed: int = 2) -> Path:
    """Save a checkpoint with random weights, and return its folder."""
    folder.mkdir(parents=True)
    save_file(make_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    tiny.write_json(folder / "config.json", {"model_type": "fid_inception"})
    return folder

"""The networks whose features LPIPS compares: layers of AlexNet and VGG16."""

from collections.abc import Mapping
from typing import NamedTuple


class Convolution(NamedTuple):
    """A convolution followed by a ReLU; its weights are `net.sliceN.LAYER.weight` and `.bias` in the checkpoint."""

    layer: int
    stride: int
    padding: int


class Trunk(NamedTuple):
    """The convolutions of an image classifier, in the slices whose outputs LPIPS compares."""

    slices: tuple[tuple[Convolution, ...], ...]
    pooling: tuple[int, int]
    """Width and stride of the maximum pooling."""
    pooled_slices: tuple[int, ...]
    """Numbers, counted from 1, of the slices that begin with pooling."""


def _make_vgg_slices(*layers: tuple[int, ...]) -> tuple[tuple[Convolution, ...], ...]:
    return tuple(tuple(Convolution(layer, 1, 1) for layer in part) for part in layers)


TRUNKS: Mapping[str, Trunk] = {
    "alex": Trunk(
        slices=(
            (Convolution(0, 4, 2),),
            (Convolution(3, 1, 2),),
            (Convolution(6, 1, 1),),
            (Convolution(8, 1, 1),),
            (Convolution(10, 1, 1),),
        ),
        pooling=(3, 2),
        pooled_slices=(2, 3),
    ),
    "vgg": Trunk(
        slices=_make_vgg_slices((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28)),
        pooling=(2, 2),
        pooled_slices=(2, 3, 4, 5),
    ),
}
"""AlexNet and VGG16 by their names in the release (richzhang/PerceptualSimilarity, lpips/pretrained_networks.py)."""

"""The image_statistics stage: statistics of an image's pixels, without a model."""

from typing import NamedTuple

import numpy as np
from PIL import Image

from plumbline.operators.base import schemas
from plumbline.operators.images.preparing import Edit
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.stages.images import PixelsStage

MAX_SIDE = 512
"""Side in pixels of scaled-down larger images, so that edges have one scale and all images cost the same."""
EDGE = 0.1
"""Difference of brightness between the two sides of an edge, as a share of the range."""


class PixelStatistics(NamedTuple):
    """Statistics of an image's pixels."""

    edge_density: float
    """Share of pixels on an edge, in [0, 1]: Sobel's gradient of brightness (Duda and Hart 1973) is at least that of a
    step of EDGE. As a measure of clutter: Rosenholtz, Li and Nakano 2007, there with Canny's edges."""
    entropy: float
    """Shannon entropy of the histogram of brightness (256 levels), in bits, 0 to 8 (Shannon 1948)."""
    saturation: float
    """Mean over pixels of HSV's saturation, 1 - min(R, G, B) / max(R, G, B), in [0, 1] (Smith 1978)."""


def measure_pixels(image: Image.Image) -> PixelStatistics:
    """Return the statistics of an RGB image; brightness is Rec. 601's luma."""
    scale = MAX_SIDE / max(image.size)
    if scale < 1:
        width, height = (max(round(side * scale), 1) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BOX)
    luma = image.convert("L")
    padded = np.pad(np.asarray(luma, np.int32), 1, mode="edge")  # the border is repeated outside the image
    down = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    across = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    horizontal, vertical = down[:, 2:] - down[:, :-2], across[2:] - across[:-2]
    return PixelStatistics(
        edge_density=float(np.mean(horizontal**2 + vertical**2 >= (4 * 255 * EDGE) ** 2)),
        entropy=abs(luma.entropy()),
        saturation=float(np.asarray(image.convert("HSV"))[..., 1].mean()) / 255,
    )


class ImageStatisticsStage(PixelsStage):
    """Images to statistics (schema IMAGE_STATISTICS); each image is decoded once for all metrics of this kind."""

    name = "image_statistics"
    version = 1
    schema = schemas.IMAGE_STATISTICS
    column = "statistics"
    needs = ImageStatisticConfig

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> PixelStatistics:
        return measure_pixels(image)

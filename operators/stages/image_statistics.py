"""The image_statistics stage, which computes statistics of an image's pixels without a model."""

from typing import NamedTuple

import numpy as np
from PIL import Image

from plumbline.operators.base import schemas
from plumbline.operators.images.preparing import Edit
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.stages.images import PixelsStage

MAX_SIDE_PIXELS = 512
"""Maximum side in pixels. Larger images are scaled down, so that edges have the same scale and all images take about
the same time.
"""
MIN_EDGE_STEP = 0.1
"""Minimum difference in brightness across an edge, as a fraction of the full range."""


class PixelStatistics(NamedTuple):
    edge_density: float
    """Fraction of pixels on an edge, in [0, 1]. A pixel is on an edge if Sobel's gradient of the brightness (Duda and
    Hart 1973) is at least that of a step of MIN_EDGE_STEP. Used as a measure of clutter by Rosenholtz, Li and Nakano
    2007, with Canny's edges.
    """
    entropy: float
    """Shannon entropy (Shannon 1948) of the brightness histogram with 256 levels, from 0 to 8 bits."""
    saturation: float
    """Mean HSV saturation of the pixels, 1 - min(R, G, B) / max(R, G, B), in [0, 1] (Smith 1978)."""


def measure_pixels(image: Image.Image) -> PixelStatistics:
    """Return the statistics of an RGB image, using Rec. 601 luma as brightness."""
    scale = MAX_SIDE_PIXELS / max(image.size)
    if scale < 1:
        width, height = (max(round(side * scale), 1) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BOX)
    luma = image.convert("L")
    padded = np.pad(np.asarray(luma, np.int32), 1, mode="edge")  # the border is repeated outside the image
    down = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    across = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    horizontal, vertical = down[:, 2:] - down[:, :-2], across[2:] - across[:-2]
    return PixelStatistics(
        edge_density=float(np.mean(horizontal**2 + vertical**2 >= (4 * 255 * MIN_EDGE_STEP) ** 2)),
        entropy=abs(luma.entropy()),
        saturation=float(np.asarray(image.convert("HSV"))[..., 1].mean()) / 255,
    )


class ImageStatisticsStage(PixelsStage):
    """Stage that computes image statistics (schema IMAGE_STATISTICS).

    Each image is decoded once for all metrics of this kind.
    """

    name = "image_statistics"
    version = 1
    schema = schemas.IMAGE_STATISTICS
    column = "statistics"
    metric_type = ImageStatisticConfig

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> PixelStatistics:
        return measure_pixels(image)

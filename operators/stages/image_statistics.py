"""The image_statistics stage: what every image is like, measured of its pixels without a model."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.images.preparing import Edit, PreparedImages
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.stages.images import AnyPrompt, ImagesStage

LONGEST_SIDE = 512
"""Pixels to which a larger image is made smaller first, so that edges are compared at one scale and cost the same."""
EDGE = 0.1
"""Brightness, of the whole range, by which the two sides of an edge differ."""


class PixelStatistics(NamedTuple):
    """What an image is like, whatever it shows."""

    edge_density: float
    """Share of pixels on an edge, in [0, 1]: where Sobel's gradient of brightness (Duda and Hart 1973) is that of a
    step of EDGE at least. As a measure of clutter: Rosenholtz, Li and Nakano 2007, there with Canny's edges."""
    entropy: float
    """Shannon entropy of the histogram of brightness (256 levels), in bits, 0 to 8 (Shannon 1948)."""
    saturation: float
    """Mean over pixels of HSV's saturation, 1 - min(R, G, B) / max(R, G, B), in [0, 1] (Smith 1978)."""


def pixel_statistics(image: Image.Image) -> PixelStatistics:
    """Statistics of an RGB image; brightness is Rec. 601's luma."""
    scale = LONGEST_SIDE / max(image.size)
    if scale < 1:
        width, height = (max(round(side * scale), 1) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BOX)
    luma = image.convert("L")
    saturation = np.asarray(image.convert("HSV"))[..., 1]
    return PixelStatistics(
        edge_density=_edge_density(np.asarray(luma, np.int32)),
        entropy=abs(luma.entropy()),
        saturation=float(saturation.mean()) / 255,
    )


def _edge_density(luma: NDArray[np.int32]) -> float:
    """Of brightness (height, width), 0 to 255; what is outside the image is as its border."""
    padded = np.pad(luma, 1, mode="edge")
    down = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    across = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    horizontal, vertical = down[:, 2:] - down[:, :-2], across[2:] - across[:-2]
    return float(np.mean(horizontal**2 + vertical**2 >= (4 * 255 * EDGE) ** 2))


class ImageStatisticsStage(ImagesStage):
    """Images to their statistics (schema IMAGE_STATISTICS), decoded once for all metrics of this kind."""

    name = "image_statistics"
    version = 1
    schema = schemas.IMAGE_STATISTICS
    needs = ImageStatisticConfig

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> PixelStatistics:
        return pixel_statistics(image)

    def measure(self, images: PreparedImages, asked: Mapping[str, AnyPrompt]) -> Mapping[str, pa.Table]:
        measured = iter(images.pixels)
        records = []
        for row, digest, error, count in zip(images.rows, images.digests, images.errors, images.counts, strict=True):
            statistics = [next(measured)._asdict() for _ in range(count)]
            columns = {"statistics": statistics} if error is None else {"error": rows.error_value(error)}
            records.append(row.row(**columns, image_digest=digest, basis=AnyPrompt().basis(row.prompt_id)))
        return dict.fromkeys(asked, rows.table(records, self.schema))

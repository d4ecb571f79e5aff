"""The source_comparisons stage: how like their sources edited images are, by their pixels and without a model."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from plumbline.operators import rows, schemas
from plumbline.operators.errors import RowError
from plumbline.operators.images import PreparedImages
from plumbline.operators.metrics.source_comparison import SourceComparisonConfig
from plumbline.operators.stages.images import AnyPrompt, ImagesStage, basis_beside
from plumbline.operators.stages.stage import StageOptions

LONGEST_SIDE = 1024
"""Pixels to which a larger source is made smaller first, and the edited image with it, so that all cost the same."""
RADIUS, SIGMA = 5, 1.5
"""Pixels of SSIM's window, Gaussian and 11 x 11."""
SMALLEST_SIDE = 2 * RADIUS + 1
C1, C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


class SourceComparison(NamedTuple):
    """How like its source an edited image is."""

    l1: float
    """Mean absolute difference of RGB values, in [0, 1]; the edited image is made as large as the source first, as
    MagicBrush does (OSU-NLP-Group/MagicBrush, evaluation/image_eval.py, `eval_distance`)."""
    ssim: float
    """Mean structural similarity of brightness (Rec. 601's luma), in [-1, 1] (Wang et al. 2004, Image Quality
    Assessment, eq. 13, with its window and constants)."""


def compare_with_source(image: Image.Image, source: Image.Image) -> SourceComparison | RowError:
    """The comparison of two RGB images; a RowError where the source is smaller than SSIM's window."""
    scale = min(LONGEST_SIDE / max(source.size), 1)
    width, height = (max(round(side * scale), 1) for side in source.size)
    if min(width, height) < SMALLEST_SIDE:
        found = f"a source of {source.width}x{source.height} pixels, where the comparison needs {SMALLEST_SIDE} a side"
        return RowError("image_too_small", f"{found}; use a larger one")
    both = [one if one.size == (width, height) else one.resize((width, height)) for one in (image, source)]
    difference = np.asarray(both[0], np.int16) - np.asarray(both[1], np.int16)
    lumas = [np.asarray(one.convert("L"), np.float64) for one in both]
    return SourceComparison(l1=float(np.abs(difference).mean()) / 255, ssim=_ssim(*lumas))


def _ssim(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Of brightness (height, width), 0 to 255; over the windows that lie wholly inside."""
    mean_x, mean_y = _weighted(x), _weighted(y)
    variances = _weighted(x * x) - mean_x**2 + _weighted(y * y) - mean_y**2
    covariance = _weighted(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + C1) / (mean_x**2 + mean_y**2 + C1)
    return float(np.mean(luminance * (2 * covariance + C2) / (variances + C2)))


def _weighted(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The Gaussian-weighted mean of each window."""
    from scipy.ndimage import gaussian_filter  # takes a tenth of a second to import

    means: NDArray[np.float64] = gaussian_filter(values, SIGMA, radius=RADIUS)
    return means[RADIUS:-RADIUS, RADIUS:-RADIUS]


class SourceComparisonsStage(ImagesStage):
    """Edited images and their sources to comparisons (schema SOURCE_COMPARISONS), for all metrics of this kind."""

    name = "source_comparisons"
    version = 1
    schema = schemas.SOURCE_COMPARISONS
    counted = "none"
    needs = SourceComparisonConfig
    encodes = False
    compares = True

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.options = options

    def compare(self, image: Image.Image, sources: Sequence[Image.Image]) -> SourceComparison | RowError:
        if len(sources) > 1:
            found = f"{len(sources)} sources in the row, where the metric compares with one"
            return RowError("too_many_images", f"{found}; keep one")
        return compare_with_source(image, sources[0])

    def measure(self, images: PreparedImages, asked: Mapping[str, AnyPrompt]) -> Mapping[str, pa.Table]:
        measured = iter(images.pixels)
        records = []
        for place, (row, error) in enumerate(zip(images.rows, images.errors, strict=True)):
            comparisons = [next(measured)._asdict() for _ in range(images.counts[place])]
            columns = {"comparisons": comparisons} if error is None else {"error": rows.error_value(error)}
            basis = basis_beside(AnyPrompt().basis(row.prompt_id), images.sources[place])
            records.append(row.row(**columns, image_digest=images.digests[place], basis=basis))
        return dict.fromkeys(asked, rows.table(records, self.schema))

"""The source_comparisons stage: compares the pixels of edited images with those of their sources, without a model."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from plumbline.operators.base.errors import RowError
from plumbline.operators.base.schemas import make_image_schema
from plumbline.operators.images.preparing import Edit
from plumbline.operators.images.rows import make_mask_error, name_edit_error
from plumbline.operators.stages.images import PixelsStage
from plumbline.plugins.edits.source_comparison import SourceComparisonConfig

MAX_COMPARED_SIDE = 1024
"""Longest side, in pixels, at which images are compared; larger sources are scaled down to bound the cost."""
SSIM_WINDOW_RADIUS = 5
"""Number of pixels on each side of the centre of SSIM's Gaussian window, which has 11 x 11 pixels."""
SSIM_WINDOW_SIGMA = 1.5
"""Standard deviation of SSIM's Gaussian window, in pixels."""
MIN_COMPARED_SIDE = 2 * SSIM_WINDOW_RADIUS + 1
SSIM_LUMINANCE_CONSTANT, SSIM_CONTRAST_CONSTANT = (0.01 * 255) ** 2, (0.03 * 255) ** 2
MIN_WHITE_BRIGHTNESS = 128
"""Minimum brightness of a white pixel in a mask."""
MIN_GREY_DISTANCE = 64
"""Minimum difference, in brightness levels, between a grey pixel of a mask and both black and white."""
MAX_GREY_SHARE = 0.1
"""Maximum fraction of a mask's pixels that may be grey."""


class SourceComparison(NamedTuple):
    """Differences between an edited image and its source."""

    l1: float
    """Mean absolute difference of RGB values, in [0, 1]. The edited image is first scaled to the size of the source, as
    in MagicBrush (OSU-NLP-Group/MagicBrush, evaluation/image_eval.py, `eval_distance`).
    """
    l2: float
    """Mean squared difference of RGB values, in [0, 1], as in MagicBrush."""
    ssim: float
    """Mean structural similarity of brightness (Rec. 601 luma), in [-1, 1] (Wang et al. 2004, Image Quality Assessment,
    eq. 13, with the window and constants used there).
    """


def compare_with_source(
    image: Image.Image, source: Image.Image, mask: Image.Image | None = None
) -> SourceComparison | RowError:
    """Compare the pixels of two RGB images, ignoring those inside the mask, if any.

    Returns an error if the source is smaller than SSIM's window, or if the mask is invalid.
    """
    scale = min(MAX_COMPARED_SIDE / max(source.size), 1)
    width, height = (max(round(side * scale), 1) for side in source.size)
    if min(width, height) < MIN_COMPARED_SIDE:
        found = f"{source.width}x{source.height} pixels, but the comparison needs at least {MIN_COMPARED_SIDE} per side"
        return name_edit_error(RowError("image_too_small", f"{found}; use a larger one"), "source")
    kept = np.ones((height, width), bool) if mask is None else _find_unmasked_pixels(mask, source, (width, height))
    if isinstance(kept, RowError):
        return kept
    both = [one if one.size == (width, height) else one.resize((width, height)) for one in (image, source)]
    difference = (np.asarray(both[0], np.float32) - np.asarray(both[1], np.float32))[kept] / 255
    x, y = (np.asarray(one.convert("L"), np.float64) for one in both)
    return SourceComparison(
        l1=float(np.abs(difference).mean(dtype=np.float64)),
        l2=float(np.square(difference).mean(dtype=np.float64)),
        ssim=_compute_ssim(x, y, kept),
    )


def _find_unmasked_pixels(
    mask: Image.Image, source: Image.Image, size: tuple[int, int]
) -> NDArray[np.bool_] | RowError:
    """Return an array (height, width) that is True for pixels outside the mask, at the size of the compared images."""
    if mask.size != source.size:
        found, expected = (f"{one.width}x{one.height}" for one in (mask, source))
        return make_mask_error(f"it has {found} pixels, and the source {expected}; make it as large as the source")
    luma = np.asarray(mask.convert("L"))
    if np.mean((luma >= MIN_GREY_DISTANCE) & (luma < 256 - MIN_GREY_DISTANCE)) > MAX_GREY_SHARE:
        return make_mask_error(
            "expected black and white, found other shades; make the edited area white and the rest black"
        )
    kept = np.asarray(mask.convert("L").resize(size, Image.Resampling.NEAREST)) < MIN_WHITE_BRIGHTNESS
    if not kept[SSIM_WINDOW_RADIUS:-SSIM_WINDOW_RADIUS, SSIM_WINDOW_RADIUS:-SSIM_WINDOW_RADIUS].any():
        return make_mask_error(
            "it is entirely white, so there are no pixels to compare; leave the row out, or correct the mask"
        )
    return kept


def _compute_ssim(x: NDArray[np.float64], y: NDArray[np.float64], kept: NDArray[np.bool_]) -> float:
    """Return the mean SSIM of two brightness arrays (height, width) with values from 0 to 255.

    The mean is over all windows that lie inside the image and have a `kept` centre. Within a window, only `kept` pixels
    count.
    """
    middles = kept[SSIM_WINDOW_RADIUS:-SSIM_WINDOW_RADIUS, SSIM_WINDOW_RADIUS:-SSIM_WINDOW_RADIUS]
    weights = _sum_windows(kept.astype(np.float64))[middles]

    def average_windows(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return _sum_windows(values * kept)[middles] / weights

    mean_x, mean_y = average_windows(x), average_windows(y)
    variances = average_windows(x * x) - mean_x**2 + average_windows(y * y) - mean_y**2
    covariance = average_windows(x * y) - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + SSIM_LUMINANCE_CONSTANT) / (mean_x**2 + mean_y**2 + SSIM_LUMINANCE_CONSTANT)
    return float(np.mean(luminance * (2 * covariance + SSIM_CONTRAST_CONSTANT) / (variances + SSIM_CONTRAST_CONSTANT)))


def _sum_windows(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Gaussian-weighted sums (height - 10, width - 10) of all 11 x 11 windows that fit into the array."""
    from scipy.ndimage import gaussian_filter  # takes a tenth of a second to import

    sums: NDArray[np.float64] = gaussian_filter(values, SSIM_WINDOW_SIGMA, radius=SSIM_WINDOW_RADIUS)
    return sums[SSIM_WINDOW_RADIUS:-SSIM_WINDOW_RADIUS, SSIM_WINDOW_RADIUS:-SSIM_WINDOW_RADIUS]


class SourceComparisonsStage(PixelsStage):
    """Stage that compares each edited image with its source; all source comparison metrics share the result."""

    name = "source_comparisons"
    version = 1
    previous_stage = "image_statistics"
    schema = make_image_schema(
        ("comparisons", pa.list_(pa.struct([(name, pa.float32()) for name in SourceComparison._fields])))
    )
    column = "comparisons"
    metric_type = SourceComparisonConfig
    masks = True

    def preprocess(self, image: Image.Image, edit: Edit | None = None) -> SourceComparison | RowError:
        assert edit is not None, "the stage's metrics compare images with their sources"
        return compare_with_source(image, edit.source, edit.mask)

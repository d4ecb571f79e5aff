"""Ratings off the scale that the others are on: a 55 among ratings of 1 to 5 is a slip of somebody's hand."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

SCALES = ((0, 1), (0, 10), (0, 100))
"""Shares and labels, the usual scales of whole numbers, and percentages."""
FEW = 0.05
"""At most this share of a template's ratings (or one of them) is off its scale; with more it has another scale."""


def off_scale(ratings: pa.Table) -> list[str]:
    """A warning for each template of which a few ratings lie outside the scale that holds the others."""
    frame = ratings.select(["template", "image_id", "rater", "rating"]).to_pandas().dropna(subset=["rating"])
    warnings = (_warning(str(template), rows) for template, rows in frame.groupby("template", sort=False))
    return [warning for warning in warnings if warning]


def _warning(template: str, rows: pd.DataFrame) -> str | None:
    values = rows["rating"].to_numpy(np.float64)
    scale = next((scale for scale in SCALES if _holds(scale, values)), None)
    if scale is None:
        return None
    outside = rows[(values < scale[0]) | (values > scale[1])]
    if outside.empty:
        return None
    first = outside.iloc[0]
    return (
        f"{len(outside)} of {len(rows)} ratings ({template}) are outside {scale[0]} to {scale[1]}, where the others "
        f"are, first {first['rating']:g} of image {first['image_id']} by rater {first['rater']}: all were counted; "
        "correct them, or set protocol.rating_range=[least,greatest]"
    )


def _holds(scale: Sequence[int], values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> bool:
    """Whether all but a few ratings are on a scale; ratings from 1 on are none of shares."""
    low, high = scale
    inside = (values >= low) & (values <= high)
    shares = high > 1 or bool((values[inside] < 1).any())
    return shares and int((~inside).sum()) <= max(1, FEW * len(values))

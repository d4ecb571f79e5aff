"""Source comparisons measure, pixel by pixel, how much of its source an edited image keeps. They do not rank editors.

An editor that changes nothing keeps everything, so combine them with a metric that checks whether the instruction was
followed.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.metrics.metric import SHARE_RANGE, Evidence, Metric, Scored, ScoreRange, View

ComparisonMeasure = Literal["l1", "l2", "ssim", "psnr"]
MAX_PSNR = 100.0
"""Peak signal-to-noise ratio, in decibels, of two images that are equal or differ less than this.

It would be infinite for two equal images.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceComparisonConfig(Metric):
    """Options of a source comparison."""

    kind: Literal["source_comparison"] = "source_comparison"
    story: ClassVar[str] = "compares an edited image with its source, ignoring the instruction"
    chain: ClassVar[tuple[str, ...]] = ("source_comparisons", "scores")
    views: ClassVar[tuple[View, ...]] = ("edit",)
    role_keys: ClassVar[tuple[str, ...]] = ()
    ranks: ClassVar[bool] = False
    comparison: ComparisonMeasure
    """Measure to compute (plugins/edits/source_comparisons_stage.py): `l1`, the mean absolute difference of the pixels;
    `l2`, the mean squared difference; `ssim`, the structural similarity; or `psnr`, the peak signal-to-noise ratio in
    decibels, which follows from `l2`. Unchanged images have an `l1` and `l2` of 0, an `ssim` of 1 and a `psnr` of 100.
    """

    @property
    def score_range(self) -> ScoreRange | None:
        return {"ssim": (-1.0, 1.0), "psnr": (0.0, MAX_PSNR)}.get(self.comparison, SHARE_RANGE)

    def list_score_options(self) -> dict[str, str]:
        return {"comparison": self.comparison}

    def score(self, evidence: Evidence) -> Scored:
        """Return the value of the chosen comparison for the image."""
        return Scored(_compute_psnr(evidence.row["l2"]) if self.comparison == "psnr" else evidence.row[self.comparison])


def _compute_psnr(l2: float) -> float:
    """Return the peak signal-to-noise ratio in decibels for a mean squared difference of colours from 0 to 1."""
    return MAX_PSNR if l2 <= 0 else min(-10 * math.log10(l2), MAX_PSNR)

"""Source comparisons measure, pixel by pixel, how much of its source an edited image keeps. They do not rank editors.

An editor that changes nothing keeps everything, so combine them with a metric that checks whether the instruction was
followed.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.metrics.metric import SHARE_RANGE, Evidence, Metric, Scored, ScoreRange, View

Comparison = Literal["l1", "l2", "ssim"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceComparisonConfig(Metric):
    """Options of a source comparison."""

    kind: Literal["source_comparison"] = "source_comparison"
    story: ClassVar[str] = "compares an edited image with its source, ignoring the instruction"
    chain: ClassVar[tuple[str, ...]] = ("source_comparisons", "scores")
    views: ClassVar[tuple[View, ...]] = ("edit",)
    role_keys: ClassVar[tuple[str, ...]] = ()
    ranks: ClassVar[bool] = False
    comparison: Comparison
    """Measure to compute (plugins/edits/source_comparisons_stage.py): `l1`, the mean absolute difference of the pixels;
    `l2`, the mean squared difference; or `ssim`, the structural similarity. Unchanged images have an `l1` and `l2` of 0
    and an `ssim` of 1.
    """

    @property
    def score_range(self) -> ScoreRange | None:
        return (-1.0, 1.0) if self.comparison == "ssim" else SHARE_RANGE

    def score_options(self) -> dict[str, str]:
        return {"comparison": self.comparison}

    def score(self, evidence: Evidence) -> Scored:
        """Return the value of the chosen comparison for the image."""
        return Scored(evidence.row[self.comparison])

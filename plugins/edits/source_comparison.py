"""Source comparisons: how much of its source an edited image keeps, pixel by pixel. They do not rank editors.

An editor that changes nothing keeps everything, so use them together with a metric of whether the instruction was
followed.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.metrics.metric import SHARES, Evidence, Metric, Scored, ScoreRange, View

Comparison = Literal["l1", "l2", "ssim"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceComparisonConfig(Metric):
    """Options of a source comparison."""

    kind: Literal["source_comparison"] = "source_comparison"
    story: ClassVar[str] = "compares an edited image with its source, whatever the instruction"
    chain: ClassVar[tuple[str, ...]] = ("source_comparisons", "scores")
    views: ClassVar[tuple[View, ...]] = ("edit",)
    role_keys: ClassVar[tuple[str, ...]] = ()
    ranks: ClassVar[bool] = False
    comparison: Comparison
    """`l1`, the mean absolute difference of the pixels, and `l2`, the mean squared difference, both 0 for unchanged
    images; `ssim`, the structural similarity, 1 for unchanged images (plugins/edits/source_comparisons_stage.py)."""

    @property
    def score_range(self) -> ScoreRange | None:
        return (-1.0, 1.0) if self.comparison == "ssim" else SHARES

    def scoring(self) -> dict[str, str]:
        return {"comparison": self.comparison}

    def score(self, evidence: Evidence) -> Scored:
        """Return the comparison of the image."""
        return Scored(evidence.row[self.comparison])

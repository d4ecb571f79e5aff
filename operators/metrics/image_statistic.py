"""Image statistics: properties of an image that do not depend on its prompt. No value is better than another.

They reveal reward hacking (operators/results/reward_hacking.py): exploiting a reward leaves traces in them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.metrics.metric import SHARE_RANGE, Evidence, Metric, Scored, ScoreRange

Statistic = Literal["edge_density", "entropy", "saturation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageStatisticConfig(Metric):
    kind: Literal["image_statistic"] = "image_statistic"
    story: ClassVar[str] = "measures the image alone, without its prompt; neither higher nor lower values are better"
    chain: ClassVar[tuple[str, ...]] = ("image_statistics", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ()
    ranks: ClassVar[bool] = False
    statistic: Statistic
    """`edge_density`: fraction of pixels on an edge; `entropy`: entropy of the brightness in bits; `saturation`: mean
    saturation in HSV (operators/stages/image_statistics.py).
    """
    about: str = ""
    """Description for newcomers in the report, replacing the default story of this kind of metric. It completes a
    sentence that begins with the metric's name.
    """

    @property
    def score_range(self) -> ScoreRange | None:
        return (0.0, 8.0) if self.statistic == "entropy" else SHARE_RANGE

    def list_score_options(self) -> dict[str, str]:
        return {"statistic": self.statistic}

    def score(self, evidence: Evidence) -> Scored:
        return Scored(evidence.row[self.statistic])

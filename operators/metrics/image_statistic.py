"""Image statistics: what an image is like, whatever its prompt. No number of them is the better one.

They are the sentinel's (operators/results/reward_hacking.py): a reward that is gamed leaves its traces in them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.metric import SHARES, Evidence, Metric, ScoreRange

Statistic = Literal["edge_density", "entropy", "saturation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageStatisticConfig(Metric):
    """Which statistic."""

    kind: Literal["image_statistic"] = "image_statistic"
    story: ClassVar[str] = "measures the image itself, whatever its prompt; neither more nor less of it is better"
    chain: ClassVar[tuple[str, ...]] = ("image_statistics", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ()
    ranks: ClassVar[bool] = False
    statistic: Statistic
    """`edge_density`, the share of pixels on an edge; `entropy` of brightness, in bits; `saturation`, the mean of HSV's
    (operators/stages/image_statistics.py)."""
    about: str = ""
    """What the report tells a newcomer of it, in place of the kind's story; completes a sentence that begins with its
    name."""

    @property
    def score_range(self) -> ScoreRange | None:
        return (0.0, 8.0) if self.statistic == "entropy" else SHARES

    def scoring(self) -> dict[str, str]:
        """Which of the numbers is taken."""
        return {"statistic": self.statistic}

    def score(self, evidence: Evidence) -> Scored:
        """The statistic of the image."""
        return Scored(evidence.row[self.statistic])

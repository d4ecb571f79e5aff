"""Doubt, an example metric: one minus VQAScore."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.extending import Evidence, Scored, VqaScoreConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DoubtConfig(VqaScoreConfig):
    """One minus VQAScore: how unlikely it is that the image shows the prompt."""

    kind: Literal["doubt"] = "doubt"  # type: ignore[assignment]
    story: ClassVar[str] = "asks a model whether the image shows the prompt, and counts how unlikely it finds that"
    scale: float = 1.0
    """The score of an image that the model is sure does not show the prompt."""

    def list_score_options(self) -> dict[str, object]:
        """Return the options that affect how the model's answer becomes a score."""
        return {**VqaScoreConfig.list_score_options(self), "doubt": self.scale}

    def score(self, evidence: Evidence) -> Scored:
        """Return `scale` times one minus the likelihood of the answer."""
        scored = VqaScoreConfig.score(self, evidence)
        return scored if scored.score is None else scored._replace(score=self.scale * (1 - scored.score))

    @property
    def score_range(self) -> tuple[float, float]:
        """The lowest and the highest possible score; gates need this range."""
        return 0.0, self.scale

    @property
    def prefers_lower(self) -> bool:
        return True

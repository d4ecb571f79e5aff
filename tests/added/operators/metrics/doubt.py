"""Doubt: how unlikely the VQA model finds the opposite of what is asked."""

from dataclasses import dataclass
from typing import Literal

from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.metric import Evidence
from plumbline.operators.metrics.vqascore import VqaScoreConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DoubtConfig(VqaScoreConfig):
    """VQAScore, turned round."""

    kind: Literal["doubt"] = "doubt"  # type: ignore[assignment]

    def score(self, evidence: Evidence) -> Scored:
        """1 minus the likelihood of the answer."""
        scored = VqaScoreConfig.score(self, evidence)
        return scored if scored.score is None else scored._replace(score=1 - scored.score)

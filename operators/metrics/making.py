"""A chain that ends in what a model makes, texts or pictures: no image is scored by it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.metric import Evidence, Expected, Metric


@dataclass(frozen=True, kw_only=True, slots=True)
class Making(Metric):
    """A metric in form alone: a plan folds its chain into cells as it does any other's."""

    ranks: ClassVar[bool] = False

    def scoring(self) -> Mapping[str, Any]:
        """Nothing: no image is scored."""
        return {}

    def score(self, evidence: Evidence) -> Scored:
        """Never asked for, since its chain has no scores."""
        raise NotImplementedError(f"{self.kind} scores no image")

    def expected(self, words: float) -> Expected:
        """One call."""
        return Expected(1, 0)

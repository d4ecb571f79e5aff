"""Simulated raters: a rating from 1 to 5 that rises with the share of requirements an image meets."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, kw_only=True, slots=True)
class Rater:
    """One rater's habits."""

    name: str
    bias: float
    """Added to every rating."""
    noise: float
    """Standard deviation of the rating about its expectation."""

    def rate(self, met: float, rng: Random) -> int:
        """A rating of an image that meets this share of its prompt's requirements."""
        return min(5, max(1, round(1 + 4 * met + self.bias + rng.gauss(0, self.noise))))


RATERS = (
    Rater(name="rater-1", bias=0.0, noise=0.45),
    Rater(name="rater-2", bias=-0.4, noise=0.6),
    Rater(name="rater-3", bias=0.3, noise=0.8),
)

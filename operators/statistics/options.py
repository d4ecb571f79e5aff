"""Options for judging metrics. The module imports nothing heavy, so that configurations load fast."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.base.bounds import BoundsChecked, PositiveFloat, Probability
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE

Match = Literal["image", "prompt_and_generator", "image_and_prompt"]
"""Ids that a score and a judgement of the same image have in common."""
MATCH_COLUMNS: Mapping[Match, tuple[str, ...]] = {
    "image": ("image_id",),
    "prompt_and_generator": ("prompt_id", "generator"),
    "image_and_prompt": ("image_id", "prompt_id"),
}
PAIRWISE_STATISTICS = ("pairwise_accuracy", "pairwise_accuracy_grouped")
RatingStatistic = Literal[
    "pearson",
    "spearman",
    "kendall_a",
    "kendall_b",
    "kendall_c",
    "spearman_viescore",
    "auroc",
    "sensitivity",
    "specificity",
    "pairwise_accuracy",
    "pairwise_accuracy_grouped",
]
Level = Literal["nominal", "ordinal", "interval"]
"""Level of measurement, which defines the distance between two ratings in Krippendorff's alpha."""
UnsureHandling = Literal["left_out", "tied"]
"""Treatment of pairs that people do not decide: left out, or counted as right if the metric ties both images."""
EqualScoreHandling = Literal["half", "wrong"]
"""Credit for a pair with equal scores that people decide: half a pair, as expected from a coin toss, or none, as in
published code that counts only the same choice as right.
"""
ZeroHandling = Literal["wilcox", "pratt"]
"""Treatment of pairs without a difference in the signed-rank test: dropped before the pairs are ranked (`wilcox`), or
after (`pratt`).
"""
Convention = Literal["published", "paper", "current"]
"""Convention of T2IScoreScore.

- `published` reproduces the released per-graph numbers: walks begin with every ordered pair of roots, and are weighted
  by their number of images.
- `paper` has one root per walk, walks of equal weight, and separation of adjacent levels only. The rank of a value is
  the number of values below it (equation 1).
- `current` is the maintained code of 2025: one root per walk, walks weighted by their number of scored images if they
  have at least two, and separation and delta over pairs of nodes whose images all have a score.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Number and seed of the random draws for intervals and permutation tests."""

    resamples: int = 1000
    """Number of bootstrap resamples of the prompts."""
    permutations: int = 9999
    """Number of random sign flips in a permutation test, which compares two metrics, or one metric before and after a
    training run.
    """
    seed: int = 0
    """Seed for the resamples and the sign flips."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveConfig(BoundsChecked):
    """Options for sweeps that stop once enough prompts have shown which generators differ."""

    section: ClassVar[str] = "adaptive."
    alpha: Probability = SIGNIFICANCE
    """Maximum probability, over the random order of the prompts, that any decision is false; exact for `betting`."""
    indifference: float | Mapping[str, float] = 0.0
    """Largest difference of means that does not matter, in units of the score; {METRIC: NUMBER} sets it by metric."""
    method: Literal["betting", "asymptotic"] = "betting"
    """`betting` is exact and requires the `range` of scores. `asymptotic` does not require it, but its decisions may be
    false more often than `alpha` if only few prompts differ.
    """
    range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest possible score of any metric; used only by `betting`."""
    growth: PositiveFloat = 0.25
    """Size of a round as a fraction of the prompts in all earlier rounds; each round loads its models again."""
    seed: int = 0
    """Seed for the order of the prompts."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        low, high = self.range
        if not low < high:
            raise ConfigError(
                f"adaptive.range: expected the lowest and the highest score, got {[low, high]}; put the lowest first"
            )
        values = self.indifference.values() if isinstance(self.indifference, Mapping) else [self.indifference]
        for value in values:
            if not 0 <= value < float("inf"):
                raise ConfigError(f"adaptive.indifference: expected 0 or more, got {value}; raise it, or set 0")

    @property
    def width(self) -> float:
        """The largest possible difference between two scores."""
        return self.range[1] - self.range[0]

    def get_indifference(self, metric: str) -> float:
        """Return the indifference for a metric; 0 if it is set only for other metrics."""
        if isinstance(self.indifference, Mapping):
            return self.indifference.get(metric, 0.0)
        return self.indifference

"""What can be chosen when metrics are judged; imports nothing heavy, so that configurations are read fast."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Match = Literal["image", "prompt_and_generator", "image_and_prompt"]
"""What tells that a score and a judgement are of the same image."""
MATCH_COLUMNS: Mapping[Match, tuple[str, ...]] = {
    "image": ("image_id",),
    "prompt_and_generator": ("prompt_id", "generator"),
    "image_and_prompt": ("image_id", "prompt_id"),
}
PAIRWISE = ("pairwise_accuracy", "pairwise_accuracy_grouped")
RatingStatistic = Literal[
    "pearson", "spearman", "kendall_b", "kendall_c", "auroc", "pairwise_accuracy", "pairwise_accuracy_grouped"
]
Level = Literal["nominal", "ordinal", "interval"]
"""The distance between two ratings in Krippendorff's alpha."""
Unsure = Literal["left_out", "tied"]
"""What is done with pairs that people do not decide: left out, or right where the metric ties them."""
ZeroHandling = Literal["wilcox", "pratt"]
"""What the signed-rank test does with pairs that do not differ: drop them, or rank and then drop them."""
ALPHA = 0.001
"""The level at which the Gecko paper calls two models different (section 4.2)."""
Convention = Literal["published", "paper", "current"]
"""T2IScoreScore's: `published` gives the released per-graph numbers: every ordered pair of roots heads a walk, walks
weigh by their images. `paper` has one root to a walk, walks that weigh alike, and separation of adjacent levels only.
`current` is the maintained code of 2025: one root to a walk, walks weigh by their scored images, separation and delta
over the pairs of nodes of which every image has a score."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How intervals and permutation tests draw."""

    resamples: int = 1000
    """Bootstrap resamples of the prompts."""
    permutations: int = 9999
    """Sign flips of a permutation test."""
    seed: int = 0

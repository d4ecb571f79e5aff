"""RationalRewards-8B: a judge that criticises an image or an edit and then rates it (Wang et al. 2026)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.metrics.metric import SHARE_RANGE, Rating, ScoreRange, View
from plumbline.operators.metrics.wording import Release
from plumbline.plugins.released_judges.judges.released_judge import ReleasedJudgeConfig
from plumbline.plugins.released_judges.wordings.rational_rewards import (
    MAX_RATING,
    MIN_RATING,
    EditRating,
    GenerationRating,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RationalRewardsConfig(ReleasedJudgeConfig):
    """Options of RationalRewards-8B-T2I."""

    kind: Literal["rational_rewards"] = "rational_rewards"
    story: ClassVar[str] = (
        "shows the image to a model that was trained to criticise it, and takes the mean of its ratings of how it "
        "follows the prompt, how it is made, and its text if the prompt wants any"
    )
    score_range: ClassVar[ScoreRange] = SHARE_RANGE
    releases: ClassVar[tuple[type[Release], ...]] = (GenerationRating,)

    def score_ratings(self, ratings: Sequence[Rating]) -> float:
        """Return the mean of the ratings that apply, rescaled from the range 1 to 4 to the range 0 to 1."""
        mean = math.fsum(rating.value for rating in ratings) / len(ratings)
        return (mean - MIN_RATING) / (MAX_RATING - MIN_RATING)


@dataclass(frozen=True, kw_only=True, slots=True)
class RationalRewardsEditConfig(RationalRewardsConfig):
    """Options of RationalRewards-8B-Edit."""

    kind: Literal["rational_rewards_edit"] = "rational_rewards_edit"  # type: ignore[assignment]
    story: ClassVar[str] = (
        "shows the source and the edited image to a model that was trained to criticise edits, and takes the mean of "
        "its ratings of the edit, of what was kept, of how the image is made, and of its text if any is wanted"
    )
    views: ClassVar[tuple[View, ...]] = ("edit",)
    releases: ClassVar[tuple[type[Release], ...]] = (EditRating,)

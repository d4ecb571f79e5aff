"""UnifiedReward 2.0 and UnifiedReward-Edit as judges of one image (Wang et al. 2025)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.metrics.judges.judge import map_ratings
from plumbline.operators.metrics.metric import Rating, ScoreRange, View
from plumbline.operators.metrics.wording import Release
from plumbline.plugins.released_judges.judges.released_judge import ReleasedJudgeConfig
from plumbline.plugins.released_judges.wordings.unified_reward import (
    EDIT_RATINGS,
    MAX_EDIT_RATING,
    UnifiedRewardEditRating,
    UnifiedRewardRating,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnifiedRewardConfig(ReleasedJudgeConfig):
    """Options of UnifiedReward 2.0."""

    kind: Literal["unified_reward"] = "unified_reward"
    story: ClassVar[str] = (
        "shows the image to a model that was trained to rate it, and takes the mean of its ratings of alignment with "
        "the prompt, coherence and style"
    )
    score_range: ClassVar[ScoreRange] = (1.0, 5.0)
    rating: Literal["overall", "alignment", "coherence", "style"] = "overall"
    """Rating that is used as the score; `overall` is the mean of the three. The judge gets the same question."""
    releases: ClassVar[tuple[type[Release], ...]] = (UnifiedRewardRating,)

    def list_score_options(self) -> dict[str, Any]:
        return {"rating": self.rating}

    def score_ratings(self, ratings: Sequence[Rating]) -> float:
        """Return one of the ratings or their mean, from 1 to 5."""
        rated = map_ratings(ratings)
        return rated.get(self.rating, math.fsum(rated.values()) / len(rated))


@dataclass(frozen=True, kw_only=True, slots=True)
class UnifiedRewardEditConfig(ReleasedJudgeConfig):
    """Options of UnifiedReward-Edit."""

    kind: Literal["unified_reward_edit"] = "unified_reward_edit"
    calls_per_image: ClassVar[int] = 2
    story: ClassVar[str] = (
        "shows the source and the edited image to a model that was trained to rate edits, and takes the square root of "
        "its lower rating of the edit times its lower rating of the image"
    )
    views: ClassVar[tuple[View, ...]] = ("edit", "result")
    score_range: ClassVar[ScoreRange] = (0.0, 10.0)
    releases: ClassVar[tuple[type[Release], ...]] = (UnifiedRewardEditRating,)

    def score_ratings(self, ratings: Sequence[Rating]) -> float:
        """Return the square root of the product of the questions' lowest ratings, scaled to the range 0 to 10."""
        rated = map_ratings(ratings)
        lowest = [min(rated[name] for name in names) for names in EDIT_RATINGS]
        return math.sqrt(math.prod(lowest)) * self.score_range[1] / MAX_EDIT_RATING

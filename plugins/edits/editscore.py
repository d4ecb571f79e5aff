"""EditScore: a judge that was trained to rate edits and can rate an edit several times (Luo et al. 2025)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.base.bounds import NonNegative
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import (
    InspectionMetricConfig,
    JudgeQuestion,
    Scale,
    fill_template,
    map_ratings,
    read_ratings,
)
from plumbline.operators.metrics.metric import Evidence, Rating, Scored, ScoreRange, Verdict, View
from plumbline.operators.metrics.wording import Release
from plumbline.operators.metrics.writing import Writing, WrittenQuestion
from plumbline.plugins.edits.wordings import EditScoreRelease

EDIT_TEMPLATE_NAME, PERCEPTUAL_TEMPLATE_NAME = "editscore_edit", "editscore_perceptual"
MAX_RATING = 25
"""The judge's highest rating; ratings are converted to scores from 0 to 10."""
EDIT_SCALES = (Scale("editing_success", 0, MAX_RATING), Scale("overediting", 0, MAX_RATING))
QUALITY_SCALES = (Scale("naturalness", 0, MAX_RATING), Scale("artifacts", 0, MAX_RATING))


@dataclass(frozen=True, kw_only=True, slots=True)
class EditScoreConfig(InspectionMetricConfig):
    """Options of EditScore."""

    kind: Literal["editscore"] = "editscore"
    calls_per_image: ClassVar[int] = 2
    story: ClassVar[str] = (
        "shows the source and the edited image to a model that was trained to rate edits, and takes the mean of its "
        "ratings"
    )
    views: ClassVar[tuple[View, ...]] = ("edit", "result")
    score_range: ClassVar[ScoreRange] = (0.0, 10.0)
    temperature: NonNegative = 0.7
    """Sampling temperature; 0 always selects the likeliest token."""
    seed: int = 42
    """Seed of the first reply; it increases by 1 for each further reply (`repeats`, the release's num_pass)."""
    rating: Literal["overall", "prompt_following", "consistency", "perceptual_quality"] = "overall"
    """Rating that is used as the score; the judge gets the same questions in any case."""
    releases: ClassVar[tuple[type[Release], ...]] = (EditScoreRelease,)
    templates: ClassVar[tuple[str, ...]] = (EDIT_TEMPLATE_NAME, PERCEPTUAL_TEMPLATE_NAME)

    def list_verdict_options(self) -> dict[str, Any]:
        """Return all options that affect a verdict, except the judge."""
        release = self.find_release(EditScoreRelease)
        if release is not None:
            return {"wording": release.digest, **self.sampling._asdict()}
        return self.list_request_options(*self.templates)

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """Request two replies: one about the source and the edited image, and one about the edited image alone."""
        release = self.find_release(EditScoreRelease)
        if release is not None:
            return combine_ratings((yield from release.inspect(prompt, self.sampling)))
        edit = fill_template(self.get_template_text(EDIT_TEMPLATE_NAME), instruction=parsing.collapse_spaces(prompt))
        asked = (
            JudgeQuestion(edit, EDIT_SCALES),
            JudgeQuestion(self.get_template_text(PERCEPTUAL_TEMPLATE_NAME), QUALITY_SCALES, view=1),
        )
        return combine_ratings((yield from self.request_combined_verdict(asked)))

    def list_score_options(self) -> dict[str, Any]:
        return {"rating": self.rating}

    def score(self, evidence: Evidence) -> Scored:
        """Return the chosen rating, in [0, 10]."""
        ratings = read_ratings(evidence.row)
        return Scored(map_ratings(ratings)[self.rating], ratings=ratings, rationale=evidence.row["rationale"])


def combine_ratings(verdict: Verdict) -> Verdict:
    """Convert a judge's ratings to a scale from 0 to 10, as upstream's code does.

    `overall` is the square root of the product of the lower edit rating and the lower quality rating.
    """
    success, overediting, naturalness, artifacts = (rating.value * 10 / MAX_RATING for rating in verdict.ratings)
    quality = min(naturalness, artifacts)
    numbers = {"prompt_following": success, "consistency": overediting, "perceptual_quality": quality}
    numbers["overall"] = math.sqrt(min(success, overediting) * quality)
    return Verdict(tuple(Rating(name, value) for name, value in numbers.items()), verdict.rationale)

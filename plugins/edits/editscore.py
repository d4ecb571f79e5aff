"""EditScore: a judge trained to rate edits, which may be asked several times (Luo et al. 2025)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.base.bounds import NotNegative
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import (
    InspectedConfig,
    JudgeQuestion,
    Scale,
    fill,
    ratings_by_name,
    read_ratings,
)
from plumbline.operators.metrics.metric import Evidence, Rating, Scored, ScoreRange, Verdict, View
from plumbline.operators.metrics.wording import Release
from plumbline.operators.metrics.writing import Writing, WrittenQuestion
from plumbline.plugins.edits.wordings import EditScoreRelease

EDIT, PERCEPTUAL = "editscore_edit", "editscore_perceptual"
MAX_RATING = 25
"""Highest rating of the judge; the score is from 0 to 10."""
EDITING = (Scale("editing_success", 0, MAX_RATING), Scale("overediting", 0, MAX_RATING))
QUALITY = (Scale("naturalness", 0, MAX_RATING), Scale("artifacts", 0, MAX_RATING))


@dataclass(frozen=True, kw_only=True, slots=True)
class EditScoreConfig(InspectedConfig):
    """Options of EditScore."""

    kind: Literal["editscore"] = "editscore"
    calls_per_image: ClassVar[int] = 2
    story: ClassVar[str] = (
        "lets a model that was trained to rate edits see the source and the edited image, and averages what it says "
        "when it is asked several times"
    )
    views: ClassVar[tuple[View, ...]] = ("edit", "result")
    score_range: ClassVar[ScoreRange] = (0.0, 10.0)
    temperature: NotNegative = 0.7
    """0 selects the likeliest token each time."""
    seed: int = 42
    """Seed of the first reply; each further one (`repeats`, the release's num_pass) adds 1."""
    rating: Literal["overall", "prompt_following", "consistency", "perceptual_quality"] = "overall"
    """The number that is the score; the judge gets the same questions for all of them."""
    releases: ClassVar[tuple[type[Release], ...]] = (EditScoreRelease,)
    templates: ClassVar[tuple[str, ...]] = (EDIT, PERCEPTUAL)

    def judging(self) -> dict[str, Any]:
        """Return all options that decide a verdict, except the judge."""
        release = self.released(EditScoreRelease)
        if release is not None:
            return {"wording": release.digest, **self.sampling._asdict()}
        return self.asking(*self.templates)

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """Ask for one verdict in two replies: about source and edited image, and about the edited image alone."""
        release = self.released(EditScoreRelease)
        if release is not None:
            return combine_ratings((yield from release.inspect(prompt, self.sampling)))
        edit = fill(self.template_text(EDIT), instruction=parsing.one_line(prompt))
        asked = JudgeQuestion(edit, EDITING), JudgeQuestion(self.template_text(PERCEPTUAL), QUALITY, view=1)
        return combine_ratings((yield from self.verdicts(asked)))

    def scoring(self) -> dict[str, Any]:
        return {"rating": self.rating}

    def score(self, evidence: Evidence) -> Scored:
        """Return the chosen rating, in [0, 10]."""
        ratings = read_ratings(evidence.row)
        return Scored(ratings_by_name(ratings)[self.rating], ratings=ratings, rationale=evidence.row["rationale"])


def combine_ratings(verdict: Verdict) -> Verdict:
    """Return a verdict out of 10 from a judge's ratings, as in the release.

    `overall` is the root of the lower rating of the edit times the lower rating of the quality.
    """
    success, overediting, naturalness, artifacts = (rating.value * 10 / MAX_RATING for rating in verdict.ratings)
    quality = min(naturalness, artifacts)
    numbers = {"prompt_following": success, "consistency": overediting, "perceptual_quality": quality}
    numbers["overall"] = math.sqrt(min(success, overediting) * quality)
    return Verdict(tuple(Rating(name, value) for name, value in numbers.items()), verdict.rationale)

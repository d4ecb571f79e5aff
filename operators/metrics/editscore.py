"""EditScore: a judge trained to rate edits, who may be asked several times (Luo et al. 2025)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.base.bounds import NotNegative
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Rating, Scored
from plumbline.operators.metrics.judged import Asked, InspectedConfig, Scale, Verdict, fill, ratings_of, values
from plumbline.operators.metrics.metric import Evidence, Expected, ScoreRange, View
from plumbline.operators.metrics.wordings.editscore import EditScoreRelease
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.writing import Writing, WrittenQuestion

EDIT, PERCEPTUAL = "editscore_edit", "editscore_perceptual"
HIGHEST = 25
"""Of the judge's ratings; the score is from 0 to 10."""
EDITING = (Scale("editing_success", 0, HIGHEST), Scale("overediting", 0, HIGHEST))
QUALITY = (Scale("naturalness", 0, HIGHEST), Scale("artifacts", 0, HIGHEST))


@dataclass(frozen=True, kw_only=True, slots=True)
class EditScoreConfig(InspectedConfig):
    """Who rates the edited images, and how often."""

    kind: Literal["editscore"] = "editscore"
    story: ClassVar[str] = (
        "lets a model that was trained to rate edits see the source and the edited image, and averages what it says "
        "when it is asked several times"
    )
    views: ClassVar[tuple[View, ...]] = ("edit", "result")
    score_range: ClassVar[ScoreRange] = (0.0, 10.0)
    temperature: NotNegative = 0.7
    """0 takes the likeliest token each time."""
    seed: int = 42
    """Of the first time; each further one (`repeats`, the release's num_pass) adds 1."""
    rating: Literal["overall", "prompt_following", "consistency", "perceptual_quality"] = "overall"
    """Which number is the score; the judge is asked the same for all of them."""

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (EditScoreRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return EDIT, PERCEPTUAL

    def expected(self, words: float) -> Expected:
        """Two calls for an image."""
        return Expected(2, 1)

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for the judge."""
        release = self.released(EditScoreRelease)
        if release is not None:
            return {"wording": release.digest, **self.sampling._asdict()}
        return self.asking(*self.templates)

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """One verdict of two replies: about the source and the edited image, and about the latter alone."""
        release = self.released(EditScoreRelease)
        if release is not None:
            return rated(*(yield from release.rate(prompt, self.sampling)))
        edit = fill(self.template_text(EDIT), instruction=parsing.one_line(prompt))
        asked = Asked(edit, EDITING), Asked(self.template_text(PERCEPTUAL), QUALITY, view=1)
        return rated(*(yield from self.verdicts(asked)))

    def scoring(self) -> dict[str, Any]:
        return {"rating": self.rating}

    def score(self, evidence: Evidence) -> Scored:
        """The rating that is wanted, in [0, 10]."""
        ratings = ratings_of(evidence.row)
        return Scored(values(ratings)[self.rating], ratings=ratings, rationale=evidence.row["rationale"])


def rated(ratings: Sequence[Rating], rationale: str) -> Verdict:
    """What the release makes of a judge's ratings, out of 10: `overall` is the root of the lower rating of the edit
    times the lower one of the quality.
    """
    success, overediting, naturalness, artifacts = (rating.value * 10 / HIGHEST for rating in ratings)
    quality = min(naturalness, artifacts)
    numbers = {"prompt_following": success, "consistency": overediting, "perceptual_quality": quality}
    numbers["overall"] = math.sqrt(min(success, overediting) * quality)
    return Verdict(tuple(Rating(name, value) for name, value in numbers.items()), rationale)

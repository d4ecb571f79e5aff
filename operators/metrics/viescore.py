"""VIEScore: a model that sees rates semantic consistency and perceptual quality (Ku et al. 2024)."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.judged import Asked, InspectedConfig, Scale, Verdict, fill, ratings_of, values
from plumbline.operators.metrics.metric import Evidence, Expected, ScoreRange, View
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.wordings.viescore import GEditRelease, VieScoreEditRelease, VieScoreRelease
from plumbline.operators.metrics.writing import Writing, WrittenQuestion

SEMANTIC, EDIT, PERCEPTUAL = "viescore_semantic", "viescore_edit", "viescore_perceptual"
CONSISTENCY = (Scale("semantic_consistency", 0, 10),)
EDITING = (Scale("editing_success", 0, 10), Scale("overediting", 0, 10))
QUALITY = (Scale("naturalness", 0, 10), Scale("artifacts", 0, 10))
Part = Literal["overall", "consistency", "quality"]


@dataclass(frozen=True, kw_only=True)
class TwoQuestionsConfig(InspectedConfig):
    """A judge who rates consistency with the prompt, and how well the image is made."""

    score_range: ClassVar[ScoreRange] = (0.0, 10.0)
    part: Part = "overall"
    """Which number is the score: `consistency`, the least rating of the first question; `quality`, the least of the
    second; `overall`, the root of their product. The judge is asked the same for all three."""
    consistency: ClassVar[Sequence[Scale]]
    """The scales of the first question."""

    def expected(self, words: float) -> Expected:
        """Two calls for an image."""
        return Expected(2, 1)

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for the judge."""
        release = self.released(VieScoreRelease)
        return self.asking(*self.templates) if release is None else {"wording": release.digest, "seed": self.seed}

    @abstractmethod
    def asked(self, prompt: str) -> Sequence[Asked]:
        """The two questions."""

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """One verdict of two replies, in our words or a release's."""
        release = self.released(VieScoreRelease)
        if release is not None:
            return Verdict(*(yield from release.inspect(prompt, self.seed)))
        return (yield from self.verdicts(self.asked(parsing.one_line(prompt))))

    def scoring(self) -> dict[str, Any]:
        return {} if self.part == "overall" else {"part": self.part}

    def score(self, evidence: Evidence) -> Scored:
        """The root of the least rating of consistency times the least of quality, or one of the two, in [0, 10]."""
        ratings = ratings_of(evidence.row)
        scored = parts_of(values(ratings), self.consistency)[self.part]
        return Scored(scored, ratings=ratings, rationale=evidence.row["rationale"])


def parts_of(rated: Mapping[str, float], consistency_scales: Sequence[Scale]) -> dict[Part, float]:
    """min SC, min PQ and sqrt(min SC x min PQ)."""
    consistency, quality = (min(rated[scale.name] for scale in scales) for scales in (consistency_scales, QUALITY))
    return {"consistency": consistency, "quality": quality, "overall": math.sqrt(consistency * quality)}


@dataclass(frozen=True, kw_only=True, slots=True)
class VieScoreConfig(TwoQuestionsConfig):
    """Who looks at the images."""

    kind: Literal["viescore"] = "viescore"
    story: ClassVar[str] = (
        "lets a model that sees the image rate how well it follows the prompt and how well it is made, and takes the "
        "root of the product"
    )
    consistency = CONSISTENCY

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (VieScoreRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return SEMANTIC, PERCEPTUAL

    def asked(self, prompt: str) -> Sequence[Asked]:
        """The second question is about the image whatever its prompt."""
        semantic = fill(self.template_text(SEMANTIC), prompt=prompt)
        return Asked(semantic, CONSISTENCY), Asked(self.template_text(PERCEPTUAL), QUALITY)


@dataclass(frozen=True, kw_only=True, slots=True)
class VieScoreEditConfig(TwoQuestionsConfig):
    """Who looks at the edited images and their sources."""

    kind: Literal["viescore_edit"] = "viescore_edit"
    story: ClassVar[str] = (
        "lets a model that sees the source and the edited image rate whether the edit does what the instruction says "
        "and nothing else, and how well the edited image is made, and takes the root of the product"
    )
    views: ClassVar[tuple[View, ...]] = ("edit", "result")
    consistency = EDITING

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return VieScoreEditRelease, GEditRelease

    @property
    def templates(self) -> tuple[str, ...]:
        return EDIT, PERCEPTUAL

    def asked(self, prompt: str) -> Sequence[Asked]:
        """The first question is about the source and the edited image, the second about the edited image alone."""
        edit = fill(self.template_text(EDIT), instruction=prompt)
        return Asked(edit, EDITING), Asked(self.template_text(PERCEPTUAL), QUALITY, view=1)

"""VIEScore: a model that sees the image rates semantic consistency and perceptual quality (Ku et al. 2024)."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Scored, Verdict
from plumbline.operators.metrics.judges.judge import (
    InspectedConfig,
    JudgeQuestion,
    Scale,
    fill,
    ratings_by_name,
    read_ratings,
)
from plumbline.operators.metrics.metric import Evidence, ScoreRange
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.wordings.viescore import VieScoreRelease
from plumbline.operators.metrics.writing import Writing, WrittenQuestion

SEMANTIC, PERCEPTUAL = "viescore_semantic", "viescore_perceptual"
CONSISTENCY = (Scale("semantic_consistency", 0, 10),)
QUALITY = (Scale("naturalness", 0, 10), Scale("artifacts", 0, 10))
Part = Literal["overall", "consistency", "quality"]


@dataclass(frozen=True, kw_only=True)
class TwoQuestionsConfig(InspectedConfig):
    """A judge that rates consistency with the prompt, and the quality of the image."""

    calls_per_image: ClassVar[int] = 2
    score_range: ClassVar[ScoreRange] = (0.0, 10.0)
    part: Part = "overall"
    """The number that is the score: `consistency`, the lowest rating of the first question; `quality`, the lowest of
    the second; `overall`, the root of their product. The judge gets the same questions for all three."""
    consistency: ClassVar[Sequence[Scale]]
    """Scales of the first question."""

    @abstractmethod
    def judge_questions(self, prompt: str) -> Sequence[JudgeQuestion]: ...

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """Ask for one verdict in two replies, in our wording or a release's."""
        release = self.released(VieScoreRelease)
        if release is not None:
            return (yield from release.inspect(prompt, self.seed))
        return (yield from self.verdicts(self.judge_questions(parsing.one_line(prompt))))

    def scoring(self) -> dict[str, Any]:
        return {} if self.part == "overall" else {"part": self.part}

    def score(self, evidence: Evidence) -> Scored:
        """Return the part that is the score, in [0, 10]."""
        ratings = read_ratings(evidence.row)
        scored = compute_parts(ratings_by_name(ratings), self.consistency)[self.part]
        return Scored(scored, ratings=ratings, rationale=evidence.row["rationale"])


def compute_parts(rated: Mapping[str, float], consistency_scales: Sequence[Scale]) -> dict[Part, float]:
    """Return min SC, min PQ and sqrt(min SC x min PQ)."""
    consistency, quality = (min(rated[scale.name] for scale in scales) for scales in (consistency_scales, QUALITY))
    return {"consistency": consistency, "quality": quality, "overall": math.sqrt(consistency * quality)}


@dataclass(frozen=True, kw_only=True, slots=True)
class VieScoreConfig(TwoQuestionsConfig):
    """Options of VIEScore for images made from a prompt."""

    kind: Literal["viescore"] = "viescore"
    story: ClassVar[str] = (
        "lets a model that sees the image rate how well it follows the prompt and how well it is made, and takes the "
        "root of the product"
    )
    consistency = CONSISTENCY
    releases: ClassVar[tuple[type[Release], ...]] = (VieScoreRelease,)
    templates: ClassVar[tuple[str, ...]] = (SEMANTIC, PERCEPTUAL)

    def judge_questions(self, prompt: str) -> Sequence[JudgeQuestion]:
        """Return the two questions; the second one is about the image alone."""
        semantic = fill(self.template_text(SEMANTIC), prompt=prompt)
        return JudgeQuestion(semantic, CONSISTENCY), JudgeQuestion(self.template_text(PERCEPTUAL), QUALITY)

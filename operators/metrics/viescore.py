"""VIEScore: a model that sees rates semantic consistency and perceptual quality (Ku et al. 2024)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.judged import AGAIN, InspectedConfig, Scale, Verdict, fill, ratings_of, values
from plumbline.operators.metrics.metric import Evidence, Expected
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.wordings.viescore import VieScoreRelease
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion, read_each

SEMANTIC, PERCEPTUAL = "viescore_semantic", "viescore_perceptual"
CONSISTENCY = (Scale("semantic_consistency", 0, 10),)
QUALITY = (Scale("naturalness", 0, 10), Scale("artifacts", 0, 10))


@dataclass(frozen=True, kw_only=True, slots=True)
class VieScoreConfig(InspectedConfig):
    """Who looks at the images."""

    kind: Literal["viescore"] = "viescore"
    story: ClassVar[str] = (
        "lets a model that sees the image rate how well it follows the prompt and how well it is made, and takes the "
        "root of the product"
    )

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (VieScoreRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return SEMANTIC, PERCEPTUAL

    def expected(self, words: float) -> Expected:
        """Two calls for an image."""
        return Expected(2, 1)

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for the judge."""
        release = self.released(VieScoreRelease)
        return self.asking(*self.templates) if release is None else {"wording": release.digest, "seed": self.seed}

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """One verdict of two replies: the second is about the image alone."""
        release = self.released(VieScoreRelease)
        if release is not None:
            return Verdict(*(yield from release.inspect(prompt, self.seed)))
        semantic = fill(self.template_text(SEMANTIC), prompt=parsing.one_line(prompt))
        asked = (semantic, CONSISTENCY), (self.template_text(PERCEPTUAL), QUALITY)
        requests = [self.verdict_request(text, scales) for text, scales in asked]
        readers = [self.verdict_reader(scales) for _, scales in asked]
        verdicts = yield from read_each(requests, readers, again=AGAIN)
        for verdict in verdicts:
            if isinstance(verdict, UnreadableReply):
                raise verdict
        read = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
        rationale = " ".join(verdict.rationale for verdict in read if verdict.rationale)
        return Verdict(tuple(rating for verdict in read for rating in verdict.ratings), rationale)

    def score(self, evidence: Evidence) -> Scored:
        """The root of the least rating of consistency times the least of quality, in [0, 10]."""
        ratings = ratings_of(evidence.row)
        return Scored(score_of(values(ratings)), ratings=ratings, rationale=evidence.row["rationale"])


def score_of(rated: Mapping[str, float]) -> float:
    """sqrt(min SC x min PQ)."""
    consistency, quality = (min(rated[scale.name] for scale in scales) for scales in (CONSISTENCY, QUALITY))
    return math.sqrt(consistency * quality)

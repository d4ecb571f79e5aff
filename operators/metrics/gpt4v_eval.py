"""GPT4V-Eval: a model that sees gives image and prompt one rating (Zhang et al. 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.judged import InspectedConfig, Scale, Verdict, fill, ratings_of
from plumbline.operators.metrics.metric import Evidence, Expected, ScoreRange
from plumbline.operators.metrics.writing import Writing, WrittenQuestion

SCALES = (Scale("rating", 0, 100),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpt4vEvalConfig(InspectedConfig):
    """Who looks at the images."""

    kind: Literal["gpt4v_eval"] = "gpt4v_eval"
    story: ClassVar[str] = "lets a model that sees the image rate from 0 to 100 how well it fits the prompt"

    score_range: ClassVar[ScoreRange] = (0.0, 100.0)

    @property
    def templates(self) -> tuple[str, ...]:
        return ("gpt4v_eval",)

    def expected(self, words: float) -> Expected:
        """A call for an image."""
        return Expected(1, 1)

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for the judge."""
        return self.asking(*self.templates)

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """One verdict on an image."""
        asked = fill(self.template_text("gpt4v_eval"), prompt=parsing.one_line(prompt))
        return (yield from self.verdict(asked, SCALES))

    def score(self, evidence: Evidence) -> Scored:
        """The rating, from 0 to 100."""
        (rating,) = ratings = ratings_of(evidence.row)
        return Scored(rating.value, ratings=ratings, rationale=evidence.row["rationale"])

"""LLMScore: a language model compares the prompt with a description of the image (Lu et al. 2023, llmscore.txt)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Scored, Verdict
from plumbline.operators.metrics.judges.descriptions import DESCRIBE, DescribedConfig
from plumbline.operators.metrics.judges.judge import (
    JudgedConfig,
    Scale,
    accept_all,
    fill,
    ratings_by_name,
    read_ratings,
)
from plumbline.operators.metrics.metric import SHARES, CallEstimate, Evidence, ScoreRange
from plumbline.operators.metrics.wordings.llmscore import MAX_ERRORS, LlmScoreRelease
from plumbline.operators.metrics.writing import UnreadableReply, Writing

Variant = Literal["overall", "error_counting", "errors", "rule_enhanced"]

JUDGE = "llmscore_judge"
DEFAULT_SCALE = 100
MAX_COUNT = 99
MAX_COUNTED_ERRORS = 9
SCALES: Mapping[Variant, tuple[Scale, ...]] = {
    "overall": (Scale("rating", 1, DEFAULT_SCALE),),
    "error_counting": (Scale("errors", 0, MAX_COUNTED_ERRORS),),
    "errors": (Scale("errors", 0, MAX_ERRORS),),
    "rule_enhanced": (
        Scale("objects", 1, MAX_COUNT),
        Scale("objects_matched", 0, MAX_COUNT),
        Scale("attributes", 0, MAX_COUNT),
        Scale("attributes_matched", 0, MAX_COUNT),
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class LlmScoreConfig(DescribedConfig, JudgedConfig):
    """Options of LLMScore."""

    kind: Literal["llmscore"] = "llmscore"
    story: ClassVar[str] = (
        "lets models caption the image and its parts, a language model make one description of that, and a judge "
        "that reads description and prompt rate how well they fit"
    )
    judge: str = "judge"
    """Role of the language model that compares descriptions with prompts."""
    variant: Variant = "overall"
    """`overall`: a rating of 1 to `scale`, divided by it; `error_counting`: 1 - n / 9 of n errors, 0 from 9 on, as in
    the paper's figure 4; `errors`: n itself, so that a lower score is better; `rule_enhanced`: (X2 / X1) / 2 +
    (Y2 / Y1) / 2 of four counts (3.2)."""
    scale: Positive = DEFAULT_SCALE
    """Highest overall rating, the paper's N (3.2)."""

    def __post_init__(self) -> None:
        JudgedConfig.__post_init__(self)
        if self.scale != DEFAULT_SCALE and (self.variant != "overall" or self.scale < 2):
            raise ConfigError(
                f"{self.key_of('scale')}: expected 2 or more, for the variant overall alone, got {self.scale} for "
                f"{self.variant}; leave it at {DEFAULT_SCALE}"
            )

    @property
    def prefers_lower(self) -> bool:
        return self.variant == "errors"

    @property
    def score_range(self) -> ScoreRange:
        return (0.0, float(MAX_ERRORS)) if self.variant == "errors" else SHARES

    @property
    def chain(self) -> tuple[str, ...]:
        return (*self.description_chain, "verdicts", "scores")

    @property
    def roles(self) -> dict[str, str]:
        return {**self.description_roles, "judge": self.judge}

    @property
    def templates(self) -> tuple[str, ...]:
        return DESCRIBE, JUDGE, self._task

    @property
    def _task(self) -> str:
        return f"llmscore_{self.variant}" + ("" if self.scale == DEFAULT_SCALE else "_n")

    def estimate_calls(self, words: float) -> CallEstimate:
        """Return one verdict per image; captions, regions and descriptions are calls of their own stages."""
        return CallEstimate(1, 1)

    def judging(self) -> dict[str, Any]:
        """Return everything that decides a verdict, except the description and the judge."""
        release = self.released(LlmScoreRelease)
        if release is not None:
            options = {"variant": self.variant, "wording": release.digest, **self.sampling._asdict()}
            return options if self.variant == "rule_enhanced" else {**options, "max_errors": MAX_ERRORS}
        return {**self.scoring(), **self.asking(JUDGE, self._task)}

    def judge_description(self, prompt: str, description: str) -> Writing[Verdict]:
        release = self.released(LlmScoreRelease)
        if release is not None:
            by_rule = self.variant == "rule_enhanced"
            return (yield from release.judge(prompt, description, by_rule=by_rule, sampling=self.sampling))
        judged = fill(self.template_text(JUDGE), prompt=parsing.one_line(prompt), description=description)
        check = require_counts if self.variant == "rule_enhanced" else accept_all
        scales = (Scale("rating", 1, self.scale),) if self.variant == "overall" else SCALES[self.variant]
        task = fill(self.template_text(self._task), scale=str(self.scale))
        return (yield from self.verdict(judged + task, scales, check))

    def scoring(self) -> dict[str, Any]:
        """Return the options that decide the score; the default scale is left out."""
        return {"variant": self.variant} | ({} if self.scale == DEFAULT_SCALE else {"scale": self.scale})

    def score(self, evidence: Evidence) -> Scored:
        """Return the score with the judge's rationale; lower is better if the variant is `errors`."""
        ratings = read_ratings(evidence.row)
        score = compute_score(self.variant, ratings_by_name(ratings), self.scale)
        return Scored(score, ratings=ratings, rationale=evidence.row["rationale"])


def require_counts(rated: Mapping[str, float]) -> None:
    """Raise UnreadableReply if more objects or attributes are matched than counted."""
    for name in ("objects", "attributes"):
        if rated[f"{name}_matched"] > rated[name]:
            raise UnreadableReply(f"{name}_matched, {rated[f'{name}_matched']:g}, is more than {name}, {rated[name]:g}")


def compute_score(variant: Variant, rated: Mapping[str, float], scale: int = DEFAULT_SCALE) -> float:
    """Return a variant's score from its ratings.

    For a prompt without attributes, which the paper does not mention, the rule counts objects alone.
    """
    if variant == "overall":
        return rated["rating"] / scale
    if variant == "error_counting":
        return 1 - min(rated["errors"], MAX_COUNTED_ERRORS) / MAX_COUNTED_ERRORS
    if variant == "errors":
        return rated["errors"]
    objects = rated["objects_matched"] / rated["objects"]
    return (objects + rated["attributes_matched"] / rated["attributes"]) / 2 if rated["attributes"] else objects

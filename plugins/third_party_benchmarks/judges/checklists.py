"""Checklists whose questions have a difficulty or a weight: BizGenEval and the QA part of WeGenBench.

A judge answers each question with yes or no. The name of a rating is the question's kind, which contains the difficulty
or the weight (question_packs/graded.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.judges.judge import read_ratings
from plumbline.operators.metrics.metric import CallEstimate, Evidence, Rating, Scored, Verdict
from plumbline.operators.metrics.wording import Release
from plumbline.operators.metrics.writing import Writing, WrittenQuestion
from plumbline.plugins.third_party_benchmarks.judges.rubric import RubricConfig
from plumbline.plugins.third_party_benchmarks.wordings.checklists import (
    BizGenEvalRelease,
    ChecklistRelease,
    WeGenBenchRelease,
)

PENALTY = 0.1
"""Points that BizGenEval takes off for each of 20 questions not answered yes; for each of 10, twice as many."""
MEAN_QUESTIONS = 9
"""Mean number of WeGenBench's questions about a prompt: 8.4 in English and 9.5 in Chinese."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChecklistConfig(RubricConfig):
    """Base class of metrics whose judge answers each question of a benchmark with yes (1) or no (0)."""

    rubric: Literal["checkpoints"] = "checkpoints"

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """Ask for an answer to each question; the ratings are 1 and 0, by kind."""
        release = self.find_release(ChecklistRelease)  # type: ignore[type-abstract]
        if release is not None:
            verdict = yield from release.request_verdict(questions, self.seed)
        else:
            numbered = [one._replace(kind=f"question {number}") for number, one in enumerate(questions, start=1)]
            verdict = yield from RubricConfig.inspect(self, prompt, numbered)
        named = zip(questions, verdict.ratings, strict=True)
        return verdict._replace(ratings=tuple(Rating(one.kind or one.text, rating.value) for one, rating in named))


@dataclass(frozen=True, kw_only=True, slots=True)
class BizGenEvalConfig(ChecklistConfig):
    """Options for BizGenEval."""

    kind: Literal["bizgeneval"] = "bizgeneval"  # type: ignore[assignment]
    part: Literal["overall", "easy", "hard"] = "overall"
    """Questions that count: all, the easy ones or the hard ones. The judge is asked the same questions."""

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (BizGenEvalRelease,)

    def list_score_options(self) -> dict[str, Any]:
        return {"part": self.part}

    def score(self, evidence: Evidence) -> Scored:
        """Return 1 less 0.1 for each wrong answer, but at least 0; easy and hard questions cost 0.2 on their own."""
        ratings = read_ratings(evidence.row)
        counted = [one for one in ratings if self.part == "overall" or f" - {self.part} " in one.name]
        if not counted:
            message = f"the prompt has no {self.part} questions; use the questions of benchmark=bizgeneval"
            return Scored(None, error=RowError("no_questions", message))
        penalty = PENALTY if self.part == "overall" else 2 * PENALTY
        wrong = sum(one.value != 1 for one in counted)
        return Scored(max(0.0, 1 - penalty * wrong), ratings=ratings, rationale=evidence.row["rationale"])


@dataclass(frozen=True, kw_only=True, slots=True)
class WeGenBenchConfig(ChecklistConfig):
    """Options for the QA part of WeGenBench."""

    kind: Literal["wegenbench_qa"] = "wegenbench_qa"  # type: ignore[assignment]

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (WeGenBenchRelease,)

    def estimate_calls(self, words: float) -> CallEstimate:
        """Return one call per image or, in the release's wording, one per question."""
        return CallEstimate(1 if self.find_release(WeGenBenchRelease) is None else MEAN_QUESTIONS, 1)

    def score(self, evidence: Evidence) -> Scored:
        """Return the mean of the answers, weighted by the questions' weights."""
        ratings = read_ratings(evidence.row)
        weights = [_read_weight(one.name) for one in ratings]
        if not all(weights):
            message = "a question has no weight; use the questions of benchmark=wegenbench or wegenbench_cn"
            return Scored(None, error=RowError("no_questions", message))
        earned = math.fsum(weight * one.value for weight, one in zip(weights, ratings, strict=True))
        return Scored(earned / sum(weights), ratings=ratings, rationale=evidence.row["rationale"])


def _read_weight(name: str) -> int:
    """Return the weight in the name of a rating, 6 in `color 6 4`; 0 if the name lacks one."""
    *_, weight, _ = ("", "", *name.split())
    return int(weight) if weight.isdecimal() else 0

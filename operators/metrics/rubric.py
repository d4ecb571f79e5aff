"""What a benchmark ships for a judge: an explanation of each prompt, or checkpoints that an image meets or does not."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.judged import InspectedConfig, Scale, Verdict, fill, ratings_of
from plumbline.operators.metrics.metric import SHARES, Evidence, Expected, ScoreRange
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.wordings.unigenbench import UniGenBenchRelease
from plumbline.operators.metrics.wordings.wise import WiseRelease
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion

KNOWLEDGE, CHECKPOINTS, MEANINGS = "rubric_knowledge", "rubric_checkpoints", "rubric_meanings"
"""Templates; the last has what checkpoints mean, a line for each."""
"""What the checkpoints of UniGenBench++ are, by their English names; its Chinese ones are asked by name alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RubricConfig(InspectedConfig):
    """Who judges the images, and by what of the benchmark."""

    kind: Literal["rubric"] = "rubric"
    story: ClassVar[str] = "lets a model that sees the image judge it by what the benchmark says that it must show"
    chain: ClassVar[tuple[str, ...]] = ("questions", "inspections", "scores")
    scored_from: ClassVar[tuple[str, ...]] = ("inspections",)
    score_range: ClassVar[ScoreRange] = SHARES
    rubric: Literal["knowledge", "checkpoints"]
    """`knowledge`: 1 or 0 by the explanation of the prompt (WISE_Verified); `checkpoints`: 1 or 0 for each checkpoint
    (UniGenBench++), of which the score is the mean."""

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (WiseRelease,) if self.rubric == "knowledge" else (UniGenBenchRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return (KNOWLEDGE,) if self.rubric == "knowledge" else (CHECKPOINTS, MEANINGS)

    def expected(self, words: float) -> Expected:
        """A call for an image."""
        return Expected(1, 1)

    def refusal_of_pack(self, choices: Collection[int]) -> str | None:
        """A judge is not given choices."""
        return "a judge needs explanations or checkpoints, and these have choices" if set(choices) - {0} else None

    def asking(self, *templates: str) -> dict[str, Any]:
        """All that decides verdicts by these templates; nothing of the questions, which are the pack's."""
        return InspectedConfig.asking(self, *templates) if templates else {}

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for the judge."""
        release = self.released(WiseRelease) or self.released(UniGenBenchRelease)
        return self.asking(*self.templates) if release is None else {"wording": release.digest, "seed": self.seed}

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict]:
        """One verdict on an image, by what the benchmark has about its prompt."""
        text = parsing.one_line(prompt)
        wise = self.released(WiseRelease)
        if wise is not None:
            return Verdict(*(yield from wise.inspect(prompt, " ".join(each.text for each in questions), self.seed)))
        if self.rubric == "knowledge":
            reference = " ".join(parsing.one_line(question.text) for question in questions)
            told, scales = fill(self.template_text(KNOWLEDGE), prompt=text, reference=reference), [Scale("score", 0, 1)]
            return (yield from self.verdict(told, scales, require_whole))
        meanings = read_meanings(self.template_text(MEANINGS))
        release = self.released(UniGenBenchRelease)
        if release is not None:
            return Verdict(*(yield from release.inspect(prompt, questions, self.seed)))
        listed = "\n".join(_listed(question, meanings) for question in questions)
        scales = [Scale(question.kind or question.text, 0, 1) for question in questions]
        told = fill(self.template_text(CHECKPOINTS), prompt=text, checkpoints=listed)
        return (yield from self.verdict(told, scales, require_whole))

    def score(self, evidence: Evidence) -> Scored:
        """The mean of the ratings, which are 0 or 1."""
        ratings = ratings_of(evidence.row)
        mean = math.fsum(rating.value for rating in ratings) / len(ratings)
        return Scored(mean, ratings=ratings, rationale=evidence.row["rationale"])


def require_whole(rated: Mapping[str, float]) -> None:
    """Raises UnreadableReply for what is neither 0 nor 1."""
    for name, value in rated.items():
        if value not in (0, 1):
            raise UnreadableReply(f"expected 0 or 1 for {name!r}, found {value:g}")


def read_meanings(listed: str) -> dict[str, str]:
    """What checkpoints mean, by name."""
    return dict(line.split(": ", 1) for line in listed.splitlines() if ": " in line)


def _listed(checkpoint: WrittenQuestion, meanings: Mapping[str, str]) -> str:
    """A checkpoint's name, what that means where it is known, and what the prompt has of it."""
    name = checkpoint.kind or "Checkpoint"
    meaning = meanings.get(name.rstrip(" 0123456789"))
    return f"- {name}{f' ({meaning})' if meaning else ''}: {parsing.one_line(checkpoint.text)}"

"""Qwen-Image-Bench: a judge that thinks rates up to 56 facets of an image in five dimensions (Li et al. 2026)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Rating, Scored
from plumbline.operators.metrics.judged import Asked, InspectedConfig, Scale, Verdict, fill, ratings_of
from plumbline.operators.metrics.metric import Evidence, Expected, ScoreRange
from plumbline.operators.metrics.wordings.qwen_image_bench import QwenImageBenchRelease
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion

INSPECT, FACETS = "qwen_image_bench", "qwen_image_bench_facets"
POINTS = {0: 0.0, 1: 60.0, 2: 100.0}
"""What the judge's marks count."""
BETWEEN = ": "
"""Between dimension, capability and facet in the name of a rating."""
NOTHING_APPLIES = RowError(
    "no_questions", "the judge says of every facet that it does not apply; look at the prompt and its dimensions"
)


class Dimension(NamedTuple):
    """One of the five dimensions."""

    key: str
    """Its first part of the ratings' names."""
    name: str
    """As the benchmark has it in a prompt's skills: `Real-world Fidelity / Fairness / Social Bias`."""
    facets: Mapping[str, str]
    """By capability and facet, what it asks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QwenImageBenchConfig(InspectedConfig):
    """Who looks at the images."""

    kind: Literal["qwen_image_bench"] = "qwen_image_bench"
    story: ClassVar[str] = (
        "lets a model that sees the image mark up to 56 facets of quality, aesthetics, alignment, fidelity to the "
        "real world and creativity as failed, passed or excellent, and averages them in three steps"
    )
    by_skills: ClassVar[bool] = True
    score_range: ClassVar[ScoreRange] = (0.0, 100.0)
    max_tokens: Positive = 4096
    """Tokens after which a verdict on one dimension is cut."""

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return (QwenImageBenchRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return INSPECT, FACETS

    def expected(self, words: float) -> Expected:
        """Up to five calls for an image."""
        return Expected(5, 1)

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for the judge."""
        release = self.released(QwenImageBenchRelease)
        return self.asking(*self.templates) if release is None else {"wording": release.digest, "seed": self.seed}

    def inspect(
        self, prompt: str, questions: Sequence[WrittenQuestion] = (), skills: Sequence[str] = ()
    ) -> Writing[Verdict]:
        """The marks, 0, 1 or 2, of the facets that apply, in the dimensions of the prompt; in all where it has none."""
        dimensions = read_dimensions(self.template_text(FACETS))
        wanted = {skill.partition("/")[0].strip() for skill in skills}
        asked = [dimension for dimension in dimensions if dimension.name in wanted] or dimensions
        release = self.released(QwenImageBenchRelease)
        if release is not None:
            marked = yield from release.inspect(prompt, [(one.key, one.name) for one in asked], self.seed)
            return Verdict(tuple(Rating(BETWEEN.join(names), mark) for *names, mark in marked), "")
        questions_put = [self._about(dimension, parsing.one_line(prompt)) for dimension in asked]
        return (yield from self.verdicts(questions_put, require_marks))

    def _about(self, dimension: Dimension, prompt: str) -> Asked:
        names = {facet: BETWEEN.join((dimension.key, facet)) for facet in dimension.facets}
        listed = "\n".join(f"- {names[facet]}: {meaning}" for facet, meaning in dimension.facets.items())
        text = fill(self.template_text(INSPECT), dimension=dimension.name, prompt=prompt, facets=listed)
        return Asked(text, [Scale(name, 0, 2, optional=True) for name in names.values()])

    def scoring(self) -> dict[str, Any]:
        return {}

    def score(self, evidence: Evidence) -> Scored:
        """The mean of the dimensions, from 0 to 100; each is the mean of its capabilities, and these of their facets.

        The ratings are those of dimensions and capabilities.
        """
        points: dict[tuple[str, str], list[float]] = {}
        for rating in ratings_of(evidence.row):
            key, capability, _ = rating.name.split(BETWEEN, 2)
            points.setdefault((key, capability), []).append(POINTS[int(rating.value)])
        if not points:
            return Scored(None, error=NOTHING_APPLIES)
        of_capabilities = {names: _mean(facets) for names, facets in points.items()}
        dimensions: dict[str, list[float]] = {}
        for (key, _), mean in of_capabilities.items():
            dimensions.setdefault(key, []).append(mean)
        of_dimensions = {key: _mean(means) for key, means in dimensions.items()}
        named = {**of_dimensions, **{BETWEEN.join(names): mean for names, mean in of_capabilities.items()}}
        ratings = tuple(Rating(name, mean) for name, mean in named.items())
        return Scored(_mean(of_dimensions.values()), ratings=ratings, rationale=evidence.row["rationale"])


def require_marks(rated: Mapping[str, float]) -> None:
    """Raises UnreadableReply for what is between the marks."""
    for name, value in rated.items():
        if value not in POINTS:
            raise UnreadableReply(f"expected 0, 1 or 2 for {name!r}, found {value:g}")


def _mean(numbers: Iterable[float]) -> float:
    listed = list(numbers)
    return math.fsum(listed) / len(listed)


def read_dimensions(text: str) -> list[Dimension]:
    """The dimensions: of each block the first line has key and name, the others capability, facet and its meaning."""
    return [_dimension(*block.splitlines()) for block in text.strip().split("\n\n")]


def _dimension(head: str, *lines: str) -> Dimension:
    key, name = head.split(BETWEEN, 1)
    parts = [line.split(BETWEEN, 2) for line in lines]
    return Dimension(key, name, {BETWEEN.join(names): meaning for *names, meaning in parts})

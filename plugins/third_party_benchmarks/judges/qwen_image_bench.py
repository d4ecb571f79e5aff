"""Qwen-Image-Bench: a reasoning judge rates up to 56 facets of an image in five dimensions (Li et al. 2026)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.judges.judge import (
    InspectionMetricConfig,
    JudgeQuestion,
    Scale,
    fill_template,
    read_ratings,
)
from plumbline.operators.metrics.metric import Evidence, Rating, Scored, ScoreRange, Verdict
from plumbline.operators.metrics.wording import Release
from plumbline.operators.metrics.writing import UnreadableReply, Writing, WrittenQuestion
from plumbline.plugins.third_party_benchmarks.wordings.qwen_image_bench import QwenImageBenchRelease

INSPECT_TEMPLATE_NAME, FACETS_TEMPLATE_NAME = "qwen_image_bench", "qwen_image_bench_facets"
POINTS_BY_MARK = {0: 0.0, 1: 60.0, 2: 100.0}
"""Points for each mark that the judge can give."""
NAME_SEPARATOR = ": "
"""Separator between dimension, capability and facet in the name of a rating."""
NOTHING_APPLIES_ERROR = RowError(
    "no_questions", "the judge marked every facet as not applicable; check the prompt and its dimensions"
)


class Dimension(NamedTuple):
    """One of Qwen-Image-Bench's five dimensions of image quality."""

    key: str
    """First part of the names of the dimension's ratings."""
    name: str
    """Name used in the skills of the benchmark's prompts, such as `Real-world Fidelity / Fairness / Social Bias`."""
    facets: Mapping[str, str]
    """Description of each facet, by `CAPABILITY: FACET`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QwenImageBenchConfig(InspectionMetricConfig):
    """Options for Qwen-Image-Bench."""

    kind: Literal["qwen_image_bench"] = "qwen_image_bench"
    calls_per_image: ClassVar[int] = 5
    story: ClassVar[str] = (
        "shows the image to a model, which marks up to 56 facets of five aspects as failed, passed or excellent, and "
        "takes means in three steps"
    )
    uses_skills: ClassVar[bool] = True
    score_range: ClassVar[ScoreRange] = (0.0, 100.0)
    max_tokens: Positive = 4096
    """Maximum number of tokens in the verdict on one dimension."""
    releases: ClassVar[tuple[type[Release], ...]] = (QwenImageBenchRelease,)
    templates: ClassVar[tuple[str, ...]] = (INSPECT_TEMPLATE_NAME, FACETS_TEMPLATE_NAME)

    def inspect(
        self, prompt: str, questions: Sequence[WrittenQuestion] = (), skills: Sequence[str] = ()
    ) -> Writing[Verdict]:
        """Ask for a mark of 0, 1 or 2 for each applicable facet.

        The skills name the prompt's dimensions. If they name none, all dimensions are judged.
        """
        dimensions = read_dimensions(self.get_template_text(FACETS_TEMPLATE_NAME))
        wanted = {skill.partition("/")[0].strip() for skill in skills}
        dimensions = [dimension for dimension in dimensions if dimension.name in wanted] or dimensions
        release = self.find_release(QwenImageBenchRelease)
        if release is not None:
            marked = yield from release.request_marks(prompt, [(one.key, one.name) for one in dimensions], self.seed)
            return Verdict(tuple(Rating(NAME_SEPARATOR.join(names), mark) for *names, mark in marked), "")
        asked = [self._make_question(dimension, parsing.collapse_spaces(prompt)) for dimension in dimensions]
        return (yield from self.request_combined_verdict(asked, require_marks))

    def _make_question(self, dimension: Dimension, prompt: str) -> JudgeQuestion:
        names = {facet: NAME_SEPARATOR.join((dimension.key, facet)) for facet in dimension.facets}
        listed = "\n".join(f"- {names[facet]}: {meaning}" for facet, meaning in dimension.facets.items())
        text = fill_template(
            self.get_template_text(INSPECT_TEMPLATE_NAME), dimension=dimension.name, prompt=prompt, facets=listed
        )
        return JudgeQuestion(text, [Scale(name, 0, 2, optional=True) for name in names.values()])

    def score(self, evidence: Evidence) -> Scored:
        """Return the mean of the dimensions, from 0 to 100.

        A dimension is the mean of its capabilities, and a capability is the mean of its facets. The result also has a
        rating for each dimension and capability.
        """
        points: dict[tuple[str, str], list[float]] = {}
        for rating in read_ratings(evidence.row):
            key, capability, _ = rating.name.split(NAME_SEPARATOR, 2)
            points.setdefault((key, capability), []).append(POINTS_BY_MARK[int(rating.value)])
        if not points:
            return Scored(None, error=NOTHING_APPLIES_ERROR)
        of_capabilities = {names: _compute_mean(facets) for names, facets in points.items()}
        dimensions: dict[str, list[float]] = {}
        for (key, _), mean in of_capabilities.items():
            dimensions.setdefault(key, []).append(mean)
        of_dimensions = {key: _compute_mean(means) for key, means in dimensions.items()}
        named = {**of_dimensions, **{NAME_SEPARATOR.join(names): mean for names, mean in of_capabilities.items()}}
        ratings = tuple(Rating(name, mean) for name, mean in named.items())
        return Scored(_compute_mean(of_dimensions.values()), ratings=ratings, rationale=evidence.row["rationale"])


def require_marks(rated: Mapping[str, float]) -> None:
    """Raise UnreadableReply if a value is not a valid mark."""
    for name, value in rated.items():
        if value not in POINTS_BY_MARK:
            raise UnreadableReply(f"expected 0, 1 or 2 for {name!r}, found {value:g}")


def _compute_mean(numbers: Iterable[float]) -> float:
    listed = list(numbers)
    return math.fsum(listed) / len(listed)


def read_dimensions(text: str) -> list[Dimension]:
    """Return the dimensions that the text describes, one in each block.

    Blocks are separated by empty lines. The first line of a block contains the dimension's key and name. Each of its
    other lines contains a capability, a facet and the facet's meaning.
    """
    dimensions = []
    for block in text.strip().split("\n\n"):
        head, *lines = block.splitlines()
        key, name = head.split(NAME_SEPARATOR, 1)
        parts = [line.split(NAME_SEPARATOR, 2) for line in lines]
        dimensions.append(Dimension(key, name, {NAME_SEPARATOR.join(names): meaning for *names, meaning in parts}))
    return dimensions

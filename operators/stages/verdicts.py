"""The verdicts stage: a judge's verdict on the description of every image, beside its prompt."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

from plumbline.operators import schemas
from plumbline.operators.errors import RowError
from plumbline.operators.metrics.judged import Verdict
from plumbline.operators.metrics.writing import Writing
from plumbline.operators.stages.derived import DerivedStage, ImageMaterial
from plumbline.operators.stages.programs import Ran, generate, run_programs


@runtime_checkable
class JudgingMetric(Protocol):
    """A metric whose judge reads descriptions."""

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for what is judged and for the judge."""

    def judge_description(self, prompt: str, description: str) -> Writing[Verdict]:
        """The program that has one description judged."""


class VerdictsStage(DerivedStage):
    """Descriptions and prompts to verdicts (schema VERDICTS)."""

    name = "verdicts"
    version = 1
    schema = schemas.VERDICTS
    counted = "writer"
    needs = JudgingMetric
    calls: ClassVar = {"judge": "generate"}
    side_by_side = True

    @classmethod
    def reads(cls, metric: Any) -> tuple[str, ...]:
        return ("descriptions",)

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"kind": metric.kind, "asking": metric.judging()}

    def materials(
        self, metric: Any, read: Mapping[str, Mapping[str, Any]], text: str | RowError
    ) -> list[Any] | RowError:
        if isinstance(text, RowError):
            return text
        return [(text, description) for description in read["descriptions"]["descriptions"]]

    def make(self, wanted: Sequence[ImageMaterial]) -> Ran[Verdict]:
        programs = [self.metrics[one.metric].judge_description(*one.material) for one in wanted]
        return run_programs(programs, partial(generate, self.models["judge"]))

    def columns(self, made: Sequence[Verdict]) -> dict[str, Any]:
        return verdict_columns(made)


def verdict_columns(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The columns of VERDICTS that the verdicts on a row's images fill."""
    return {
        "verdicts": [
            {"ratings": [rating._asdict() for rating in verdict.ratings], "rationale": verdict.rationale}
            for verdict in verdicts
        ]
    }

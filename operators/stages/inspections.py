"""The inspections stage: a judge's verdict on every image, which it looks at beside its prompt."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from operators import rows
from operators.errors import RowError
from operators.metrics.judged import Verdict
from operators.metrics.metric import Metric
from operators.metrics.writing import Writing
from operators.stages.programs import Ran
from operators.stages.seeing import Encoded, SeeingStage, Seen, Shown, write_about
from operators.stages.stage import Inputs, StageOptions, remembered, text_of, texts_of
from operators.stages.verdicts import verdict_columns


@runtime_checkable
class InspectingMetric(Protocol):
    """A metric whose judge looks at images."""

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for the judge."""

    def inspect(self, prompt: str) -> Writing[Verdict]:
        """The program that has one image judged."""


class PromptTexts(NamedTuple):
    """The prompts by which images are judged."""

    prompts: Mapping[str, str]

    def text(self, prompt_id: str | None) -> str | RowError:
        return text_of(self.prompts, prompt_id)

    def basis(self, prompt_id: str | None) -> str | None:
        text = self.text(prompt_id)
        return rows.basis_of(text) if isinstance(text, str) else None


class InspectionsStage(SeeingStage):
    """Images and prompts to verdicts (schema VERDICTS)."""

    name = "inspections"
    version = 1
    schema = rows.VERDICTS
    needs = InspectingMetric
    calls: ClassVar = {"judge": "generate_from_images"}

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"kind": metric.kind, "asking": metric.judging()}

    @classmethod
    def calls_of_row(cls, metric: Metric, words: float) -> float:
        return metric.expected(words).calls

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self._texts = remembered(texts_of)

    def asked(self, inputs: Inputs) -> Mapping[str, PromptTexts]:
        return dict.fromkeys(inputs.metrics, PromptTexts(self._texts(inputs.prompts)))

    def say(self, encoded: Encoded, seen: Sequence[Seen]) -> Ran[Verdict]:
        return write_about(self.model, encoded, seen, [self._program(one) for one in seen])

    def _program(self, seen: Seen) -> Writing[Verdict | RowError]:
        """The metric's program; why there is none where the prompt cannot be had."""
        text = seen.asked.text(seen.row.prompt_id)
        if isinstance(text, RowError):
            return text
        metric: InspectingMetric = self.metrics[seen.metric]
        return (yield from metric.inspect(text))

    def columns(self, said: Sequence[Verdict], shown: Sequence[Shown]) -> dict[str, Any]:
        return verdict_columns(said)

"""The verdicts and inspections stages: a judge's verdict on an image, or on its description, beside its prompt."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.answered import incomplete
from plumbline.operators.metrics.judged import Verdict, Verdicts, ask_repeatedly
from plumbline.operators.metrics.metric import Metric, repeats_of
from plumbline.operators.metrics.writing import Writing, WrittenQuestion
from plumbline.operators.stages.derived import DerivedStage, ImageMaterial
from plumbline.operators.stages.programs import Ran, generate, run_programs
from plumbline.operators.stages.scores import WrittenIndex
from plumbline.operators.stages.seeing import Encoded, SeeingStage, Seen, Shown, write_about
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, remembered, skills_of, text_of, texts_of


@runtime_checkable
class JudgingMetric(Protocol):
    """A metric whose judge reads descriptions."""

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for what is judged and for the judge."""

    def judge_description(self, prompt: str, description: str) -> Writing[Verdict]:
        """The program that has one description judged."""


class JudgingStage(Stage):
    """A stage whose judge says each time that it is asked what it makes of an image."""

    schema = schemas.VERDICTS
    counted = "writer"

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        repeated = {"repeats": metric.repeats} if repeats_of(metric) > 1 else {}
        return {"kind": metric.kind, "asking": metric.judging(), **repeated}

    @classmethod
    def calls_of_row(cls, metric: Metric, words: float) -> float:
        return repeats_of(metric) * super().calls_of_row(metric, words)


class VerdictsStage(JudgingStage, DerivedStage):
    """Descriptions and prompts to verdicts (schema VERDICTS)."""

    name = "verdicts"
    version = 1
    needs = JudgingMetric
    calls: ClassVar = {"judge": "generate"}
    side_by_side = True

    @classmethod
    def reads(cls, metric: Any) -> tuple[str, ...]:
        return ("descriptions",)

    def materials(
        self, metric: Any, read: Mapping[str, Mapping[str, Any]], text: str | RowError
    ) -> list[Any] | RowError:
        if isinstance(text, RowError):
            return text
        return [(text, description) for description in read["descriptions"]["descriptions"]]

    def make(self, wanted: Sequence[ImageMaterial]) -> Ran[Verdicts]:
        return run_programs(list(map(self._program, wanted)), partial(generate, self.models["judge"]))

    def _program(self, wanted: ImageMaterial) -> Writing[Verdicts | RowError]:
        metric = self.metrics[wanted.metric]
        return ask_repeatedly(partial(metric.judge_description, *wanted.material), repeats_of(metric))

    def columns(self, made: Sequence[Verdicts]) -> dict[str, Any]:
        return verdict_columns(made)


def verdict_columns(images: Sequence[Verdicts]) -> dict[str, Any]:
    """The columns of VERDICTS that the verdicts on a row's images fill."""
    repeats = len(images[0])
    return {
        "verdicts": [verdict and _verdict_value(verdict) for image in images for verdict in image],
        "repeats": repeats if repeats > 1 else None,
    }


def _verdict_value(verdict: Verdict) -> dict[str, Any]:
    return {"ratings": [rating._asdict() for rating in verdict.ratings], "rationale": verdict.rationale}


@runtime_checkable
class InspectingMetric(Protocol):
    """A metric whose judge looks at images."""

    def judging(self) -> dict[str, Any]:
        """All that decides a verdict, but for the judge."""

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict | RowError]:
        """The program that has one image judged, by the questions about its prompt where the chain has them; a metric
        that goes `by_skills` takes the prompt's skills too.
        """


class JudgedPrompts(NamedTuple):
    """The prompts by which images are judged, with the questions about each, or its skills, where a metric goes by
    these.
    """

    prompts: Mapping[str, str]
    written: WrittenIndex | None = None
    skills: Mapping[str, Sequence[str]] | None = None

    def text(self, prompt_id: str | None) -> str | RowError:
        text = text_of(self.prompts, prompt_id)
        if isinstance(text, RowError) or self.written is None or prompt_id in self.written.questions:
            return text
        return self.written.errors.get(prompt_id or "") or incomplete("questions", f"lacks prompt {prompt_id!r}")

    def questions(self, prompt_id: str | None) -> Sequence[WrittenQuestion]:
        return self.written.questions.get(prompt_id or "", ()) if self.written is not None else ()

    def basis(self, prompt_id: str | None) -> str | None:
        text = self.text(prompt_id)
        ids = [question.question_id for question in self.questions(prompt_id)]
        skills = self.skills.get(prompt_id or "", ()) if self.skills is not None else ()
        return rows.basis_of(text, *ids, *skills) if isinstance(text, str) else None

    def told(self, prompt_id: str | None) -> dict[str, Any]:
        """What a metric is told beside the prompt's text."""
        skills = {} if self.skills is None else {"skills": self.skills.get(prompt_id or "", ())}
        return {"questions": self.questions(prompt_id), **skills}


class InspectionsStage(JudgingStage, SeeingStage):
    """Images and prompts to verdicts (schema VERDICTS)."""

    name = "inspections"
    version = 1
    needs = InspectingMetric
    calls: ClassVar = {"judge": "generate_from_images"}

    @classmethod
    def reads(cls, metric: Metric) -> tuple[str, ...]:
        return ("questions",) if "questions" in metric.chain else ()

    @classmethod
    def reads_skills(cls, metric: Any) -> bool:
        return bool(getattr(metric, "by_skills", False))

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self._texts = remembered(texts_of)
        self._skills = remembered(skills_of)
        self._written = remembered(lambda questions: WrittenIndex(questions.read(), None))

    def asked(self, inputs: Inputs) -> Mapping[str, JudgedPrompts]:
        texts = self._texts(inputs.prompts)
        asked = {name: inputs.upstream[name].get("questions") for name in inputs.metrics}
        skills = {name: self._skills(inputs.prompts) for name in asked if self.reads_skills(self.metrics[name])}
        return {
            name: JudgedPrompts(texts, self._written(read) if read else None, skills.get(name))
            for name, read in asked.items()
        }

    def say(self, encoded: Encoded, seen: Sequence[Seen]) -> Ran[Verdicts]:
        return write_about(self.model, encoded, seen, [self._program(one) for one in seen])

    def _program(self, seen: Seen) -> Writing[Verdicts | RowError]:
        """The metric's program, as often as it asks; why there is none where the prompt cannot be had."""
        text = seen.asked.text(seen.row.prompt_id)
        if isinstance(text, RowError):
            return text
        metric, told = self.metrics[seen.metric], seen.asked.told(seen.row.prompt_id)
        return (yield from ask_repeatedly(partial(metric.inspect, text, **told), repeats_of(metric)))

    def columns(self, said: Sequence[Verdicts], shown: Sequence[Shown]) -> dict[str, Any]:
        return verdict_columns(said)

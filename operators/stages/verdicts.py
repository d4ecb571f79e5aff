"""The verdicts and inspections stages: a judge's verdict on an image, or on its description, given its prompt."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.answered import Verdict, incomplete
from plumbline.operators.metrics.judges.judge import Verdicts, ask_repeatedly
from plumbline.operators.metrics.metric import Metric, repeats_of
from plumbline.operators.metrics.writing import Writing, WrittenQuestion
from plumbline.operators.stages.derived import DerivedStage, ImageMaterial
from plumbline.operators.stages.image_writing import (
    EncodedBatch,
    ImageTask,
    PreprocessedImage,
    SeeingStage,
    run_about_images,
)
from plumbline.operators.stages.programs import ProgramResults, generate, run_programs
from plumbline.operators.stages.scores import WrittenIndex
from plumbline.operators.stages.stage import (
    BenchmarkPart,
    Inputs,
    Stage,
    StageOptions,
    cache_upstream,
    find_text,
    read_skills,
    texts_of,
)


@runtime_checkable
class JudgingMetric(Protocol):
    """A metric whose judge reads descriptions."""

    def judging(self) -> dict[str, Any]:
        """Return all options that decide a verdict, except its input and the judge."""

    def judge_description(self, prompt: str, description: str) -> Writing[Verdict]:
        """Ask for a verdict on one description."""


class JudgingStage(Stage):
    """A stage with a judge, which may be asked several times about an image."""

    schema = schemas.VERDICTS
    call_unit = "writer"

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

    def make(self, wanted: Sequence[ImageMaterial]) -> ProgramResults[Verdicts]:
        return run_programs(list(map(self._program, wanted)), partial(generate, self.models["judge"]))

    def _program(self, wanted: ImageMaterial) -> Writing[Verdicts | RowError]:
        metric = self.metrics[wanted.metric]
        return ask_repeatedly(partial(metric.judge_description, *wanted.material), repeats_of(metric))

    def columns(self, made: Sequence[Verdicts]) -> dict[str, Any]:
        return verdict_columns(made)


def verdict_columns(images: Sequence[Verdicts]) -> dict[str, Any]:
    """Return the columns of VERDICTS for the verdicts on a row's images."""
    repeats = len(images[0])
    return {
        "verdicts": [
            verdict and {"ratings": [rating._asdict() for rating in verdict.ratings], "rationale": verdict.rationale}
            for image in images
            for verdict in image
        ],
        "repeats": repeats if repeats > 1 else None,
    }


@runtime_checkable
class InspectingMetric(Protocol):
    """A metric whose judge sees the images."""

    def judging(self) -> dict[str, Any]:
        """Return all options that decide a verdict, except the judge."""

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict | RowError]:
        """Ask for a verdict on one image, with the questions about its prompt if the chain has any.

        A metric with `uses_skills` also takes the prompt's skills.
        """


class JudgedPrompts(NamedTuple):
    """The prompts of judged images, with the questions or the skills of each if the metric uses them."""

    prompts: Mapping[str, str]
    written: WrittenIndex | None = None
    skills: Mapping[str, Sequence[str]] | None = None

    def text(self, prompt_id: str | None) -> str | RowError:
        text = find_text(self.prompts, prompt_id)
        if isinstance(text, RowError) or self.written is None or prompt_id in self.written.questions:
            return text
        return self.written.errors.get(prompt_id or "") or incomplete("questions", f"lacks prompt {prompt_id!r}")

    def questions(self, prompt_id: str | None) -> Sequence[WrittenQuestion]:
        return self.written.questions.get(prompt_id or "", ()) if self.written is not None else ()

    def basis(self, prompt_id: str | None) -> str | None:
        text = self.text(prompt_id)
        ids = [question.question_id for question in self.questions(prompt_id)]
        skills = self.skills.get(prompt_id or "", ()) if self.skills is not None else ()
        return rows.input_digest(text, *ids, *skills) if isinstance(text, str) else None

    def judge_context(self, prompt_id: str | None) -> dict[str, Any]:
        """Return the arguments of the metric's program besides the prompt's text."""
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
    def reads_of_benchmark(cls, metric: Any) -> tuple[BenchmarkPart, ...]:
        if getattr(metric, "uses_skills", False):
            return ("skills",)
        return ()

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self._texts = cache_upstream(texts_of)
        self._skills = cache_upstream(read_skills)
        self._written = cache_upstream(lambda questions: WrittenIndex(questions.read(), None))

    def asked(self, inputs: Inputs) -> Mapping[str, JudgedPrompts]:
        texts = self._texts(inputs.prompts)
        asked = {name: inputs.upstream[name].get("questions") for name in inputs.metrics}
        skills = {name: self._skills(inputs.prompts) for name in asked if self.reads_of_benchmark(self.metrics[name])}
        return {
            name: JudgedPrompts(texts, self._written(read) if read else None, skills.get(name))
            for name, read in asked.items()
        }

    def ask_model(self, encoded: EncodedBatch, seen: Sequence[ImageTask]) -> ProgramResults[Verdicts]:
        return run_about_images(self.model, encoded, seen, [self._program(one) for one in seen])

    def _program(self, seen: ImageTask) -> Writing[Verdicts | RowError]:
        """Run the metric's program as often as it wants; return the prompt's error if it has one."""
        text = seen.asked.text(seen.row.prompt_id)
        if isinstance(text, RowError):
            return text
        metric, context = self.metrics[seen.metric], seen.asked.judge_context(seen.row.prompt_id)
        return (yield from ask_repeatedly(partial(metric.inspect, text, **context), repeats_of(metric)))

    def columns(self, results: Sequence[Verdicts], shown: Sequence[PreprocessedImage]) -> dict[str, Any]:
        return verdict_columns(results)

"""The verdicts and inspections stages: a judge rates how well descriptions or images match their prompts."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.judges.judge import Verdicts, ask_repeatedly
from plumbline.operators.metrics.metric import Metric, Verdict, count_repeats, make_incomplete_cell_error
from plumbline.operators.metrics.writing import Writing, WrittenQuestion
from plumbline.operators.stages.derived import DerivedStage
from plumbline.operators.stages.image_writing import ImageTask, ImageWritingStage
from plumbline.operators.stages.scores import WrittenIndex
from plumbline.operators.stages.stage import (
    BenchmarkPart,
    Inputs,
    Stage,
    StageOptions,
    cache_upstream,
    find_text,
    read_prompt_texts,
    read_skills,
)


@runtime_checkable
class JudgingMetric(Protocol):
    """Protocol for metrics whose judge rates a description of the image instead of the image itself."""

    def list_verdict_options(self) -> dict[str, Any]:
        """Return all options that determine a verdict, except the descriptions and the judge."""

    def judge_description(self, prompt: str, description: str) -> Writing[Verdict]:
        """Ask the judge how well a description of an image matches the prompt; return the verdict."""


class JudgingStage(Stage):
    """Base class for stages with a judge, which may be asked several times about each image."""

    schema = schemas.VERDICTS
    call_unit = "judge"

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        repeated = {"repeats": metric.repeats} if count_repeats(metric) > 1 else {}
        return {"kind": metric.kind, "asking": metric.list_verdict_options(), **repeated}

    def columns(self, results: Sequence[Verdicts]) -> dict[str, Any]:
        repeats = len(results[0])
        return {
            "verdicts": [
                verdict
                and {"ratings": [rating._asdict() for rating in verdict.ratings], "rationale": verdict.rationale}
                for of_image in results
                for verdict in of_image
            ],
            "repeats": repeats if repeats > 1 else None,
        }


class VerdictsStage(JudgingStage, DerivedStage):
    """Stage that turns descriptions and prompts into verdicts (schema VERDICTS)."""

    name = "verdicts"
    version = 1
    metric_type = JudgingMetric
    calls: ClassVar = {"judge": "generate"}
    side_by_side = True

    @classmethod
    def list_input_stages(cls, metric: Any) -> tuple[str, ...]:
        return ("descriptions",)

    def make_image_inputs(
        self, metric: Any, read: Mapping[str, Mapping[str, Any]], text: str | RowError
    ) -> list[Any] | RowError:
        if isinstance(text, RowError):
            return text
        return [(text, description) for description in read["descriptions"]["descriptions"]]

    def program(self, metric: Any, image: tuple[str, str]) -> Writing[Verdicts | RowError]:
        return ask_repeatedly(partial(metric.judge_description, *image), count_repeats(metric))


@runtime_checkable
class InspectingMetric(Protocol):
    """Protocol for metrics whose judge sees the images."""

    def list_verdict_options(self) -> dict[str, Any]:
        """Return all options that determine a verdict, except the judge."""

    def inspect(self, prompt: str, questions: Sequence[WrittenQuestion] = ()) -> Writing[Verdict | RowError]:
        """Ask for a verdict on one image, with the questions about its prompt if the chain has any.

        A metric with `uses_skills` also receives the prompt's skills.
        """


class JudgedPrompts(NamedTuple):
    """The prompts of the judged images, with their questions or skills if the metric uses them."""

    prompts: Mapping[str, str]
    written: WrittenIndex | None
    skills: Mapping[str, Sequence[str]] | None

    def find_prompt(self, prompt_id: str | None) -> str | RowError:
        text = find_text(self.prompts, prompt_id)
        if isinstance(text, RowError) or self.written is None or prompt_id in self.written.questions:
            return text
        return self.written.errors.get(prompt_id or "") or make_incomplete_cell_error(
            "questions", f"lacks prompt {prompt_id!r}"
        )

    def make_context(self, prompt_id: str | None) -> dict[str, Sequence[Any]]:
        """Return the keyword arguments of the metric's program: questions, and skills if the metric uses them."""
        questions = self.written.questions.get(prompt_id or "", ()) if self.written is not None else ()
        skills = {} if self.skills is None else {"skills": self.skills.get(prompt_id or "", ())}
        return {"questions": questions, **skills}

    def digest(self, prompt_id: str | None) -> str | None:
        text, context = self.find_prompt(prompt_id), self.make_context(prompt_id)
        ids = [question.question_id for question in context["questions"]]
        return rows.digest_inputs(text, *ids, *context.get("skills", ())) if isinstance(text, str) else None


class InspectionsStage(JudgingStage, ImageWritingStage):
    """Stage that turns images and prompts into verdicts (schema VERDICTS)."""

    name = "inspections"
    version = 1
    metric_type = InspectingMetric
    calls: ClassVar = {"judge": "generate_from_images"}

    @classmethod
    def list_input_stages(cls, metric: Metric) -> tuple[str, ...]:
        return ("questions",) if "questions" in metric.chain else ()

    @classmethod
    def list_benchmark_parts(cls, metric: Any) -> tuple[BenchmarkPart, ...]:
        return ("skills",) if getattr(metric, "uses_skills", False) else ()

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self._texts = cache_upstream(read_prompt_texts)
        self._skills = cache_upstream(read_skills)
        self._written = cache_upstream(lambda questions: WrittenIndex(questions.read(), None))

    def read_questions(self, inputs: Inputs) -> Mapping[str, JudgedPrompts]:
        texts = self._texts(inputs.prompts)
        prompts = {}
        for name in inputs.metrics:
            questions = inputs.upstream[name].get("questions")
            written = self._written(questions) if questions else None
            skills = self._skills(inputs.prompts) if self.list_benchmark_parts(self.metrics[name]) else None
            prompts[name] = JudgedPrompts(texts, written, skills)
        return prompts

    def program(self, task: ImageTask) -> Writing[Verdicts | RowError]:
        """Run the metric's program for one image as often as required; return the verdicts or the prompt's error."""
        prompts: JudgedPrompts = task.questions
        text = prompts.find_prompt(task.row.prompt_id)
        if isinstance(text, RowError):
            return text
        metric = self.metrics[task.metric]
        inspect = partial(metric.inspect, text, **prompts.make_context(task.row.prompt_id))
        return (yield from ask_repeatedly(inspect, count_repeats(metric)))

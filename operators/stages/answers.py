"""The answers and priors stages, which ask a VQA model every question about every image, and about a blank image."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import BatchSize, call_on_distinct, encode_in_windows, index_distinct, isolate
from plumbline.operators.base.errors import RowError, make_unknown_prompt_error
from plumbline.operators.images.preparing import PreparedImages
from plumbline.operators.metrics.ablation import make_blank_image
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.parsing import match_choice
from plumbline.operators.metrics.writing import VqaPrompt, is_asked
from plumbline.operators.models.calls import Call, LikelihoodModel, Question, TextEmbedder
from plumbline.operators.stages.images import ImagesStage
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, cache_upstream

MAX_CACHED_TEXTS = 20_000


@runtime_checkable
class VqaMetric(Protocol):
    """Protocol for metrics that ask a VQA model about images."""

    def list_answer_options(self) -> dict[str, Any]:
        """Return all options that determine how questions are put to the model, for use in cell keys."""

    def make_vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        """Return the prompt for a question and its choices, keeping their order."""


class AskedQuestion(NamedTuple):
    question_id: str
    vqa_prompt: VqaPrompt

    def to_model_question(self, image: int) -> Question:
        """Return the question in the form that models accept; `image` is the index of its image among the features."""
        return Question(image, self.vqa_prompt.text, () if self.vqa_prompt.free else self.vqa_prompt.choices)


class PromptQuestions(NamedTuple):
    """One metric's questions about one prompt, or the error for a prompt that has no questions."""

    questions: list[AskedQuestion]
    error: RowError | None

    @property
    def digest(self) -> str:
        return rows.digest_inputs(*(question.question_id for question in self.questions))


class QuestionIndex:
    """One metric's questions by prompt_id, as they are put to the VQA model.

    They are read from a table (schema QUESTIONS). Questions that the metric's own filter dropped are omitted.
    """

    def __init__(self, table: pa.Table, metric: VqaMetric) -> None:
        by_prompt = defaultdict(list)
        for row in table.to_pylist():
            by_prompt[row["prompt_id"]].append(row)
        self.prompts: dict[str, PromptQuestions] = {}
        for prompt_id, written in by_prompt.items():
            error = next((rows.read_row_error(row["error"]) for row in written if row["error"]), None)
            asked = [
                AskedQuestion(row["question_id"], metric.make_vqa_prompt(row["text"], tuple(row["choices"])))
                for row in written
                if error is None and is_asked(row.get("keep"))
            ]
            self.prompts[prompt_id] = PromptQuestions(asked, error)

    def find(self, prompt_id: str | None) -> PromptQuestions:
        """Return the questions to ask about images of the prompt, or an error if the prompt is unknown."""
        if prompt_id is None or prompt_id not in self.prompts:
            return PromptQuestions([], make_unknown_prompt_error(prompt_id))
        return self.prompts[prompt_id]

    def digest(self, prompt_id: str | None) -> str | None:
        return self.prompts[prompt_id].digest if prompt_id is not None and prompt_id in self.prompts else None


class PriorsStage(Stage):
    """Stage that answers questions about a grey image instead of a real one (schema PRIORS), one row per prompt.

    These answers show the model's bias (Zhao et al. 2021, Calibrate Before Use).
    """

    name = "priors"
    version = 1
    schema = schemas.PRIORS
    row_kind = "prompts"
    metric_type = VqaMetric
    calls: ClassVar = {"model": "likelihood"}
    shuffles_words = True

    @classmethod
    def list_input_stages(cls, metric: Metric) -> tuple[str, ...]:
        return ("questions",)

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.list_answer_options()}

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.metrics = metrics
        self.model: LikelihoodModel = models["model"]

    def prepare(self, inputs: Inputs) -> Mapping[str, QuestionIndex]:
        return {
            name: QuestionIndex(inputs.upstream[name]["questions"].read(), self.metrics[name])
            for name in inputs.metrics
        }

    def compute(self, prepared: Mapping[str, QuestionIndex]) -> Mapping[str, pa.Table]:
        before = self.model.usage
        encoded = self.model.encode([self.model.preprocess(make_blank_image())])
        tables = {name: self._make_table(index, encoded) for name, index in prepared.items()}
        usage = self.model.usage.minus(before)
        return {name: rows.attach_usage(table, usage) for name, table in tables.items()}

    def _make_table(self, index: QuestionIndex, encoded: Any) -> pa.Table:
        questions = [
            question.to_model_question(0) for of_prompt in index.prompts.values() for question in of_prompt.questions
        ]
        outcomes = iter(isolate(lambda batch: self.model.likelihood(encoded, batch), questions))
        records = []
        for prompt_id, of_prompt in index.prompts.items():
            results = [(question.question_id, require_finite(next(outcomes))) for question in of_prompt.questions]
            error = of_prompt.error or next((result for _, result in results if isinstance(result, RowError)), None)
            row: dict[str, Any] = {"prompt_id": prompt_id, "error": rows.error_to_dict(error)}
            if error is None:
                row["answers"] = [{"question_id": name, "token_logprobs": logprobs} for name, logprobs in results]
                row["basis"] = of_prompt.digest
            records.append(row)
        return rows.table(records, schemas.PRIORS)


class AnswerCollector:
    """Collector of the answers to one metric's questions about one image.

    `result` is the list of answers, or the first error; after an error, further answers are ignored.
    """

    def __init__(self, asked: PromptQuestions) -> None:
        self.questions = asked.questions
        self.result: list[dict[str, Any]] | RowError = asked.error or []

    def add(self, answer: dict[str, Any] | RowError) -> None:
        if isinstance(self.result, RowError):
            return
        if isinstance(answer, RowError):
            self.result = answer
        else:
            self.result.append(answer)


def make_answer_collectors(
    images: PreparedImages, questions: Mapping[str, QuestionIndex]
) -> dict[str, list[AnswerCollector]]:
    """Return empty collectors of answers by metric: one for each preprocessed image, in order."""
    prompt_ids = [row.prompt_id for row, count in zip(images.rows, images.counts, strict=True) for _ in range(count)]
    return {
        name: [AnswerCollector(index.find(prompt_id)) for prompt_id in prompt_ids] for name, index in questions.items()
    }


class QuestionedImagesStage(ImagesStage):
    """Base class for stages that answer the questions in another stage's table."""

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self._index = cache_upstream(lambda name, questions: QuestionIndex(questions.read(), self.metrics[name]))

    @classmethod
    def list_input_stages(cls, metric: Metric) -> tuple[str, ...]:
        return ("questions",)

    def read_questions(self, inputs: Inputs) -> Mapping[str, QuestionIndex]:
        return {name: self._index(name, inputs.upstream[name]["questions"]) for name in inputs.metrics}

    def tabulate_answers(
        self, images: PreparedImages, index: QuestionIndex, answers: Sequence[AnswerCollector]
    ) -> pa.Table:
        """Return one metric's table of answers, with a row for each row of the shard."""

        def make_columns(of_row: Sequence[list[dict[str, Any]]]) -> dict[str, Any]:
            joined = [answer for of_image in of_row for answer in of_image]
            return {"answers": joined, "images": len(of_row) if len(of_row) > 1 else None}

        return self.tabulate(images, index, [of_image.result for of_image in answers], make_columns)


class AnswersStage(QuestionedImagesStage):
    """Stage that answers questions about images (schema ANSWERS).

    Each image is encoded once for all metrics that use the model.
    """

    name = "answers"
    version = 1
    schema = schemas.ANSWERS
    metric_type = VqaMetric
    calls: ClassVar = {"model": "likelihood", "matcher": "embedding"}
    optional_calls = frozenset({"matcher"})
    shuffles_words = True

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.list_answer_options()}

    @classmethod
    def choose_trial_call(cls, key: str, metrics: Collection[Any]) -> Call:
        """Return the call that tests a service: `generate_from_images` if no metric needs the model's likelihoods.

        In all other cases, it is the call in `calls`.
        """
        free = all(metric.make_vqa_prompt("Is it?", ("yes", "no")).free for metric in metrics)
        return "generate_from_images" if key == "model" and free else cls.calls[key]

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self.model: LikelihoodModel
        self.side_by_side = self.model.side_by_side
        self.match = ChoiceMatcher(models["matcher"]) if "matcher" in models else None

    def measure(self, images: PreparedImages, questions: Mapping[str, QuestionIndex]) -> Mapping[str, pa.Table]:
        """Return each metric's table of answers.

        The model encodes `image_batch` images at a time and answers the questions about them. A model with its own
        batching gets all images at once.
        """
        before = self.model.usage
        answers = make_answer_collectors(images, questions)

        def answer_window(first: int, encoded: Sequence[Any], *, raise_oom: bool) -> None:
            sound = [number for number, feature in enumerate(encoded) if not isinstance(feature, RowError)]
            features, indices = index_distinct(encoded[number] for number in sound)
            asked = [
                (of_metric[first + number], question, question.to_model_question(image))
                for of_metric in answers.values()
                for image, number in zip(indices, sound, strict=True)
                for question in of_metric[first + number].questions
            ]

            def call_model(method: Callable[..., Sequence[Any]], *, free: bool) -> dict[Question, Any]:
                # Metrics and rows that ask the same question about an image share the answer.
                unique = list(dict.fromkeys(sent for _, question, sent in asked if question.vqa_prompt.free == free))
                return dict(zip(unique, isolate(partial(method, features), unique, raise_oom=raise_oom), strict=True))

            # All calls come before the first answer is stored: if one runs out of memory, the window is repeated.
            results = {
                False: call_model(self.model.likelihood, free=False),
                True: call_model(self.model.reply, free=True),
            }
            for number, feature in enumerate(encoded):
                if isinstance(feature, RowError):
                    for of_metric in answers.values():
                        of_metric[first + number].add(feature)
            for of_image, question, sent in asked:
                of_image.add(self._read_answer(question, results[question.vqa_prompt.free][sent]))

        # A model with its own batching gets the whole shard at once, together with its other shards.
        size = BatchSize(len(images.pixels)) if self.side_by_side else self.image_batch
        encode_in_windows(partial(call_on_distinct, self.model.encode), images.pixels, size, answer_window)
        usage = self.model.usage.minus(before)
        return {
            name: rows.attach_usage(self.tabulate_answers(images, questions[name], of_metric), usage)
            for name, of_metric in answers.items()
        }

    def _read_answer(self, question: AskedQuestion, result: Any) -> dict[str, Any] | RowError:
        prompt = question.vqa_prompt
        if not prompt.free:
            result = require_finite(result)
        if isinstance(result, RowError):
            return result
        if not prompt.free:
            return {"question_id": question.question_id, "token_logprobs": result}
        chosen: str | None
        if prompt.exact:
            chosen = match_choice(result, prompt.choices)
        else:
            assert self.match is not None, "a metric of free answers has a matcher"
            chosen = self.match(result, prompt.choices)
        return {"question_id": question.question_id, "reply": result, "chosen": chosen}


def require_finite(logprobs: list[list[float]] | RowError) -> list[list[float]] | RowError:
    """Return the log probabilities, or an error if one of them is not finite."""
    if isinstance(logprobs, RowError) or all(math.isfinite(number) for choice in logprobs for number in choice):
        return logprobs
    return RowError("not_finite", f"the model returned {logprobs}; try dtype=float32")


class ChoiceMatcher:
    """Callable that maps a free-form answer to the choice that matches, or to the nearest by embedding (TIFA)."""

    def __init__(self, embedder: TextEmbedder) -> None:
        self.embed = lru_cache(maxsize=MAX_CACHED_TEXTS)(lambda text: embedder.encode_texts([text]).features[0])
        self.matching = Lock()

    def __call__(self, reply: str, choices: Sequence[str]) -> str:
        exact = match_choice(reply, choices)
        if exact is not None:
            return exact
        with self.matching:  # tokenizers are not thread-safe, and several shards may run at once
            meant = self.embed(reply)
            return max(choices, key=lambda choice: float(meant @ self.embed(choice)))

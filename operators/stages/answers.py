"""The answers stage: likelihoods of the candidate answers to every question about every image."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.batches import BatchSize, encode_in_windows, isolate
from plumbline.operators.base.errors import RowError, unknown_prompt
from plumbline.operators.images.preparing import PreparedImages
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.parsing import same_choice
from plumbline.operators.metrics.writing import VqaPrompt, is_asked
from plumbline.operators.models.calls import Call, LikelihoodModel, Question, TextEmbedder
from plumbline.operators.stages.images import ImagesStage
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, cache_upstream

Result = TypeVar("Result")

MAX_CACHED_TEXTS = 20_000


@runtime_checkable
class AskingMetric(Protocol):
    """A metric that asks a VQA model about images."""

    def answering(self) -> dict[str, Any]:
        """Return all options that decide how the model is asked."""

    def vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        """Return the prompt for a question and its choices, which stay in order."""


class AskedQuestion(NamedTuple):
    """A question with its id."""

    question_id: str
    vqa_prompt: VqaPrompt


class PromptQuestions(NamedTuple):
    """One metric's questions about one prompt, or why there are none."""

    questions: list[AskedQuestion]
    error: RowError | None

    @property
    def basis(self) -> str:
        """Digest of everything that is asked, made of the questions' ids."""
        return rows.input_digest(*(question.question_id for question in self.questions))


class QuestionIndex:
    """A questions table (schema QUESTIONS) by prompt, as a metric asks it.

    Questions that the metric's own filter dropped are left out.
    """

    def __init__(self, table: pa.Table, metric: AskingMetric) -> None:
        grouped = defaultdict(list)
        for question in table.to_pylist():
            grouped[question["prompt_id"]].append(question)
        self.prompts = {prompt_id: _prompt_questions(written, metric) for prompt_id, written in grouped.items()}

    def find(self, prompt_id: str | None) -> PromptQuestions:
        """Return the questions about images of the prompt."""
        if prompt_id is None or prompt_id not in self.prompts:
            return PromptQuestions([], unknown_prompt(prompt_id))
        return self.prompts[prompt_id]

    def basis(self, prompt_id: str | None) -> str | None:
        return self.prompts[prompt_id].basis if prompt_id is not None and prompt_id in self.prompts else None


def _prompt_questions(written: Sequence[Mapping[str, Any]], metric: AskingMetric) -> PromptQuestions:
    errors = [rows.row_error(question["error"]) for question in written if question["error"]]
    if errors:
        return PromptQuestions([], errors[0])
    kept = [question for question in written if is_asked(question.get("keep"))]
    asked = [AskedQuestion(one["question_id"], metric.vqa_prompt(one["text"], tuple(one["choices"]))) for one in kept]
    return PromptQuestions(asked, None)


class AskingStage(Stage):
    """A stage whose result depends on the questions that it reads and how they are asked."""

    needs: ClassVar[type] = AskingMetric
    shuffles_words = True

    @classmethod
    def reads(cls, metric: Metric) -> tuple[str, ...]:
        return ("questions",)

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.answering()}

    @classmethod
    def trial_call(cls, key: str, metrics: Collection[Any]) -> Call:
        """Return the stage's call, or the one without likelihoods if all metrics want the model's own words."""
        words = cls.calls[key] == "likelihood" and all(
            metric.vqa_prompt("Is it?", ("yes", "no")).free for metric in metrics
        )
        return "generate_from_images" if words else cls.calls[key]


class QuestionedImagesStage(ImagesStage):
    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self._index = cache_upstream(lambda name, read: QuestionIndex(read.read(), self.metrics[name]))

    @classmethod
    def reads(cls, metric: Metric) -> tuple[str, ...]:
        return ("questions",)

    def asked(self, inputs: Inputs) -> Mapping[str, QuestionIndex]:
        return {name: self._index(name, inputs.upstream[name]["questions"]) for name in inputs.metrics}


class AnswersStage(AskingStage, QuestionedImagesStage):
    """Images and questions to answers (schema ANSWERS); each image is encoded once for all metrics of a model.

    The tables' metadata has the usage of the model's calls, for all metrics together (rows.with_usage).
    """

    name = "answers"
    version = 1
    schema = schemas.ANSWERS
    calls: ClassVar = {"model": "likelihood", "matcher": "embedding"}
    optional = frozenset({"matcher"})

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        super().__init__(metrics, models, options)
        self.model: LikelihoodModel
        self.side_by_side = self.model.side_by_side
        self.match = ChoiceMatcher(models["matcher"]) if "matcher" in models else None

    def measure(self, images: PreparedImages, asked: Mapping[str, QuestionIndex]) -> Mapping[str, pa.Table]:
        """Encode `image_batch` images together and answer their questions before the next ones are encoded.

        A model with its own batching gets the whole shard at once, together with its other shards.
        """
        before = self.model.usage
        answers = {name: ShardAnswers(images, index) for name, index in asked.items()}
        shown = [row for row, count in enumerate(images.counts) for _ in range(count)]
        size = BatchSize(len(shown)) if self.side_by_side else self.image_batch
        encode_in_windows(self.model.encode, images.pixels, size, partial(self._answer_window, shown, answers))
        usage = self.model.usage.minus(before)
        return {name: rows.with_usage(answered.table(), usage) for name, answered in answers.items()}

    def _answer_window(
        self,
        rows_of: Sequence[int],
        answers: Mapping[str, "ShardAnswers"],
        first: int,
        encoded: Sequence[Any],
        *,
        crowded: bool,
    ) -> None:
        """Answer all metrics' questions about a window of images; `rows_of` has the row of each image."""
        window = {image: (rows_of[image], feature) for image, feature in enumerate(encoded, first)}
        features = {image: feature for image, (_, feature) in window.items() if not isinstance(feature, RowError)}
        asked = [
            _ImageQuestion(metric, rows_of[image], image, *question)
            for metric, answered in answers.items()
            for image in features
            for question in answered.questions(rows_of[image])
        ]
        closed = list(dict.fromkeys(question.call for question in asked if not question.vqa_prompt.free))
        free = list(dict.fromkeys(question.call for question in asked if question.vqa_prompt.free))
        call = partial(self._call, features=features, crowded=crowded)
        logprobs = dict(zip(closed, call(self.model.likelihood, asked=closed), strict=True))
        replies = dict(zip(free, call(self.model.reply, asked=free), strict=True))
        for row, feature in window.values():
            if isinstance(feature, RowError):
                for answered in answers.values():
                    answered.fail(row, feature)
        for question in asked:
            if question.vqa_prompt.free:
                answers[question.metric].add_reply(question, replies[question.call], self.match)
            else:
                answers[question.metric].add(question, logprobs[question.call])

    def _call(
        self,
        method: Callable[[Sequence[Any], Sequence[Question]], Sequence[Result]],
        features: Mapping[int, Any],
        asked: Sequence[tuple[int, str, tuple[str, ...]]],
        *,
        crowded: bool,
    ) -> list[Result | RowError]:
        """Call the model on every (image, text, choices); failed calls become errors."""
        encoded = list(features.values())
        position = {image: index for index, image in enumerate(features)}
        questions = [Question(position[image], text, choices) for image, text, choices in asked]
        return isolate(lambda batch: method(encoded, batch), questions, crowded=crowded)


def require_finite(logprobs: list[list[float]] | RowError) -> list[list[float]] | RowError:
    """Return the log probabilities, or an error if one is not finite."""
    if isinstance(logprobs, RowError) or all(math.isfinite(number) for choice in logprobs for number in choice):
        return logprobs
    return RowError("not_finite", f"the model gave {logprobs}; try dtype=float32")


class _ImageQuestion(NamedTuple):
    """One question of one metric about one image of the shard."""

    metric: str
    row: int
    image: int
    question_id: str
    vqa_prompt: VqaPrompt

    @property
    def call(self) -> tuple[int, str, tuple[str, ...]]:
        """Arguments of the model's call; metrics that ask the same about an image share the answer."""
        return self.image, self.vqa_prompt.text, () if self.vqa_prompt.free else self.vqa_prompt.choices


class ChoiceMatcher:
    """Finds the choice that a free answer means: an equal one, or the nearest by sentence embedding (TIFA)."""

    def __init__(self, embedder: TextEmbedder) -> None:
        self.embed = lru_cache(maxsize=MAX_CACHED_TEXTS)(lambda text: embedder.encode_texts([text]).features[0])
        self.matching = Lock()

    def __call__(self, reply: str, choices: Sequence[str]) -> str:
        exact = same_choice(reply, choices)
        if exact is not None:
            return exact
        with self.matching:  # a tokenizer is not for two threads, and shards may be answered side by side
            meant = self.embed(reply)
            return max(choices, key=lambda choice: float(meant @ self.embed(choice)))


class ShardAnswers:
    """Collects one metric's answers about one shard."""

    def __init__(self, images: PreparedImages, index: QuestionIndex, schema: pa.Schema = schemas.ANSWERS) -> None:
        self.images = images
        self.index = index
        self.schema = schema
        self.errors: list[RowError | None] = [
            error or index.find(row.prompt_id).error for row, error in zip(images.rows, images.errors, strict=True)
        ]
        self.answers: list[list[dict[str, Any]]] = [[] for _ in images.rows]

    def questions(self, row: int) -> list[AskedQuestion]:
        """Return the questions about a row; nothing if it has failed already."""
        return [] if self.errors[row] is not None else self.index.find(self.images.rows[row].prompt_id).questions

    def fail(self, row: int, error: RowError) -> None:
        self.errors[row] = self.errors[row] or error

    def add(self, asked: _ImageQuestion, logprobs: list[list[float]] | RowError) -> None:
        logprobs = require_finite(logprobs)
        if isinstance(logprobs, RowError):
            self.fail(asked.row, logprobs)
        else:
            answer = {"question_id": asked.question_id, "token_logprobs": logprobs}
            self.answers[asked.row].append(answer)

    def add_reply(self, asked: _ImageQuestion, reply: str | RowError, match: ChoiceMatcher | None) -> None:
        if isinstance(reply, RowError):
            self.fail(asked.row, reply)
            return
        chosen: str | None
        if asked.vqa_prompt.exact:
            chosen = same_choice(reply, asked.vqa_prompt.choices)
        else:
            assert match is not None, "a metric of free answers has a matcher"
            chosen = match(reply, asked.vqa_prompt.choices)
        self.answers[asked.row].append({"question_id": asked.question_id, "reply": reply, "chosen": chosen})

    def table(self) -> pa.Table:
        records = [
            row.row(
                answers=None if error else answers,
                error=rows.error_value(error),
                image_digest=digest,
                basis=None if error else self.index.basis(row.prompt_id),
                images=count if count > 1 and error is None else None,
            )
            for row, digest, count, answers, error in zip(
                self.images.rows, self.images.digests, self.images.counts, self.answers, self.errors, strict=True
            )
        ]
        return rows.table(records, self.schema)

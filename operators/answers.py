"""The answers stage: the likelihood of every candidate answer to every question on every image."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from operators import rows
from operators.batches import isolate
from operators.errors import RowError
from operators.images import FetchUri, ImageLimits, PreparedImages, prepare_images
from operators.models.calls import LikelihoodModel, Question

if TYPE_CHECKING:
    import torch

VERSION = 2

UNKNOWN_PROMPT = "prompt_id {!r} is not in the benchmark's prompts; add the prompt, or correct the id"


class PromptQuestions(NamedTuple):
    """What one metric asks about one prompt: its questions, or why there are none."""

    questions: list[dict[str, Any]]
    error: RowError | None


QuestionIndex = Mapping[str, PromptQuestions]


def index_questions(table: pa.Table) -> QuestionIndex:
    """A questions table (schema QUESTIONS) by prompt_id."""
    grouped = defaultdict(list)
    for question in table.to_pylist():
        grouped[question["prompt_id"]].append(question)
    return {prompt_id: _prompt_questions(asked) for prompt_id, asked in grouped.items()}


def _prompt_questions(asked: list[dict[str, Any]]) -> PromptQuestions:
    errors = [rows.row_error(question["error"]) for question in asked if question["error"]]
    return PromptQuestions(asked, errors[0] if errors else None)


class _Asked(NamedTuple):
    """One question of one metric about one row of the shard."""

    metric: str
    row: int
    question_id: str
    text: str
    choices: tuple[str, ...]


class AnswerOperator:
    """Answers the questions of every metric that shares a model, having encoded each image once."""

    def __init__(self, model: LikelihoodModel, *, image_batch: int, limits: ImageLimits, fetch: FetchUri) -> None:
        """`image_batch` images are encoded together and their questions answered before the next are."""
        self.model = model
        self.image_batch = image_batch
        self.limits = limits
        self.fetch = fetch

    def prepare(self, images: pa.Table, generator: str) -> PreparedImages:
        """Decodes and preprocesses a shard on the CPU; needs no model, so it may overlap `answer`."""
        return prepare_images(images, generator, preprocess=self.model.preprocess, limits=self.limits, fetch=self.fetch)

    def answer(self, images: PreparedImages, questions: Mapping[str, QuestionIndex]) -> dict[str, pa.Table]:
        """Answers tables (schema ANSWERS) by metric, one row per row of the shard whatever befell it."""
        answers = {metric: _Answers(images, index) for metric, index in questions.items()}
        sound = [row for row, error in enumerate(images.errors) if error is None]
        for first in range(0, len(sound), self.image_batch):
            window = sound[first : first + self.image_batch]
            self._answer_window(window, images.pixels[first : first + len(window)], answers)
        return {metric: answered.table() for metric, answered in answers.items()}

    def _answer_window(
        self, window: Sequence[int], pixels: "Sequence[torch.Tensor]", answers: Mapping[str, "_Answers"]
    ) -> None:
        """Encodes the window's images once, then answers all metrics' questions about them."""
        encoded = isolate(self.model.encode, pixels)
        features = {
            row: feature for row, feature in zip(window, encoded, strict=True) if not isinstance(feature, RowError)
        }
        for row, feature in zip(window, encoded, strict=True):
            if isinstance(feature, RowError):
                for answered in answers.values():
                    answered.fail(row, feature)
        asked = [
            _Asked(metric, row, question["question_id"], question["text"], tuple(question["choices"]))
            for metric, answered in answers.items()
            for row in features
            for question in answered.questions(row)
        ]
        for question, logprobs in zip(asked, self._likelihoods(features, asked), strict=True):
            answers[question.metric].add(question, logprobs)

    def _likelihoods(
        self, features: "Mapping[int, torch.Tensor]", asked: Sequence[_Asked]
    ) -> list[list[list[float]] | RowError]:
        encoded = list(features.values())
        position = {row: index for index, row in enumerate(features)}

        def call(batch: Sequence[_Asked]) -> list[list[list[float]]]:
            return self.model.likelihood(
                encoded, [Question(position[question.row], question.text, question.choices) for question in batch]
            )

        return isolate(call, asked)


class _Answers:
    """One metric's answers about one shard while they come in."""

    def __init__(self, images: PreparedImages, index: QuestionIndex) -> None:
        self.images = images
        self.index = index
        self.errors: list[RowError | None] = [
            error or self._question_error(row.prompt_id) for row, error in zip(images.rows, images.errors, strict=True)
        ]
        self.answers: list[list[dict[str, Any]]] = [[] for _ in images.rows]

    def _question_error(self, prompt_id: str | None) -> RowError | None:
        if prompt_id is None or prompt_id not in self.index:
            return RowError("unknown_prompt", UNKNOWN_PROMPT.format(prompt_id))
        return self.index[prompt_id].error

    def questions(self, row: int) -> list[dict[str, Any]]:
        """What is to be asked about a row; nothing where it already failed."""
        prompt_id = self.images.rows[row].prompt_id
        return [] if self.errors[row] is not None or prompt_id is None else self.index[prompt_id].questions

    def fail(self, row: int, error: RowError) -> None:
        self.errors[row] = self.errors[row] or error

    def add(self, asked: _Asked, logprobs: list[list[float]] | RowError) -> None:
        if isinstance(logprobs, RowError):
            self.fail(asked.row, logprobs)
        elif not all(math.isfinite(number) for choice in logprobs for number in choice):
            self.fail(asked.row, RowError("not_finite", f"the model gave {logprobs}; try dtype=float32"))
        else:
            self.answers[asked.row].append({"question_id": asked.question_id, "token_logprobs": logprobs})

    def table(self) -> pa.Table:
        records = [
            row.row(answers=None if error else answers, error=rows.error_value(error))
            for row, answers, error in zip(self.images.rows, self.answers, self.errors, strict=True)
        ]
        return rows.table(records, rows.ANSWERS)

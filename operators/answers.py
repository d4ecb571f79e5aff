"""The answers stage: the likelihood of every candidate answer to every question on every image."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from operators import rows
from operators.batches import isolate
from operators.errors import RowError
from operators.images import FetchUri, Held, ImageLimits, PreparedImages, nothing_held, prepare_images
from operators.metrics.configs import AskingConfig
from operators.metrics.tifa import match_choice
from operators.metrics.vqascore import VqaScoreConfig
from operators.metrics.writing import is_asked
from operators.models.calls import LikelihoodModel, Question, TextEmbedder

Result = TypeVar("Result")

VERSION = 3
REMEMBERED_TEXTS = 20_000

UNKNOWN_PROMPT = "prompt_id {!r} is not in the benchmark's prompts; add the prompt, or correct the id"


class AskedQuestion(NamedTuple):
    """A question as it is put to the model."""

    question_id: str
    text: str
    choices: tuple[str, ...]
    """The answers whose likelihood is wanted; of a free answer, those one of which it is taken to mean."""
    free: bool
    """Whether the model is to answer in its own words."""


class PromptQuestions(NamedTuple):
    """What one metric asks about one prompt: its questions, or why there are none."""

    questions: list[AskedQuestion]
    error: RowError | None

    @property
    def basis(self) -> str:
        """What an answered row stands on: ids are digests of all that is asked."""
        return rows.basis_of(*(question.question_id for question in self.questions))


QuestionIndex = Mapping[str, PromptQuestions]


def index_questions(table: pa.Table, metric: AskingConfig) -> QuestionIndex:
    """A questions table (schema QUESTIONS) by prompt_id, in the metric's way of putting them to the model.

    What the metric's own filter dropped is not asked.
    """
    grouped = defaultdict(list)
    for question in table.to_pylist():
        grouped[question["prompt_id"]].append(question)
    return {prompt_id: _prompt_questions(asked, metric) for prompt_id, asked in grouped.items()}


def _prompt_questions(asked: Sequence[Mapping[str, Any]], metric: AskingConfig) -> PromptQuestions:
    errors = [rows.row_error(question["error"]) for question in asked if question["error"]]
    if errors:
        return PromptQuestions([], errors[0])
    return PromptQuestions([_put(question, metric) for question in asked if is_asked(question.get("keep"))], None)


def _put(question: Mapping[str, Any], metric: AskingConfig) -> AskedQuestion:
    text, choices = question["text"], tuple(question["choices"])
    if isinstance(metric, VqaScoreConfig):
        return AskedQuestion(question["question_id"], text, choices, free=False)
    free = metric.form == "reply"
    choices = choices if free else metric.vqa_choices(choices)
    return AskedQuestion(question["question_id"], metric.vqa_text(text), choices, free)


class _Asked(NamedTuple):
    """One question of one metric about one row of the shard."""

    metric: str
    row: int
    question: AskedQuestion

    @property
    def call(self) -> tuple[int, str, tuple[str, ...]]:
        """What the model is called with; metrics that ask the same about an image share the answer."""
        return self.row, self.question.text, () if self.question.free else self.question.choices


class AnswerOperator:
    """Answers the questions of every metric that shares a model, having encoded each image once."""

    def __init__(
        self,
        model: LikelihoodModel,
        *,
        image_batch: int,
        limits: ImageLimits,
        fetch: FetchUri,
        matcher: TextEmbedder | None = None,
    ) -> None:
        """`image_batch` images are encoded together and their questions answered before the next are.

        `matcher` tells which choice a free answer is nearest to; only metrics that ask for free answers need it.
        """
        self.model = model
        self.image_batch = image_batch
        self.limits = limits
        self.fetch = fetch
        self.match = ChoiceMatcher(matcher) if matcher is not None else None

    def prepare(self, images: pa.Table, generator: str, held: Held = nothing_held) -> PreparedImages:
        """Decodes and preprocesses a shard on the CPU; needs no model, so it may overlap `answer`."""
        preprocess = self.model.preprocess
        return prepare_images(images, generator, preprocess=preprocess, limits=self.limits, fetch=self.fetch, held=held)

    def answer(self, images: PreparedImages, questions: Mapping[str, QuestionIndex]) -> dict[str, pa.Table]:
        """Answers tables (schema ANSWERS) by metric, one row per row of the shard whatever befell it.

        Their metadata has what the model's calls took, for all the metrics together (rows.with_usage).
        """
        before = self.model.usage
        answers = {metric: _Answers(images, index) for metric, index in questions.items()}
        sound = [row for row, error in enumerate(images.errors) if error is None]
        for first in range(0, len(sound), self.image_batch):
            window = sound[first : first + self.image_batch]
            self._answer_window(window, images.pixels[first : first + len(window)], answers)
        usage = self.model.usage.minus(before)
        return {metric: rows.with_usage(answered.table(), usage) for metric, answered in answers.items()}

    def _answer_window(self, window: Sequence[int], pixels: Sequence[Any], answers: Mapping[str, "_Answers"]) -> None:
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
            _Asked(metric, row, question)
            for metric, answered in answers.items()
            for row in features
            for question in answered.questions(row)
        ]
        closed = {one.call: one for one in asked if not one.question.free}
        free = {one.call: one for one in asked if one.question.free}
        logprobs = dict(zip(closed, self._call(self.model.likelihood, features, list(closed)), strict=True))
        replies = dict(zip(free, self._call(self.model.reply, features, list(free)), strict=True))
        for one in asked:
            if one.question.free:
                answers[one.metric].add_reply(one, replies[one.call], self.match)
            else:
                answers[one.metric].add(one, logprobs[one.call])

    def _call(
        self,
        method: Callable[[Sequence[Any], Sequence[Question]], Sequence[Result]],
        features: Mapping[int, Any],
        asked: Sequence[tuple[int, str, tuple[str, ...]]],
    ) -> list[Result | RowError]:
        """One of the model's calls on every (row, text, choices), failing ones apart."""
        encoded = list(features.values())
        position = {row: index for index, row in enumerate(features)}
        questions = [Question(position[row], text, choices) for row, text, choices in asked]
        return isolate(lambda batch: method(encoded, batch), questions)


class ChoiceMatcher:
    """The choice that a free answer means: the one it is, or else the nearest by sentence embedding (TIFA)."""

    def __init__(self, embedder: TextEmbedder) -> None:
        self.embed = lru_cache(maxsize=REMEMBERED_TEXTS)(lambda text: embedder.encode_texts([text]).features[0])

    def __call__(self, reply: str, choices: Sequence[str]) -> str:
        exact = match_choice(reply, choices)
        if exact is not None:
            return exact
        meant = self.embed(reply)
        return max(choices, key=lambda choice: float(meant @ self.embed(choice)))


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

    def questions(self, row: int) -> list[AskedQuestion]:
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
            answer = {"question_id": asked.question.question_id, "token_logprobs": logprobs}
            self.answers[asked.row].append(answer)

    def add_reply(self, asked: _Asked, reply: str | RowError, match: ChoiceMatcher | None) -> None:
        if isinstance(reply, RowError):
            self.fail(asked.row, reply)
            return
        assert match is not None, "a metric of free answers has a matcher"
        chosen = match(reply, asked.question.choices)
        self.answers[asked.row].append({"question_id": asked.question.question_id, "reply": reply, "chosen": chosen})

    def table(self) -> pa.Table:
        records = [
            row.row(
                answers=None if error else answers,
                error=rows.error_value(error),
                image_digest=digest,
                basis=None if error else self.index[str(row.prompt_id)].basis,
            )
            for row, digest, answers, error in zip(
                self.images.rows, self.images.digests, self.answers, self.errors, strict=True
            )
        ]
        return rows.table(records, rows.ANSWERS)
